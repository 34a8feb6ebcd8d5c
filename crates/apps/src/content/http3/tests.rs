//! Bytes on a client's streams, processed at once and byte by byte.

use quic::{Side, StreamId};

use super::*;
use crate::pattern_inspection::PatternInspection;
use crate::pattern_rules::{PatternRules, RuleCounterNames};

const HEAD_MAX: usize = 1000;

fn no_rules() -> PatternInspection {
    PatternInspection::default()
}

fn code(fault: Http3Fault) -> Http3ErrorCode {
    match fault {
        Http3Fault::Connection(code) | Http3Fault::Stream(code) => code,
        Http3Fault::Denied => panic!("denied without rules"),
    }
}

fn stream(dir: Dir, index: u64) -> StreamId {
    StreamId::new(Side::Client, dir, index)
}

/// Returns a connection that has received these bytes on a unidirectional stream, at once and byte
/// by byte.
fn incoming(bytes: &[u8]) -> Result<Http3Connection, Http3ErrorCode> {
    let run = |chunk: usize| {
        let mut connection = Http3Connection { streams_max: 2, ..Http3Connection::default() };
        let id = stream(Dir::Uni, 0);
        connection.incoming.insert(id, ClientUniStream::default());
        for part in bytes.chunks(chunk) {
            connection.handle_incoming(id, part).map_err(code)?;
        }
        Ok(connection)
    };
    let (whole, parts) = (run(usize::MAX), run(1));
    assert_eq!(whole.as_ref().err(), parts.as_ref().err());
    whole
}

fn request(bytes: &[u8]) -> Result<Option<Vec<u8>>, Http3ErrorCode> {
    let run = |chunk: usize| {
        let mut connection = Http3Connection::default();
        let id = stream(Dir::Bi, 0);
        connection.requests.insert(id, Http3Request::new(Instant::ZERO));
        for part in bytes.chunks(chunk) {
            connection.handle_request(id, part, HEAD_MAX, &mut no_rules()).map_err(code)?;
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
    // SETTINGS, a long unknown frame, GOAWAY, MAX_PUSH_ID.
    let long = [&[0x21, 0x48, 0x00][..], &[7; 0x800]].concat();
    let good = [&[0x00, 0x04, 0x02, 0x06, 0x05][..], &long, &[0x07, 1, 0, 0x0d, 1, 8]].concat();
    let connection = incoming(&good).expect("it is as section 6.2.1 wants it");
    assert!(connection.settings);
    for (bytes, code) in [
        (&[0x00, 0x07, 1, 0][..], Http3ErrorCode::MissingSettings),
        (&[0x00, 0x04, 0, 0x04, 0], Http3ErrorCode::FrameUnexpected),
        (&[0x00, 0x04, 0, 0x00, 0], Http3ErrorCode::FrameUnexpected),
        (&[0x00, 0x04, 0, 0x08, 0], Http3ErrorCode::FrameUnexpected),
        (&[0x00, 0x04, 2, 0x02, 0], Http3ErrorCode::SettingsError),
        (&[0x00, 0x04, 1, 0x06], Http3ErrorCode::FrameError),
        (&[0x00, 0x04, 0, 0x03, 1, 0], Http3ErrorCode::IdError),
        (&[0x00, 0x04, 0, 0x0d, 1, 8, 0x0d, 1, 7], Http3ErrorCode::IdError),
        (&[0x00, 0x04, 0, 0x07, 1, 4, 0x07, 1, 5], Http3ErrorCode::IdError),
        (&[0x00, 0x04, 0, 0x80, 0x0f, 0x07, 0x00, 1, 8], Http3ErrorCode::IdError),
        (&[0x00, 0x04, 0, 0x80, 0x0f, 0x07, 0x00, 1, 1], Http3ErrorCode::IdError),
        (&[0x00, 0x04, 0, 0x80, 0x0f, 0x07, 0x00, 1, 3], Http3ErrorCode::IdError),
        (&[0x00, 0x04, 0, 0x80, 0x0f, 0x07, 0x00, 0], Http3ErrorCode::FrameError),
        (&[0x00, 0x04, 0, 0x80, 0x0f, 0x07, 0x01, 1, 0], Http3ErrorCode::IdError),
        (&[0x01], Http3ErrorCode::StreamCreationError),
        (&[0x21], Http3ErrorCode::StreamCreationError),
        (&[0x02, 0x20, 0x3f, 0x01], Http3ErrorCode::QpackEncoderStreamError),
        (&[0x03, 0x80], Http3ErrorCode::QpackDecoderStreamError),
        (&[0x03, 0x01], Http3ErrorCode::QpackDecoderStreamError),
    ] {
        assert_eq!(incoming(bytes).err(), Some(code), "{bytes:?}");
    }
    let falls = [0x00, 0x04, 0, 0x07, 1, 4, 0x07, 1, 4, 0x07, 1, 0, 0x0d, 1, 7, 0x0d, 1, 8];
    assert!(incoming(&falls).is_ok(), "GOAWAY may fall, MAX_PUSH_ID may rise");
    assert!(incoming(&[0x02, 0x20]).is_ok(), "capacity 0");
    assert!(incoming(&[0x03, 0x44, 0x7f, 0x81, 0x01]).is_ok(), "cancellations");
}

#[test]
fn critical_streams_are_unique_and_stay_open() {
    let mut connection = incoming(&[0x00, 0x04, 0]).expect("good");
    let second = stream(Dir::Uni, 1);
    connection.incoming.insert(second, ClientUniStream::default());
    let result = connection.handle_incoming(second, &[0x00]);
    assert!(matches!(result, Err(Http3Fault::Connection(Http3ErrorCode::StreamCreationError))));
    let ended = connection.handle_end(stream(Dir::Uni, 0), StreamReadError::Finished);
    assert!(matches!(ended, Err(Http3Fault::Connection(Http3ErrorCode::ClosedCriticalStream))));
}

#[test]
fn requests() {
    let head = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n".to_vec();
    assert_eq!(request(&get()), Ok(Some(head.clone())));
    let long = [&[0x21, 0x48, 0x00][..], &[7; 0x800]].concat();
    assert_eq!(request(&[long, get(), vec![0x00, 1, 9]].concat()), Ok(Some(head)));
    assert_eq!(request(&[0x01, 0x48, 0x00]), Ok(Some(vec![])), "too long: 431");
    assert_eq!(request(&get()[..5]), Ok(None), "not all there");
    assert_eq!(request(&[0x00, 1, 9]), Err(Http3ErrorCode::FrameUnexpected), "content first");
    assert_eq!(request(&[0x04, 0]), Err(Http3ErrorCode::FrameUnexpected));
    assert_eq!(request(&[0x01, 3, 0, 0, 0x80]), Err(Http3ErrorCode::QpackDecompressionFailed));
    assert_eq!(
        request(&[0x01, 3, 0, 0, 0xd1]),
        Err(Http3ErrorCode::MessageError),
        "a method alone"
    );
}

/// Returns the HEADERS of a request with these additional fields.
fn get_with(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut section = Vec::new();
    qpack::begin(&mut section);
    let usual = [(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "/x")];
    for (name, value) in usual.iter().chain(fields) {
        qpack::encode(&mut section, name.as_bytes(), value.as_bytes());
    }
    let mut bytes = Vec::new();
    frame::put_frame(&mut bytes, frame::HEADERS, &section);
    bytes
}

/// Returns HEADERS with these fields alone.
fn headers(fields: &[(&str, &str)]) -> Vec<u8> {
    let (mut section, mut bytes) = (Vec::new(), Vec::new());
    qpack::begin(&mut section);
    fields.iter().for_each(|(n, v)| qpack::encode(&mut section, n.as_bytes(), v.as_bytes()));
    frame::put_frame(&mut bytes, frame::HEADERS, &section);
    bytes
}

/// Processes a request with these bytes and an end of the stream, at once and byte by byte.
fn whole(bytes: &[u8]) -> Result<(), Http3ErrorCode> {
    let run = |chunk: usize| {
        let mut connection = Http3Connection::default();
        let id = stream(Dir::Bi, 0);
        connection.requests.insert(id, Http3Request::new(Instant::ZERO));
        let mut parts = bytes.chunks(chunk);
        let result = parts
            .try_for_each(|part| connection.handle_request(id, part, HEAD_MAX, &mut no_rules()));
        let result = result.and_then(|()| connection.handle_end(id, StreamReadError::Finished));
        result.map_err(code)
    };
    let (at_once, in_parts) = (run(usize::MAX), run(1));
    assert_eq!(at_once, in_parts);
    at_once
}

#[test]
fn content_and_its_length() {
    let length = |value| get_with(&[("content-length", value)]);
    let three = [0x00, 3, b'a', b'b', b'c'];
    let unknown = [0x21, 2, 9, 9];
    assert_eq!(whole(&[&length("3")[..], &unknown, &three, &unknown].concat()), Ok(()));
    assert_eq!(whole(&[&length("6")[..], &three, &three].concat()), Ok(()));
    assert_eq!(whole(&[&get()[..], &three].concat()), Ok(()), "no length, any content");
    for (bytes, code) in [
        (&[&length("5")[..], &three].concat(), Http3ErrorCode::MessageError),
        (&[&length("2")[..], &three].concat(), Http3ErrorCode::MessageError),
        (&[&length("0")[..], &three].concat(), Http3ErrorCode::MessageError),
        (&length("3"), Http3ErrorCode::MessageError),
        (&length("three"), Http3ErrorCode::MessageError),
        (
            &get_with(&[("content-length", "3"), ("content-length", "3")]),
            Http3ErrorCode::MessageError,
        ),
        (&[&length("3")[..], &three[..4]].concat(), Http3ErrorCode::FrameError),
        (&[&get()[..], &[0x01]].concat(), Http3ErrorCode::FrameError),
    ] {
        assert_eq!(whole(bytes), Err(code), "{bytes:?}");
    }
}

#[test]
fn trailers() {
    let data = [0x00, 1, 9];
    let trailer = headers(&[("x", "a")]);
    assert_eq!(whole(&[&get()[..], &data, &trailer, &[0x21, 1, 0]].concat()), Ok(()));
    assert_eq!(whole(&[get(), trailer.clone()].concat()), Ok(()));
    for (bytes, code) in [
        (&[get(), headers(&[(":path", "/")])].concat(), Http3ErrorCode::MessageError),
        (&[get(), headers(&[(":status", "200")])].concat(), Http3ErrorCode::MessageError),
        (&[get(), trailer.clone(), data.to_vec()].concat(), Http3ErrorCode::FrameUnexpected),
        (&[get(), trailer.clone(), trailer].concat(), Http3ErrorCode::FrameUnexpected),
        (&[get(), vec![0x04, 0]].concat(), Http3ErrorCode::FrameUnexpected),
        (&[&get()[..], &[0x80, 0x0f, 0x07, 0x00, 1, 0]].concat(), Http3ErrorCode::FrameUnexpected),
    ] {
        assert_eq!(whole(bytes), Err(code), "{bytes:?}");
    }
}

#[test]
fn priorities_of_requests() {
    let update = |stream: u8, value: &str| {
        let mut bytes = vec![];
        frame::put_frame(
            &mut bytes,
            frame::PRIORITY_UPDATE,
            &[&[stream], value.as_bytes()].concat(),
        );
        bytes
    };
    let control = stream(Dir::Uni, 0);
    let mut connection = Http3Connection { streams_max: 2, ..Http3Connection::default() };
    connection.incoming.insert(control, ClientUniStream::default());
    let settings = [0x00, 0x04, 0].to_vec();
    let early = [settings, update(4, "u=6"), update(0, "(((")].concat();
    assert!(connection.handle_incoming(control, &early).is_ok());
    let open = |connection: &mut Http3Connection, index: u64, head: &[u8]| {
        let id = stream(Dir::Bi, index);
        connection.requests.insert(id, Http3Request::new(Instant::ZERO));
        connection.next_stream = u64::from(id) + 4;
        assert!(connection.handle_request(id, head, HEAD_MAX, &mut no_rules()).is_ok());
        connection.requests[&id].priority
    };
    assert_eq!(open(&mut connection, 0, &get()), None);
    let head = get_with(&[("priority", "u=1, i")]);
    assert_eq!(open(&mut connection, 1, &head), Some(Priority::new(6, false)), "said before");
    assert_eq!(open(&mut connection, 2, &head), Some(Priority::new(1, true)));
    assert!(connection.handle_incoming(control, &update(8, "i")).is_ok());
    let third = stream(Dir::Bi, 2);
    assert_eq!(connection.requests[&third].priority, Some(Priority::new(3, true)));
    connection.end_request(third);
    assert!(connection.handle_incoming(control, &update(8, "u=0")).is_ok());
    assert_eq!(connection.reprioritized, [(third, Priority::new(0, false))]);
    // A client cannot fill memory with priorities of streams that it never opens.
    for index in 3..1000 {
        let id = stream(Dir::Bi, index);
        let mut bytes = Vec::new();
        let mut payload = Vec::new();
        frame::put_varint(&mut payload, u64::from(id));
        frame::put_frame(&mut bytes, frame::PRIORITY_UPDATE, &payload);
        assert!(connection.handle_incoming(control, &bytes).is_ok());
        connection.next_stream = u64::from(id) + 4;
    }
    assert!(connection.priorities.len() <= 6, "{}", connection.priorities.len());
}

/// A complete request that is reset is answered, and then removed.
#[test]
fn requests_that_are_reset_while_they_wait() {
    let mut connection = Http3Connection::default();
    let id = stream(Dir::Bi, 0);
    connection.requests.insert(id, Http3Request::new(Instant::ZERO));
    assert!(connection.handle_request(id, &get(), HEAD_MAX, &mut no_rules()).is_ok());
    assert!(connection.handle_end(id, StreamReadError::Reset(0)).is_ok());
    assert!(connection.requests.contains_key(&id), "it is to be answered");
    connection.end_request(id);
    assert!(connection.requests.is_empty() && connection.answered.is_empty());
}

#[test]
fn requests_that_end_too_soon() {
    let mut connection = Http3Connection::default();
    let id = stream(Dir::Bi, 0);
    connection.requests.insert(id, Http3Request::new(Instant::ZERO));
    let ended = connection.handle_end(id, StreamReadError::Finished);
    assert!(matches!(ended, Err(Http3Fault::Stream(Http3ErrorCode::RequestIncomplete))));
    assert!(connection.handle_end(id, StreamReadError::Reset(0)).is_ok());
    assert!(connection.requests.is_empty());
}

/// The pattern lies in fields, which are compressed, in content that is cut by frames, or in
/// trailers. Payload of unknown frames is not part of the request.
#[test]
fn denied_patterns_are_found_in_requests() {
    let rules = "evil\ncount:x-a: 1\\r\\n\ncount:\\r\\n\\r\\nab";
    let rules = PatternRules::parse(rules, &mut RuleCounterNames::default()).expect("valid");
    let rules = std::sync::Arc::new(rules);
    let run = |bytes: &[u8], chunk: usize| {
        let mut inspection = PatternInspection::new(Some(std::sync::Arc::clone(&rules)));
        let mut connection =
            Http3Connection { rules: inspection.rules(), ..Http3Connection::default() };
        let id = stream(Dir::Bi, 0);
        connection.requests.insert(id, Http3Request::new(Instant::ZERO));
        let mut parts = bytes.chunks(chunk);
        let result = parts
            .try_for_each(|part| connection.handle_request(id, part, HEAD_MAX, &mut inspection));
        let mut counted = Vec::new();
        inspection.visit(&mut |_, value| counted.push(value));
        (matches!(result, Err(Http3Fault::Denied)), [counted[0], counted[1], counted[2]])
    };
    let data = |bytes: &[u8]| {
        let mut frame = Vec::new();
        frame::put_frame(&mut frame, frame::DATA, bytes);
        frame
    };
    let unknown = [0x21, 2, 9, 9];
    let good = get_with(&[("x-a", "1"), ("priority", "u=1")]);
    for (bytes, expected) in [
        (get_with(&[("x", "an evil field")]), (true, [1, 0, 0])),
        (get_with(&[("priority", "evil")]), (true, [1, 0, 0])),
        ([&good[..], &data(b"abev"), &unknown, &data(b"il")].concat(), (true, [1, 1, 1])),
        ([&good[..], &data(b"ab"), &headers(&[("x", "evil")])].concat(), (true, [1, 1, 1])),
        ([&good[..], &data(b"ev"), &[0x21, 2], b"il"].concat(), (false, [0, 1, 0])),
        ([&good[..], &data(b"ev-il")].concat(), (false, [0, 1, 0])),
    ] {
        for chunk in [usize::MAX, 7, 1] {
            assert_eq!(run(&bytes, chunk), expected, "{bytes:?} {chunk}");
        }
    }
}
