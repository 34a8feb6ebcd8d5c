//! Connections over fake sockets: requests in pieces, pipelines, slow readers, deadlines, failures.

mod content;
mod fake;
mod patterns;
mod precompressed;
mod secure;
mod uploads;

use base::Duration;
use host::SocketError;
use proptest::prelude::*;

use fake::{ContentTestBed, FakeSocketId};

use super::*;

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

fn seconds(s: u64) -> Duration {
    Duration::from_secs(s)
}

/// Returns the statuses and bodies of the responses in `sent`.
fn responses(mut sent: &str) -> Vec<(u16, String)> {
    let mut list = Vec::new();
    while let Some((head, rest)) = sent.split_once("\r\n\r\n") {
        let status = head[9..12].parse().expect("a status line");
        let length = head.lines().find_map(|l| l.strip_prefix("Content-Length: "));
        let length = length.map_or(0, |l| l.parse().expect("a length"));
        let (body, after) = rest.split_at(length);
        list.push((status, body.to_string()));
        sent = after;
    }
    assert_eq!(sent, "", "rest of a response");
    list
}

fn statuses(sent: &str) -> Vec<u16> {
    responses(sent).into_iter().map(|r| r.0).collect()
}

#[test]
fn one_file() {
    let mut bed = ContentTestBed::new();
    let id = bed.accept();
    bed.receive(id, &get("/a.txt"));
    assert_eq!(bed.sent(id), "", "not before the file is open");
    bed.finish_opens();
    assert_eq!(responses(&bed.sent(id)), [(200, "content of a".into())]);
    bed.receive(id, &get("/a.txt"));
    assert_eq!(responses(&bed.sent(id)), [(200, "content of a".into())]);
    assert_eq!(bed.opens(), ["a.txt"]);
    bed.assert_moved(&[
        ("http_connections", 1),
        ("http_requests", 2),
        ("http_responses_2xx", 2),
        ("http_200", 2),
        ("http_file_cache_hits", 1),
        ("http_file_cache_misses", 1),
        ("http_head_bytes", 2 * 229),
        ("http_body_bytes", 24),
    ]);
}

#[test]
fn request_in_pieces() {
    let text = format!("\r\n{}", get("/a.txt"));
    for cut in 0..=text.len() {
        let mut bed = ContentTestBed::new();
        let id = bed.accept();
        bed.receive(id, &text[..cut]);
        bed.finish_opens();
        bed.receive(id, &text[cut..]);
        bed.finish_opens();
        assert_eq!(statuses(&bed.sent(id)), [200], "cut at {cut}");
        // The connection is still usable.
        bed.receive(id, &get("/b"));
        bed.finish_opens();
        assert_eq!(statuses(&bed.sent(id)), [200], "after a cut at {cut}");
    }
    let mut bed = ContentTestBed::new();
    let id = bed.accept();
    for byte in text.chars() {
        bed.receive(id, &byte.to_string());
    }
    bed.finish_opens();
    assert_eq!(statuses(&bed.sent(id)), [200]);
}

#[test]
fn pipeline_is_answered_in_order() {
    let mut bed = ContentTestBed::new();
    let id = bed.accept();
    let all = [get("/a.txt"), get("/missing"), get("/b"), get("/a.txt")].concat();
    // The last request is incomplete.
    bed.receive(id, &all[..all.len() - 3]);
    bed.finish_opens();
    bed.finish_opens();
    bed.finish_opens();
    assert_eq!(statuses(&bed.sent(id)), [200, 404, 200]);
    bed.receive(id, &all[all.len() - 3..]);
    assert_eq!(responses(&bed.sent(id)), [(200, "content of a".into())]);
}

#[test]
fn pipeline_waits_for_the_reader() {
    let mut bed = ContentTestBed::new();
    bed.put("k", &"x".repeat(1000));
    let id = bed.accept();
    bed.receive(id, &get("/k").repeat(500));
    bed.finish_opens();
    let first = statuses(&bed.sent(id)).len();
    assert!((40..70).contains(&first), "{first} responses in 64 KiB");
    assert!(bed.unread(id) > 0, "the rest waits in the receive buffer");
    let mut answered = first;
    while answered < 500 {
        bed.acknowledge_all(id);
        let more = statuses(&bed.sent(id)).len();
        assert!((1..70).contains(&more));
        answered += more;
    }
    assert_eq!((answered, bed.unread(id)), (500, 0));
}

#[test]
fn little_room_in_the_send_buffer() {
    let mut bed = ContentTestBed::new();
    let id = bed.accept();
    bed.set_room(id, 7);
    bed.receive(id, &[get("/a.txt"), get("/missing")].concat());
    bed.finish_opens();
    bed.finish_opens();
    let mut sent = String::new();
    for _ in 0..200 {
        bed.set_room(id, 7);
        bed.notify(id);
        bed.finish_opens();
        sent.push_str(&bed.sent(id));
    }
    assert_eq!(statuses(&sent), [200, 404]);
}

#[test]
fn one_open_for_many_connections() {
    let mut bed = ContentTestBed::new();
    let ids: Vec<FakeSocketId> = (0..50).map(|_| bed.accept()).collect();
    for &id in &ids {
        bed.receive(id, &get("/a.txt"));
    }
    // One of the connections is reset.
    bed.fail(ids[3], SocketError::Reset);
    bed.finish_opens();
    assert_eq!(bed.opens(), ["a.txt"]);
    for &id in ids.iter().filter(|id| **id != ids[3]) {
        assert_eq!(statuses(&bed.sent(id)), [200]);
    }
    assert_eq!(bed.counter("http_aborted_peer"), 1);
    assert_eq!(bed.counter("http_file_cache_misses"), 50);
}

#[test]
fn open_results_reach_their_requester() {
    let mut bed = ContentTestBed::new();
    let old = bed.accept();
    bed.receive(old, &get("/missing"));
    bed.fail(old, SocketError::Reset);
    // Another connection takes its index and waits for another file.
    let new = bed.accept();
    bed.receive(new, &get("/a.txt"));
    bed.finish_oldest_open();
    assert_eq!(bed.sent(new), "");
    bed.finish_oldest_open();
    assert_eq!(statuses(&bed.sent(new)), [200]);
}

#[test]
fn files_are_revalidated() {
    let mut bed = ContentTestBed::new();
    let id = bed.accept();
    bed.receive(id, &get("/a.txt"));
    bed.finish_opens();
    bed.put("a.txt", "new content");
    bed.receive(id, &get("/a.txt"));
    bed.advance(Duration::from_millis(1001));
    bed.receive(id, &get("/a.txt"));
    bed.finish_opens();
    bed.remove("a.txt");
    bed.advance(Duration::from_millis(1001));
    bed.receive(id, &get("/a.txt"));
    bed.finish_opens();
    let bodies: Vec<_> = responses(&bed.sent(id)).into_iter().map(|r| r.1).collect();
    assert_eq!(bodies, ["content of a", "content of a", "new content", "404 Not Found\n"]);
    assert_eq!(bed.files_open(), 0);
}

#[test]
fn file_that_fails_in_mid_response() {
    let mut bed = ContentTestBed::new();
    let id = bed.accept();
    bed.receive(id, &get("/a.txt"));
    bed.finish_opens();
    bed.fail(id, SocketError::File(FileFault::Changed));
    assert_eq!(bed.counter("http_aborted_file"), 1);
    assert_eq!(bed.counter("http_aborted_peer"), 0);
    let line = core::iter::from_fn(|| bed.log()).last();
    assert_eq!(
        line.as_deref(),
        Some(
            "# 10.77.0.1 [01/Jan/1970:00:00:00 +0000] reset in mid-response: the file changed \
             while it was being sent"
        )
    );
    // The next request does not use the stale handle.
    let id = bed.accept();
    bed.receive(id, &get("/a.txt"));
    bed.finish_opens();
    assert_eq!(bed.opens(), ["a.txt", "a.txt"]);
    assert_eq!(statuses(&bed.sent(id)), [200]);
}

#[test]
fn close_waits_for_the_peer() {
    let mut bed = ContentTestBed::new();
    let id = bed.accept();
    bed.receive(id, "GET /a.txt HTTP/1.0\r\n\r\nmore that is thrown away");
    bed.finish_opens();
    assert_eq!(statuses(&bed.sent(id)), [200]);
    assert!(bed.is_shut(id) && !bed.is_closed(id));
    bed.receive(id, &"x".repeat(1000));
    bed.acknowledge_all(id);
    assert!(!bed.is_closed(id));
    bed.peer_closes(id);
    assert!(bed.is_closed(id) && !bed.is_aborted(id));
    assert_eq!(bed.counter("http_discarded_bytes"), 1024);
    assert_eq!(bed.counter("http_timeouts_linger"), 0);
    bed.assert_empty();
}

#[test]
fn peer_that_closes_first_gets_its_response() {
    let mut bed = ContentTestBed::new();
    let id = bed.accept();
    bed.receive(id, &get("/a.txt"));
    bed.peer_closes(id);
    bed.finish_opens();
    assert_eq!(statuses(&bed.sent(id)), [200]);
    assert!(bed.is_shut(id) && !bed.is_closed(id));
    bed.acknowledge_all(id);
    assert!(bed.is_closed(id));
    assert_eq!(bed.counter("http_aborted_peer"), 0);
    // An incomplete request gets no response.
    let id = bed.accept();
    bed.receive(id, "GET /a");
    bed.peer_closes(id);
    bed.acknowledge_all(id);
    assert!(bed.is_closed(id));
    assert_eq!((bed.sent(id).as_str(), bed.counter("http_aborted_peer")), ("", 1));
    bed.assert_empty();
}

#[test]
fn header_timeout() {
    // A client that sends nothing.
    let mut bed = ContentTestBed::new();
    let silent = bed.accept();
    // A client that sends single bytes (slowloris): the deadline does not move.
    let slow = bed.accept();
    for byte in "GET /a.tx".chars() {
        bed.receive(slow, &byte.to_string());
        bed.advance(seconds(1));
    }
    assert!(!bed.is_shut(silent) && !bed.is_shut(slow));
    bed.advance(seconds(1));
    assert!(bed.is_shut(silent) && bed.is_shut(slow));
    assert_eq!((bed.sent(silent).as_str(), statuses(&bed.sent(slow))), ("", vec![408]));
    assert_eq!((bed.counter("http_timeouts_header"), bed.counter("http_408")), (2, 1));
    bed.peer_closes(silent);
    assert!(!bed.is_closed(silent), "its end is not acknowledged");
    bed.acknowledge_all(silent);
    assert!(bed.is_closed(silent));
    bed.acknowledge_all(slow);
    bed.advance(seconds(2));
    assert!(bed.is_closed(slow) && !bed.is_aborted(slow));
    assert_eq!(bed.counter("http_timeouts_linger"), 1);
    bed.assert_empty();
}

#[test]
fn empty_lines_are_no_request() {
    let mut bed = ContentTestBed::new();
    let id = bed.accept();
    for _ in 0..10 {
        assert!(!bed.is_shut(id));
        bed.receive(id, "\r\n");
        bed.advance(seconds(1));
    }
    assert!(bed.is_shut(id));
}

/// Draining closes idle connections, completes responses that are being sent, and answers one more
/// request of connections that have had none.
#[test]
fn drain() {
    let mut bed = ContentTestBed::new();
    let [idle, busy, new, half] = [(); 4].map(|()| bed.accept());
    bed.receive(idle, &get("/a.txt"));
    bed.finish_opens();
    bed.acknowledge_all(idle);
    bed.receive(half, "GET /a.txt HTTP/1.1\r\n");
    bed.receive(busy, &get("/big"));
    bed.server.drain(bed.now, &mut bed.sockets);
    assert_eq!([idle, busy, new, half].map(|id| bed.is_shut(id)), [true, false, false, false]);
    bed.finish_opens();
    bed.receive(new, &get("/a.txt"));
    bed.receive(half, "Host: a\r\n\r\n");
    bed.finish_opens();
    for id in [busy, new, half] {
        let sent = bed.sent(id);
        assert!(sent.to_ascii_lowercase().contains("connection: close"), "{sent}");
        assert_eq!((statuses(&sent).len(), bed.is_shut(id)), (1, true));
    }
    assert_eq!(bed.counter("http_timeouts_keepalive"), 0);
}

#[test]
fn keepalive_timeout() {
    let mut bed = ContentTestBed::new();
    let id = bed.accept();
    for _ in 0..3 {
        bed.receive(id, &get("/a.txt"));
        bed.finish_opens();
        bed.acknowledge_all(id);
        bed.advance(seconds(59));
        assert!(!bed.is_shut(id));
    }
    bed.advance(seconds(1));
    assert!(bed.is_shut(id));
    assert_eq!(bed.counter("http_timeouts_keepalive"), 1);
    assert_eq!(statuses(&bed.sent(id)), [200, 200, 200]);
}

#[test]
fn send_timeout() {
    let mut bed = ContentTestBed::new();
    let (stuck, slow) = (bed.accept(), bed.accept());
    for id in [stuck, slow] {
        bed.receive(id, &get("/a.txt"));
        bed.finish_opens();
    }
    for _ in 0..100 {
        bed.advance(seconds(30));
        bed.acknowledge(slow, 1);
    }
    assert!(bed.is_aborted(stuck) && !bed.is_aborted(slow));
    assert_eq!(bed.counter("http_timeouts_send"), 1);
    // The same while the last response is being sent.
    bed.receive(slow, "GET /b HTTP/1.0\r\n\r\n");
    bed.finish_opens();
    assert!(bed.is_shut(slow));
    bed.advance(seconds(121));
    assert!(bed.is_aborted(slow));
    assert_eq!(bed.counter("http_timeouts_send"), 2);
    bed.assert_empty();
}

#[test]
fn disk_that_does_not_answer() {
    let mut bed = ContentTestBed::new();
    let id = bed.accept();
    bed.receive(id, &get("/a.txt"));
    bed.advance(seconds(60));
    assert_eq!(statuses(&bed.sent(id)), [503]);
    assert!(bed.is_shut(id));
    assert_eq!(bed.counter("http_timeouts_open"), 1);
    // A late end of the open is ignored.
    bed.finish_opens();
    assert_eq!(bed.sent(id), "");
}

#[test]
fn no_handle_left() {
    let mut bed = ContentTestBed::new();
    bed.sockets.app_state.files_max = 2;
    let ids: Vec<_> = (0..4).map(|_| bed.accept()).collect();
    for (id, path) in ids.iter().zip(["/a.txt", "/b", "/missing"]) {
        bed.receive(*id, &get(path));
    }
    // Opens in progress hold both handles, so the third request is refused.
    assert_eq!(statuses(&bed.sent(ids[2])), [503]);
    bed.finish_opens();
    assert_eq!(statuses(&bed.sent(ids[0])), [200]);
    // A cached file is evicted.
    bed.receive(ids[3], &get("/missing"));
    bed.finish_opens();
    assert_eq!(statuses(&bed.sent(ids[3])), [404]);
}

#[test]
fn content_is_never_parsed_as_a_request() {
    let mut bed = ContentTestBed::new();
    let id = bed.accept();
    let inner = get("/b");
    let length = inner.len();
    let fields = format!("Host: a\r\nContent-Length: {length}");
    bed.receive(id, &format!("POST /a.txt HTTP/1.1\r\n{fields}\r\n\r\n{inner}"));
    assert_eq!(statuses(&bed.sent(id)), [405]);
    assert!(!bed.is_shut(id));
    bed.receive(id, &format!("POST /a HTTP/1.1\r\nConnection: close\r\n{fields}\r\n\r\n{inner}"));
    assert_eq!(statuses(&bed.sent(id)), [405]);
    assert!(bed.is_shut(id));
    assert_eq!(bed.opens(), [""; 0]);
    let id = bed.accept();
    bed.receive(id, &format!("nonsense\r\n\r\n{inner}"));
    assert_eq!(statuses(&bed.sent(id)), [400]);
    assert!(bed.is_shut(id));
}

#[test]
fn heads_that_are_too_long() {
    let mut bed = ContentTestBed::new();
    for (text, expected) in [
        (format!("GET /{}", "a".repeat(9000)), 414),
        (format!("GET / HTTP/1.1\r\nX: {}", "a".repeat(17_000)), 431),
    ] {
        let whole = bed.accept();
        bed.receive(whole, &text);
        assert_eq!(statuses(&bed.sent(whole)), [expected]);
        let pieces = bed.accept();
        for piece in text.as_bytes().chunks(100) {
            bed.receive(pieces, core::str::from_utf8(piece).expect("ascii"));
        }
        assert_eq!(statuses(&bed.sent(pieces)), [expected]);
        assert!(bed.is_shut(pieces));
    }
}

#[test]
fn connections_are_bounded() {
    let mut bed = ContentTestBed::new();
    bed.server.config.connections_max = 2;
    let ids: Vec<_> = (0..3).map(|_| bed.accept()).collect();
    assert!(bed.is_aborted(ids[2]) && !bed.is_aborted(ids[1]));
    assert_eq!(bed.counter("http_connections_refused"), 1);
    bed.peer_closes(ids[0]);
    bed.acknowledge_all(ids[0]);
    let id = bed.accept();
    bed.receive(id, &get("/a.txt"));
    bed.finish_opens();
    assert_eq!(statuses(&bed.sent(id)), [200]);
    assert_eq!(bed.server.connections(), 2);
}

#[test]
fn requests_are_bounded() {
    let mut bed = ContentTestBed::new();
    bed.server.config.requests_per_connection_max = 3;
    let id = bed.accept();
    bed.receive(id, &get("/a.txt").repeat(5));
    bed.finish_opens();
    let sent = bed.sent(id);
    assert_eq!(statuses(&sent), [200, 200, 200]);
    assert_eq!(sent.matches("Connection: close").count(), 1);
    assert!(bed.is_shut(id));
}

#[test]
fn stale_and_foreign_notices() {
    let mut bed = ContentTestBed::new();
    let old = bed.accept();
    bed.fail(old, SocketError::Reset);
    bed.notify(old);
    let new = bed.accept();
    bed.notify(old);
    bed.receive(new, &get("/a.txt"));
    bed.server.handle_file(bed.now, &mut bed.sockets, FileId(4_000_000));
    bed.finish_opens();
    assert_eq!(statuses(&bed.sent(new)), [200]);
    assert_eq!(bed.counter("http_aborted_peer"), 0, "an idle connection loses nothing");
}

/// Events of the network and the disk during a pipeline.
#[derive(Clone, Debug)]
enum PipelineEvent {
    Arrive(usize),
    Acknowledge(u64),
    Room(usize),
    Open,
    Pass(u64),
}

fn happening() -> impl Strategy<Value = PipelineEvent> {
    prop_oneof![
        (1_usize..200).prop_map(PipelineEvent::Arrive),
        (1_u64..500).prop_map(PipelineEvent::Acknowledge),
        (1_usize..300).prop_map(PipelineEvent::Room),
        Just(PipelineEvent::Open),
        (1_u64..700).prop_map(PipelineEvent::Pass),
    ]
}

proptest! {
    /// In any order of events, the responses are those to the requests, in order.
    #[test]
    fn same_bytes_in_any_weather(
        paths in proptest::collection::vec("/(a\\.txt|b|missing|d|big)", 1..8),
        weather in proptest::collection::vec(happening(), 0..80),
    ) {
        let mut bed = ContentTestBed::new();
        bed.put("big", &"0123456789".repeat(10_000));
        let id = bed.accept();
        let text: String = paths.iter().map(|p| get(p)).collect();
        let (mut given, mut sent) = (0, String::new());
        for happening in weather {
            match happening {
                PipelineEvent::Arrive(bytes) => {
                    let end = (given + bytes).min(text.len());
                    bed.receive(id, &text[given..end]);
                    given = end;
                }
                PipelineEvent::Acknowledge(bytes) => bed.acknowledge(id, bytes),
                PipelineEvent::Room(bytes) => { bed.set_room(id, bytes); bed.notify(id); }
                PipelineEvent::Open => bed.finish_opens(),
                PipelineEvent::Pass(millis) => bed.advance(Duration::from_millis(millis)),
            }
            sent.push_str(&bed.sent(id));
        }
        // Without further faults, everything must end.
        prop_assume!(!bed.is_shut(id));
        bed.set_room(id, usize::MAX);
        bed.receive(id, &text[given..]);
        for _ in 0..4 * paths.len() {
            bed.finish_opens();
            bed.acknowledge_all(id);
        }
        sent.push_str(&bed.sent(id));
        let expected: Vec<_> = paths.iter().map(|path| match path.as_str() {
            "/a.txt" => (200, "content of a".to_string()),
            "/b" => (200, "content of b".to_string()),
            "/big" => (200, "0123456789".repeat(10_000)),
            "/d" => (301, "301 Moved Permanently\n".to_string()),
            _ => (404, "404 Not Found\n".to_string()),
        }).collect();
        prop_assert_eq!(responses(&sent), expected);
        bed.peer_closes(id);
        bed.acknowledge_all(id);
        prop_assert!(bed.is_closed(id));
        bed.assert_empty();
    }
}
