//! Responses, compared byte for byte.

use super::super::open_file::stat;
use super::*;

/// Sun, 06 Nov 1994 08:49:37 GMT, which is also the modification time of the files.
const EPOCH: Duration = Duration::from_secs(784_111_777);

fn output() -> ResponseWriter {
    ResponseWriter::new("outboard", None, EPOCH, 1)
}

fn file(size: u64) -> OpenFile {
    OpenFile::new(b"a.txt", FileId(3), &stat(size, 0xab), 1_000_000_000)
}

/// Returns the response as text, with file bytes as `<offset+len>`; checks Content-Length.
fn shown(output: &ResponseWriter) -> String {
    let mut text = String::new();
    let mut total = 0;
    for piece in &output.pieces {
        match piece {
            ResponsePiece::Bytes(bytes) => {
                total += bytes.len() as u64;
                text.push_str(core::str::from_utf8(bytes).expect("heads are text"));
            }
            ResponsePiece::File { file, offset, len } => {
                assert_eq!(*file, FileId(3));
                total += len;
                text.push_str(&format!("<{offset}+{len}>"));
            }
        }
    }
    let head = text.find("\r\n\r\n").expect("a head") as u64 + 4;
    let length = text.lines().find_map(|l| l.strip_prefix("Content-Length: "));
    if let (Some(length), true) = (length, total > head) {
        assert_eq!(length.parse(), Ok(total - head), "{text}");
    }
    text.replace("\r\n", "\n")
}

const PLAIN: ResponseVariant<'_> =
    ResponseVariant { coded: None, varies: false, cache_control: None };
const COMMON: &str = "Server: outboard\nDate: Sun, 06 Nov 1994 08:49:37 GMT\n";
const VALIDATORS: &str =
    "ETag: \"00000000000000ab\"\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\n";

#[test]
fn whole_file() {
    let mut output = output();
    let plan = output.write_whole_file(
        &file(10),
        PLAIN,
        ResponseContent::Full,
        ConnectionPersistence::KeepAlive,
    );
    let head = format!(
        "HTTP/1.1 200 OK\n{COMMON}Content-Length: 10\nContent-Type: text/plain; charset=utf-8\n\
         Accept-Ranges: bytes\n{VALIDATORS}"
    );
    assert_eq!(shown(&output), format!("{head}\n<0+10>"));
    let file_id = Some(FileId(3));
    assert_eq!(
        plan,
        WrittenResponse {
            status: HttpStatus::Ok,
            close: false,
            body_bytes: 10,
            file: file_id,
            close_after_reply: false
        }
    );
    let plan = output.write_whole_file(
        &file(10),
        PLAIN,
        ResponseContent::HeadOnly,
        ConnectionPersistence::KeepAliveExplicit,
    );
    assert_eq!(shown(&output), format!("{head}Connection: keep-alive\n\n"));
    assert_eq!((plan.close, plan.body_bytes), (false, 0));
    assert!(
        output
            .write_whole_file(&file(10), PLAIN, ResponseContent::Full, ConnectionPersistence::Close)
            .close
    );
    assert_eq!(shown(&output), format!("{head}Connection: close\n\n<0+10>"));
    output.write_whole_file(
        &file(0),
        PLAIN,
        ResponseContent::Full,
        ConnectionPersistence::KeepAlive,
    );
    assert_eq!(output.pieces.len(), 1);
}

#[test]
fn one_range() {
    let mut output = output();
    let plan = output.write_ranges(
        &file(10),
        PLAIN,
        &[ByteRange { start: 2, len: 3 }],
        ConnectionPersistence::KeepAlive,
    );
    assert_eq!(
        shown(&output),
        format!(
            "HTTP/1.1 206 Partial Content\n{COMMON}Content-Range: bytes 2-4/10\n\
             Content-Length: 3\nContent-Type: text/plain; charset=utf-8\n\
             Accept-Ranges: bytes\n{VALIDATORS}\n<2+3>"
        )
    );
    assert_eq!((plan.status, plan.body_bytes), (HttpStatus::PartialContent, 3));
}

#[test]
fn two_ranges() {
    let mut output = output();
    let ranges = [ByteRange { start: 0, len: 1 }, ByteRange { start: 8, len: 2 }];
    let plan = output.write_ranges(&file(10), PLAIN, &ranges, ConnectionPersistence::KeepAlive);
    let text = shown(&output);
    let boundary = text.split_once("boundary=").expect("a boundary").1.lines().next().unwrap();
    assert_eq!(
        text,
        format!(
            "HTTP/1.1 206 Partial Content\n{COMMON}\
             Content-Type: multipart/byteranges; boundary={boundary}\n\
             Content-Length: {}\nAccept-Ranges: bytes\n{VALIDATORS}\n\
             \n--{boundary}\nContent-Type: text/plain; charset=utf-8\n\
             Content-Range: bytes 0-0/10\n\n<0+1>\
             \n--{boundary}\nContent-Type: text/plain; charset=utf-8\n\
             Content-Range: bytes 8-9/10\n\n<8+2>\
             \n--{boundary}--\n",
            plan.body_bytes
        )
    );
    let first = boundary.to_string();
    output.write_ranges(&file(10), PLAIN, &ranges, ConnectionPersistence::KeepAlive);
    assert!(!shown(&output).contains(&first), "each response has its own boundary");
}

#[test]
fn not_modified_has_no_content() {
    let mut output = output();
    output.write_not_modified(&file(10), PLAIN, ConnectionPersistence::KeepAlive);
    assert_eq!(shown(&output), format!("HTTP/1.1 304 Not Modified\n{COMMON}{VALIDATORS}\n"));
}

#[test]
fn texts() {
    let mut output = output();
    let plan = output.write_status_text(
        HttpStatus::NotFound,
        ExtraField::None,
        ResponseContent::Full,
        ConnectionPersistence::Close,
    );
    let expected = format!(
        "HTTP/1.1 404 Not Found\n{COMMON}Content-Type: text/plain; charset=utf-8\n\
         Content-Length: 14\nConnection: close\n\n404 Not Found\n"
    );
    assert_eq!(shown(&output), expected);
    assert_eq!((plan.close, plan.body_bytes, plan.file), (true, 14, None));
    output.write_status_text(
        HttpStatus::NotFound,
        ExtraField::None,
        ResponseContent::HeadOnly,
        ConnectionPersistence::Close,
    );
    assert_eq!(shown(&output), expected.strip_suffix("404 Not Found\n").unwrap());
    for (extra, line) in [
        (ExtraField::Allow { put: false }, "\nAllow: GET, HEAD\n"),
        (ExtraField::Allow { put: true }, "\nAllow: GET, HEAD, PUT\n"),
        (ExtraField::RetryAfter, "\nRetry-After: 1\n"),
        (ExtraField::Size(7), "\nContent-Range: bytes */7\n"),
        (ExtraField::Directory { path: b"a/b", query: b"?c=d" }, "\nLocation: /a/b/?c=d\n"),
        (
            ExtraField::Directory { path: b"a b/\r\n%?#\xc3\xa9", query: b"" },
            "\nLocation: /a%20b/%0D%0A%25%3F%23%C3%A9/\n",
        ),
    ] {
        output.write_status_text(
            HttpStatus::Forbidden,
            extra,
            ResponseContent::Full,
            ConnectionPersistence::KeepAlive,
        );
        assert!(shown(&output).contains(line), "{}", shown(&output));
    }
}

#[test]
fn date_follows_the_clock() {
    let mut output = output();
    output.advance(Instant::from_millis(1500));
    output.write_not_modified(&file(1), PLAIN, ConnectionPersistence::KeepAlive);
    assert!(shown(&output).contains("Date: Sun, 06 Nov 1994 08:49:38 GMT"));
}

#[test]
fn server_name_is_cleaned_or_left_out() {
    let mut output = ResponseWriter::new("a\r\nX: b", None, EPOCH, 1);
    output.write_not_modified(&file(1), PLAIN, ConnectionPersistence::KeepAlive);
    assert!(shown(&output).contains("\nServer: aX: b\nDate"));
    let mut output = ResponseWriter::new("", None, EPOCH, 1);
    output.write_not_modified(&file(1), PLAIN, ConnectionPersistence::KeepAlive);
    assert!(shown(&output).starts_with("HTTP/1.1 304 Not Modified\nDate"));
}

/// Acknowledged heads make room for new ones: the buffer is not reallocated.
#[test]
fn steady_state_uses_the_buffer_again() {
    let mut output = output();
    let file = file(10);
    let mut places = std::collections::BTreeSet::new();
    for _ in 0..10_000 {
        output.write_whole_file(
            &file,
            PLAIN,
            ResponseContent::Full,
            ConnectionPersistence::KeepAlive,
        );
        let Some(ResponsePiece::Bytes(head)) = output.pieces.first() else { panic!("a head") };
        places.insert(head.as_ptr() as usize);
    }
    let (low, high) = (places.first().unwrap(), places.last().unwrap());
    assert!(high - low < BUFFER_BYTES, "heads lie in one buffer");
}
