//! What is done with bytes on a client's streams, whole and one by one.

use quic::{Side, StreamId};

use super::*;

const HEAD_MAX: usize = 1000;

fn stream(dir: Dir, index: u64) -> StreamId {
    StreamId::new(Side::Client, dir, index)
}

/// A connection that has seen these bytes on a stream, at once and byte by byte.
fn incoming(bytes: &[u8]) -> Result<Connection, Code> {
    let run = |chunk: usize| {
        let mut connection = Connection::default();
        let id = stream(Dir::Uni, 0);
        connection.incoming.insert(id, Incoming::default());
        for part in bytes.chunks(chunk) {
            connection.handle_incoming(id, part).map_err(|fault| match fault {
                Fault::Connection(code) | Fault::Stream(code) => code,
            })?;
        }
        Ok(connection)
    };
    let (whole, parts) = (run(usize::MAX), run(1));
    assert_eq!(whole.as_ref().err(), parts.as_ref().err());
    whole
}

fn request(bytes: &[u8]) -> Result<Option<Vec<u8>>, Code> {
    let run = |chunk: usize| {
        let mut connection = Connection::default();
        let id = stream(Dir::Bi, 0);
        connection.requests.insert(id, Request::new(Instant::ZERO));
        for part in bytes.chunks(chunk) {
            connection.handle_request(id, part, HEAD_MAX).map_err(|fault| match fault {
                Fault::Connection(code) | Fault::Stream(code) => code,
            })?;
        }
        Ok(connection.requests.remove(&id).and_then(|request| request.head))
    };
    let (whole, parts) = (run(usize::MAX), run(1));
    assert_eq!(whole, parts);
    whole
}

fn get() -> Vec<u8> {
    let mut section = Vec::new();
    qpack::begin(&mut section);
    for (name, value) in
        [(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "/x")]
    {
        qpack::encode(&mut section, name.as_bytes(), value.as_bytes());
    }
    let mut bytes = Vec::new();
    frame::put_frame(&mut bytes, frame::HEADERS, &section);
    bytes
}

#[test]
fn control_streams() {
    // SETTINGS, an unknown frame that is long, GOAWAY, MAX_PUSH_ID.
    let long = [&[0x21, 0x48, 0x00][..], &[7; 0x800]].concat();
    let good = [&[0x00, 0x04, 0x02, 0x06, 0x05][..], &long, &[0x07, 1, 0, 0x0d, 1, 8]].concat();
    let connection = incoming(&good).expect("it is as section 6.2.1 wants it");
    assert!(connection.settings);
    for (bytes, code) in [
        (&[0x00, 0x07, 1, 0][..], Code::MissingSettings),
        (&[0x00, 0x04, 0, 0x04, 0], Code::FrameUnexpected),
        (&[0x00, 0x04, 0, 0x00, 0], Code::FrameUnexpected),
        (&[0x00, 0x04, 0, 0x08, 0], Code::FrameUnexpected),
        (&[0x00, 0x04, 2, 0x02, 0], Code::SettingsError),
        (&[0x00, 0x04, 1, 0x06], Code::FrameError),
        (&[0x00, 0x04, 0, 0x03, 1, 0], Code::IdError),
        (&[0x01], Code::StreamCreationError),
        (&[0x21], Code::StreamCreationError),
        (&[0x02, 0x20, 0x3f, 0x01], Code::QpackEncoderStreamError),
        (&[0x03, 0x80], Code::QpackDecoderStreamError),
        (&[0x03, 0x01], Code::QpackDecoderStreamError),
    ] {
        assert_eq!(incoming(bytes).err(), Some(code), "{bytes:?}");
    }
    assert!(incoming(&[0x02, 0x20]).is_ok(), "capacity 0");
    assert!(incoming(&[0x03, 0x44, 0x7f, 0x81, 0x01]).is_ok(), "cancellations");
}

#[test]
fn critical_streams_are_one_of_a_kind_and_stay() {
    let mut connection = incoming(&[0x00, 0x04, 0]).expect("good");
    let second = stream(Dir::Uni, 1);
    connection.incoming.insert(second, Incoming::default());
    let result = connection.handle_incoming(second, &[0x00]);
    assert!(matches!(result, Err(Fault::Connection(Code::StreamCreationError))));
    let ended = connection.handle_end(stream(Dir::Uni, 0), ReadEnd::Finished);
    assert!(matches!(ended, Err(Fault::Connection(Code::ClosedCriticalStream))));
}

#[test]
fn requests() {
    let head = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n".to_vec();
    assert_eq!(request(&get()), Ok(Some(head.clone())));
    let long = [&[0x21, 0x48, 0x00][..], &[7; 0x800]].concat();
    assert_eq!(request(&[long, get(), vec![0x00, 1, 9]].concat()), Ok(Some(head)));
    assert_eq!(request(&[0x01, 0x48, 0x00]), Ok(Some(vec![])), "too long: 431");
    assert_eq!(request(&get()[..5]), Ok(None), "not all there");
    assert_eq!(request(&[0x00, 1, 9]), Err(Code::FrameUnexpected), "content first");
    assert_eq!(request(&[0x04, 0]), Err(Code::FrameUnexpected));
    assert_eq!(request(&[0x01, 3, 0, 0, 0x80]), Err(Code::QpackDecompressionFailed));
    assert_eq!(request(&[0x01, 3, 0, 0, 0xd1]), Err(Code::MessageError), "a method alone");
}

#[test]
fn requests_that_end_too_soon() {
    let mut connection = Connection::default();
    let id = stream(Dir::Bi, 0);
    connection.requests.insert(id, Request::new(Instant::ZERO));
    let ended = connection.handle_end(id, ReadEnd::Finished);
    assert!(matches!(ended, Err(Fault::Stream(Code::RequestIncomplete))));
    assert!(connection.handle_end(id, ReadEnd::Reset(0)).is_ok());
    assert!(connection.requests.is_empty());
}
