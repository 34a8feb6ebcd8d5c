//! Uploads: paths, lengths, limits, slow disks and hostile clients, over fake sockets and disk.

use std::sync::Arc;

use abi::FileFault;

use super::*;
use crate::content::{UploadConfig, UploadDecompression, UploadQuota};

const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";
/// Bytes of a write to the disk.
const WRITE: usize = 128 << 10;

fn bed_with(quota: u64, file_bytes_max: u64) -> ContentTestBed {
    let quota = Arc::new(UploadQuota::new(quota, 0));
    let decoders = Arc::new(decompress::Provider);
    let decompression = Some(UploadDecompression { decoders, ratio_max: 100 });
    let served_as = Some(Vec::new());
    let uploads = UploadConfig { quota, file_bytes_max, served_as, decompression };
    ContentTestBed::with(ContentServerConfig {
        uploads: Some(uploads),
        ..ContentServerConfig::default()
    })
}

fn bed() -> ContentTestBed {
    bed_with(u64::MAX, u64::MAX)
}

fn head(path: &str, fields: &str) -> String {
    format!("PUT {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

fn put(path: &str, content: &str) -> String {
    head(path, &format!("Content-Length: {}\r\n", content.len())) + content
}

/// Asserts that no upload, buffer, file or reservation is left.
fn assert_clean(bed: &mut ContentTestBed, quota_used: u64) {
    for name in ["uploads_open", "upload_buffer_bytes"] {
        assert_eq!(bed.counter(name), 0, "{name}");
    }
    assert_eq!(bed.counter("upload_quota_used_bytes"), quota_used);
    let ended = bed.counter("uploads_completed") + bed.counter("uploads_failed");
    assert_eq!(bed.counter("uploads_begun"), ended);
}

#[test]
fn without_a_directory_put_is_not_allowed() {
    let mut bed = ContentTestBed::new();
    let id = bed.accept();
    bed.receive(id, &put("/new", "abc"));
    let sent = bed.sent(id);
    assert_eq!(statuses(&sent), [405]);
    assert!(sent.contains("\r\nAllow: GET, HEAD\r\n"));
}

#[test]
fn a_file_is_created_and_then_replaced() {
    let mut bed = bed();
    let id = bed.accept();
    bed.receive(id, &put("/new", "content"));
    assert_eq!(bed.sent(id), "", "not before the file is there");
    bed.finish_changes();
    assert_eq!(responses(&bed.sent(id)), [(201, "201 Created\n".into())]);
    assert_eq!(bed.content("new").as_deref(), Some(&b"content"[..]));
    // The path is in the cache, and the next request still gets the new file.
    bed.receive(id, &get("/new"));
    bed.finish_opens();
    assert_eq!(responses(&bed.sent(id)), [(200, "content".into())]);
    bed.receive(id, &[put("/new", "other content"), get("/new")].concat());
    bed.finish_changes();
    bed.finish_opens();
    let sent = bed.sent(id);
    let (first, second) = sent.split_at(sent.find("\r\n\r\n").unwrap() + 4);
    assert!(first.starts_with("HTTP/1.1 204 No Content\r\n") && !first.contains("Content-"));
    assert_eq!(responses(second), [(200, "other content".into())]);
    assert_eq!((bed.counter("http_201"), bed.counter("http_204")), (1, 1));
    assert_eq!(bed.counter("upload_bytes"), 20);
    assert_clean(&mut bed, 13);
}

/// Every way to cut a request leads to the same file, and to the same next request.
#[test]
fn pieces_change_nothing() {
    let coded = "3;x=y\r\nabc\r\n4\r\ndefg\r\n0\r\nTrailer: x\r\n\r\n";
    for text in [put("/d/new", "abcdefg"), head("/d/new", CHUNKED) + coded] {
        let text = text + &get("/b");
        for cut in 0..=text.len() {
            let mut bed = bed();
            let id = bed.accept();
            bed.receive(id, &text[..cut]);
            bed.finish_changes();
            bed.receive(id, &text[cut..]);
            bed.finish_changes();
            bed.finish_opens();
            assert_eq!(statuses(&bed.sent(id)), [201, 200], "cut at {cut}");
            assert_eq!(bed.content("d/new").as_deref(), Some(&b"abcdefg"[..]), "cut at {cut}");
        }
    }
}

#[test]
fn an_empty_file_needs_no_length() {
    for fields in ["", "Content-Length: 0\r\n"] {
        let mut bed = bed();
        let id = bed.accept();
        bed.receive(id, &head("/new", fields));
        // The client has nothing more to send.
        bed.peer_closes(id);
        bed.finish_changes();
        assert_eq!(statuses(&bed.sent(id)), [201]);
        assert_eq!(bed.content("new"), Some(Vec::new()));
        assert_clean(&mut bed, 0);
    }
}

#[test]
fn refusals_say_why() {
    let big = "Content-Length: 1001\r\n";
    for (path, fields, status, counter) in [
        ("/../a", "", 400, "upload_refused_path"),
        ("/a/../b", "", 400, "upload_refused_path"),
        ("/a%2f..%2fb", "", 400, "upload_refused_path"),
        ("/", "", 400, "upload_refused_path"),
        ("/.hidden", "", 403, "upload_refused_path"),
        ("/.outboard-upload-1-1", "", 403, "upload_refused_path"),
        ("/none/a", "", 404, "upload_refused_path"),
        ("/a", "Content-Range: bytes 0-1/2\r\n", 400, "upload_refused_content"),
        ("/a", "Content-Encoding: br\r\n", 415, "upload_refused_content"),
        ("/a", "Content-Encoding: gzip, zstd\r\n", 415, "upload_refused_content"),
        ("/a", "If-Match: \"x\"\r\n", 412, "upload_refused_condition"),
        ("/a", "If-None-Match: \"x\"\r\n", 412, "upload_refused_condition"),
        ("/a", big, 413, "upload_refused_size"),
        ("/a", "Content-Length: 501\r\n", 507, "upload_refused_quota"),
    ] {
        let mut bed = bed_with(500, 1000);
        let id = bed.accept();
        bed.receive(id, &head(path, &format!("Expect: 100-continue\r\n{fields}")));
        bed.finish_changes();
        let answers = responses(&bed.sent(id));
        assert_eq!((answers.len(), answers[0].0), (1, status), "{path} {fields}");
        assert!(answers[0].1.contains(": ") && answers[0].1.lines().count() == 1, "{answers:?}");
        assert_eq!(bed.counter(counter), 1, "{path} {fields}");
        assert!(bed.is_shut(id), "the content was not sent");
        assert_clean(&mut bed, 0);
    }
}

#[test]
fn a_file_that_exists_is_kept_if_the_client_wants_it() {
    let mut bed = bed();
    for (path, status) in [("/b", 412), ("/new", 201)] {
        let id = bed.accept();
        let fields = "If-None-Match: *\r\nContent-Length: 3\r\n";
        bed.receive(id, &(head(path, fields) + "abc"));
        bed.finish_changes();
        assert_eq!(statuses(&bed.sent(id)), [status]);
    }
    assert_eq!(bed.content("b").as_deref(), Some(&b"content of b"[..]));
    assert_clean(&mut bed, 3);
}

#[test]
fn content_is_asked_for_when_the_file_is_open() {
    let mut bed = bed();
    let id = bed.accept();
    let fields = "Expect: 100-continue\r\nContent-Length: 3\r\n";
    bed.receive(id, &head("/new", fields));
    assert_eq!(bed.sent(id), "");
    bed.finish_opens();
    assert_eq!(bed.sent(id), "HTTP/1.1 100 Continue\r\n\r\n");
    bed.receive(id, "abc");
    bed.finish_changes();
    assert_eq!(statuses(&bed.sent(id)), [201]);
    // Content that has already arrived needs no 100.
    bed.receive(id, &(head("/new", fields) + "abc"));
    bed.finish_changes();
    assert!(bed.sent(id).starts_with("HTTP/1.1 204"));
}

#[test]
fn framing_that_two_parsers_could_read_differently_is_refused() {
    for (fields, content) in [
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
        ("Content-Length: 1\r\nContent-Length: 2\r\n", "a"),
        (CHUNKED, "x\r\n"),
        (CHUNKED, "1\r\nxx\r\n0\r\n\r\n"),
        (CHUNKED, "11111111111111111\r\n"),
    ] {
        let mut bed = bed();
        let id = bed.accept();
        bed.receive(id, &(head("/new", fields) + content));
        bed.finish_changes();
        assert_eq!(statuses(&bed.sent(id)), [400], "{fields}");
        assert!(bed.is_shut(id) && bed.content("new").is_none());
        assert_clean(&mut bed, 0);
    }
    // Extensions are bounded, whatever the limits of a file.
    let mut bed = bed();
    let id = bed.accept();
    bed.receive(id, &(head("/new", CHUNKED) + "1;" + &"x".repeat(20_000)));
    bed.finish_changes();
    assert_eq!(statuses(&bed.sent(id)), [400]);
}

#[test]
fn chunks_that_exceed_a_limit_end_the_upload() {
    let chunk = format!("400\r\n{}\r\n", "x".repeat(0x400));
    for (quota, most, status) in [(4000, u64::MAX, 507), (u64::MAX, 4000, 413)] {
        let mut bed = bed_with(quota, most);
        let id = bed.accept();
        bed.receive(id, &(head("/new", CHUNKED) + &chunk.repeat(3)));
        bed.finish_opens();
        assert_eq!(bed.sent(id), "", "within the limits");
        bed.receive(id, &chunk);
        bed.finish_changes();
        assert_eq!(statuses(&bed.sent(id)), [status]);
        assert!(bed.content("new").is_none());
        assert_clean(&mut bed, 0);
    }
    // Two uploads share the quota.
    let mut bed = bed_with(10, u64::MAX);
    let (one, two) = (bed.accept(), bed.accept());
    bed.receive(one, &head("/one", "Content-Length: 6\r\n"));
    bed.receive(two, &put("/two", "12345"));
    assert_eq!(statuses(&bed.sent(two)), [507]);
    bed.fail(one, SocketError::Reset);
    bed.finish_changes();
    let two = bed.accept();
    bed.receive(two, &put("/two", "12345"));
    bed.finish_changes();
    assert_eq!(statuses(&bed.sent(two)), [201]);
    assert_clean(&mut bed, 5);
}

#[test]
fn a_client_that_ends_early_leaves_nothing() {
    for resets in [false, true] {
        for stage in 0..3 {
            let mut bed = bed();
            let id = bed.accept();
            bed.receive(id, &head("/new", "Content-Length: 300000\r\n"));
            if stage > 0 {
                bed.finish_opens();
                bed.receive(id, &"x".repeat(200_000));
            }
            if stage > 1 {
                bed.finish_changes();
            }
            match resets {
                true => bed.fail(id, SocketError::Reset),
                false => bed.peer_closes(id),
            }
            bed.finish_changes();
            assert_eq!((bed.sent(id), bed.content("new")), (String::new(), None));
            assert_eq!((bed.counter("uploads_failed"), bed.files_open()), (1, 0));
            assert_eq!(bed.counter("http_aborted_peer"), 1);
            assert_clean(&mut bed, 0);
        }
    }
}

#[test]
fn a_slow_disk_holds_the_content_back() {
    let mut bed = bed();
    let id = bed.accept();
    let content = "x".repeat(10 * WRITE);
    bed.receive(id, &head("/new", &format!("Content-Length: {}\r\n", content.len())));
    bed.receive(id, &content);
    assert_eq!(bed.unread(id), content.len(), "the file is not open");
    bed.finish_opens();
    assert_eq!(bed.unread(id), 8 * WRITE, "two writes are under way");
    assert_eq!(bed.counter("upload_buffer_bytes"), 2 * WRITE as u64);
    for left in (0..8).rev() {
        bed.finish_change(None);
        assert_eq!(bed.unread(id), left * WRITE);
    }
    bed.finish_changes();
    assert_eq!(statuses(&bed.sent(id)), [201]);
    assert_eq!(bed.content("new").map(|bytes| bytes.len()), Some(content.len()));
    assert!(bed.counter("upload_waits") > 0);
    assert_clean(&mut bed, content.len() as u64);
}

#[test]
fn a_file_is_published_when_all_is_written() {
    let mut bed = bed();
    let id = bed.accept();
    bed.receive(id, &put("/new", &"x".repeat(WRITE + 1)));
    bed.finish_opens();
    for (kinds, after) in [("WW", 'W'), ("W", 'F'), ("F", 'P'), ("P", ' ')] {
        assert_eq!(bed.changes(), kinds, "before {after}");
        assert_eq!((bed.sent(id), bed.content("new")), (String::new(), None));
        bed.finish_change(None);
    }
    assert_eq!(statuses(&bed.sent(id)), [201]);
    assert_eq!(bed.content("new").map(|bytes| bytes.len()), Some(WRITE + 1));
}

/// All uploads together use a bounded amount of memory, and none starves.
#[test]
fn memory_is_bounded() {
    let mut bed = bed();
    let length = 4 * WRITE;
    let ids: Vec<_> = (0..512).map(|_| bed.accept()).collect();
    for (at, &id) in ids.iter().enumerate() {
        bed.receive(id, &head(&format!("/{at}"), &format!("Content-Length: {length}\r\n")));
    }
    let late = bed.accept();
    bed.receive(late, &put("/late", "abc"));
    assert_eq!(statuses(&bed.sent(late)), [503]);
    bed.finish_opens();
    let content = "x".repeat(length);
    for &id in &ids {
        bed.receive(id, &content);
        assert!(bed.counter("upload_buffer_bytes") <= 512 * WRITE as u64);
    }
    bed.finish_changes();
    for &id in &ids {
        assert_eq!(statuses(&bed.sent(id)), [201]);
    }
    assert_eq!(bed.counter("upload_refused_busy"), 1);
    assert_clean(&mut bed, 512 * length as u64);
}

#[test]
fn disk_errors_are_answered() {
    for (fault, status, counter) in [
        (FileFault::NoSpace, 507, "upload_refused_no_space"),
        (FileFault::Io, 500, "upload_disk_errors"),
    ] {
        // Of the write, the flush, and the publication.
        for stage in 0..3 {
            let mut bed = bed();
            let id = bed.accept();
            bed.receive(id, &put("/new", "content"));
            bed.finish_opens();
            (0..stage).for_each(|_| bed.finish_change(None));
            bed.finish_change(Some(fault));
            assert_eq!(statuses(&bed.sent(id)), [status], "{stage}");
            assert_eq!((bed.counter(counter), bed.content("new")), (1, None));
            // After the publication the file may have its name: its bytes count.
            assert_clean(&mut bed, if stage == 2 { 7 } else { 0 });
        }
    }
}

/// The bytes of a file are counted if it gets its name after its upload was given up.
#[test]
fn a_late_publication_is_counted() {
    let mut bed = bed();
    let id = bed.accept();
    bed.receive(id, &put("/new", "content"));
    bed.finish_opens();
    (0..2).for_each(|_| bed.finish_change(None));
    assert_eq!(bed.changes(), "P");
    bed.advance(seconds(60));
    assert_eq!(statuses(&bed.sent(id)), [503]);
    bed.finish_changes();
    assert_eq!(bed.content("new").as_deref(), Some(&b"content"[..]));
    assert_clean(&mut bed, 7);
}

#[test]
fn time_is_bounded() {
    // A client that sends too slowly.
    let mut bed = bed();
    let id = bed.accept();
    bed.receive(id, &head("/new", "Content-Length: 300000\r\n"));
    bed.finish_opens();
    for _ in 0..3 {
        bed.receive(id, &"x".repeat(20_000));
        bed.advance(seconds(30));
        assert_eq!(bed.sent(id), "", "enough has arrived");
    }
    bed.receive(id, "x");
    bed.advance(seconds(30));
    assert_eq!(statuses(&bed.sent(id)), [408]);
    assert_eq!(bed.counter("http_timeouts_content"), 1);
    assert_clean(&mut bed, 0);
    // A disk that does not answer: when the file is created, within the content, at its end.
    for (content, opens) in [("", false), ("x", true)] {
        let id = bed.accept();
        bed.receive(id, &put("/new", content));
        if opens {
            bed.finish_opens();
        }
        bed.advance(seconds(60));
        assert_eq!(statuses(&bed.sent(id)), [503]);
        bed.finish_changes();
        assert_clean(&mut bed, 0);
    }
    let id = bed.accept();
    bed.receive(id, &head("/new", "Content-Length: 1000000\r\n"));
    bed.finish_opens();
    bed.receive(id, &"x".repeat(1_000_000));
    bed.advance(seconds(30));
    assert_eq!(bed.sent(id), "", "the client is not to blame");
    bed.advance(seconds(30));
    assert_eq!(statuses(&bed.sent(id)), [503]);
}

#[test]
fn two_uploads_of_one_path_replace_each_other_as_a_whole() {
    let mut bed = bed();
    let (one, two) = (bed.accept(), bed.accept());
    bed.receive(one, &head("/new", "Content-Length: 6\r\n"));
    bed.receive(two, &put("/new", "second"));
    bed.finish_changes();
    assert_eq!(statuses(&bed.sent(two)), [201]);
    bed.receive(one, "first!");
    bed.finish_changes();
    assert!(bed.sent(one).starts_with("HTTP/1.1 204"));
    assert_eq!(bed.content("new").as_deref(), Some(&b"first!"[..]));
    assert_clean(&mut bed, 6);
}

#[test]
fn the_redirecting_port_takes_no_uploads() {
    let mut bed = bed();
    let id = bed.accept_for(ListenerService::Redirect(443));
    bed.receive(id, &put("/new", "abc"));
    assert_eq!(statuses(&bed.sent(id)), [308]);
    assert_eq!(bed.counter("uploads_begun"), 0);
}
