//! Connections over fake sockets: requests in pieces, pipelines, slow readers, deadlines, failures.

mod content;
mod fake;
mod precompressed;
mod secure;

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
    let mut world = ContentTestBed::new();
    let id = world.accept();
    world.receive(id, &get("/a.txt"));
    assert_eq!(world.sent(id), "", "not before the file is open");
    world.finish_opens();
    assert_eq!(responses(&world.sent(id)), [(200, "content of a".into())]);
    world.receive(id, &get("/a.txt"));
    assert_eq!(responses(&world.sent(id)), [(200, "content of a".into())]);
    assert_eq!(world.opens(), ["a.txt"]);
    world.assert_moved(&[
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
        let mut world = ContentTestBed::new();
        let id = world.accept();
        world.receive(id, &text[..cut]);
        world.finish_opens();
        world.receive(id, &text[cut..]);
        world.finish_opens();
        assert_eq!(statuses(&world.sent(id)), [200], "cut at {cut}");
        // The connection is still usable.
        world.receive(id, &get("/b"));
        world.finish_opens();
        assert_eq!(statuses(&world.sent(id)), [200], "after a cut at {cut}");
    }
    let mut world = ContentTestBed::new();
    let id = world.accept();
    for byte in text.chars() {
        world.receive(id, &byte.to_string());
    }
    world.finish_opens();
    assert_eq!(statuses(&world.sent(id)), [200]);
}

#[test]
fn pipeline_is_answered_in_order() {
    let mut world = ContentTestBed::new();
    let id = world.accept();
    let all = [get("/a.txt"), get("/missing"), get("/b"), get("/a.txt")].concat();
    // The last request is incomplete.
    world.receive(id, &all[..all.len() - 3]);
    world.finish_opens();
    world.finish_opens();
    world.finish_opens();
    assert_eq!(statuses(&world.sent(id)), [200, 404, 200]);
    world.receive(id, &all[all.len() - 3..]);
    assert_eq!(responses(&world.sent(id)), [(200, "content of a".into())]);
}

#[test]
fn pipeline_waits_for_the_reader() {
    let mut world = ContentTestBed::new();
    world.put("k", &"x".repeat(1000));
    let id = world.accept();
    world.receive(id, &get("/k").repeat(500));
    world.finish_opens();
    let first = statuses(&world.sent(id)).len();
    assert!((40..70).contains(&first), "{first} responses in 64 KiB");
    assert!(world.unread(id) > 0, "the rest waits in the receive buffer");
    let mut answered = first;
    while answered < 500 {
        world.acknowledge_all(id);
        let more = statuses(&world.sent(id)).len();
        assert!((1..70).contains(&more));
        answered += more;
    }
    assert_eq!((answered, world.unread(id)), (500, 0));
}

#[test]
fn little_room_in_the_send_buffer() {
    let mut world = ContentTestBed::new();
    let id = world.accept();
    world.set_room(id, 7);
    world.receive(id, &[get("/a.txt"), get("/missing")].concat());
    world.finish_opens();
    world.finish_opens();
    let mut sent = String::new();
    for _ in 0..200 {
        world.set_room(id, 7);
        world.notify(id);
        world.finish_opens();
        sent.push_str(&world.sent(id));
    }
    assert_eq!(statuses(&sent), [200, 404]);
}

#[test]
fn one_open_for_many_connections() {
    let mut world = ContentTestBed::new();
    let ids: Vec<FakeSocketId> = (0..50).map(|_| world.accept()).collect();
    for &id in &ids {
        world.receive(id, &get("/a.txt"));
    }
    // One of the connections is reset.
    world.fail(ids[3], SocketError::Reset);
    world.finish_opens();
    assert_eq!(world.opens(), ["a.txt"]);
    for &id in ids.iter().filter(|id| **id != ids[3]) {
        assert_eq!(statuses(&world.sent(id)), [200]);
    }
    assert_eq!(world.counter("http_aborted_peer"), 1);
    assert_eq!(world.counter("http_file_cache_misses"), 50);
}

#[test]
fn open_results_reach_their_requester() {
    let mut world = ContentTestBed::new();
    let old = world.accept();
    world.receive(old, &get("/missing"));
    world.fail(old, SocketError::Reset);
    // Another connection takes its index and waits for another file.
    let new = world.accept();
    world.receive(new, &get("/a.txt"));
    world.finish_oldest_open();
    assert_eq!(world.sent(new), "");
    world.finish_oldest_open();
    assert_eq!(statuses(&world.sent(new)), [200]);
}

#[test]
fn files_are_revalidated() {
    let mut world = ContentTestBed::new();
    let id = world.accept();
    world.receive(id, &get("/a.txt"));
    world.finish_opens();
    world.put("a.txt", "new content");
    world.receive(id, &get("/a.txt"));
    world.advance(Duration::from_millis(1001));
    world.receive(id, &get("/a.txt"));
    world.finish_opens();
    world.remove("a.txt");
    world.advance(Duration::from_millis(1001));
    world.receive(id, &get("/a.txt"));
    world.finish_opens();
    let bodies: Vec<_> = responses(&world.sent(id)).into_iter().map(|r| r.1).collect();
    assert_eq!(bodies, ["content of a", "content of a", "new content", "404 Not Found\n"]);
    assert_eq!(world.files_open(), 0);
}

#[test]
fn file_that_fails_in_mid_response() {
    let mut world = ContentTestBed::new();
    let id = world.accept();
    world.receive(id, &get("/a.txt"));
    world.finish_opens();
    world.fail(id, SocketError::File(FileFault::Changed));
    assert_eq!(world.counter("http_aborted_file"), 1);
    assert_eq!(world.counter("http_aborted_peer"), 0);
    let line = core::iter::from_fn(|| world.log()).last();
    assert_eq!(
        line.as_deref(),
        Some(
            "# 10.77.0.1 [01/Jan/1970:00:00:00 +0000] reset in mid-response: the file changed \
             while it was being sent"
        )
    );
    // The next request does not use the stale handle.
    let id = world.accept();
    world.receive(id, &get("/a.txt"));
    world.finish_opens();
    assert_eq!(world.opens(), ["a.txt", "a.txt"]);
    assert_eq!(statuses(&world.sent(id)), [200]);
}

#[test]
fn close_waits_for_the_peer() {
    let mut world = ContentTestBed::new();
    let id = world.accept();
    world.receive(id, "GET /a.txt HTTP/1.0\r\n\r\nmore that is thrown away");
    world.finish_opens();
    assert_eq!(statuses(&world.sent(id)), [200]);
    assert!(world.is_shut(id) && !world.is_closed(id));
    world.receive(id, &"x".repeat(1000));
    world.acknowledge_all(id);
    assert!(!world.is_closed(id));
    world.peer_closes(id);
    assert!(world.is_closed(id) && !world.is_aborted(id));
    assert_eq!(world.counter("http_discarded_bytes"), 1024);
    assert_eq!(world.counter("http_timeouts_linger"), 0);
    world.assert_empty();
}

#[test]
fn peer_that_closes_first_gets_its_response() {
    let mut world = ContentTestBed::new();
    let id = world.accept();
    world.receive(id, &get("/a.txt"));
    world.peer_closes(id);
    world.finish_opens();
    assert_eq!(statuses(&world.sent(id)), [200]);
    assert!(world.is_shut(id) && !world.is_closed(id));
    world.acknowledge_all(id);
    assert!(world.is_closed(id));
    assert_eq!(world.counter("http_aborted_peer"), 0);
    // An incomplete request gets no response.
    let id = world.accept();
    world.receive(id, "GET /a");
    world.peer_closes(id);
    world.acknowledge_all(id);
    assert!(world.is_closed(id));
    assert_eq!((world.sent(id).as_str(), world.counter("http_aborted_peer")), ("", 1));
    world.assert_empty();
}

#[test]
fn header_timeout() {
    // A client that sends nothing.
    let mut world = ContentTestBed::new();
    let silent = world.accept();
    // A client that sends single bytes (slowloris): the deadline does not move.
    let slow = world.accept();
    for byte in "GET /a.tx".chars() {
        world.receive(slow, &byte.to_string());
        world.advance(seconds(1));
    }
    assert!(!world.is_shut(silent) && !world.is_shut(slow));
    world.advance(seconds(1));
    assert!(world.is_shut(silent) && world.is_shut(slow));
    assert_eq!((world.sent(silent).as_str(), statuses(&world.sent(slow))), ("", vec![408]));
    assert_eq!((world.counter("http_timeouts_header"), world.counter("http_408")), (2, 1));
    world.peer_closes(silent);
    assert!(!world.is_closed(silent), "its end is not acknowledged");
    world.acknowledge_all(silent);
    assert!(world.is_closed(silent));
    world.acknowledge_all(slow);
    world.advance(seconds(2));
    assert!(world.is_closed(slow) && !world.is_aborted(slow));
    assert_eq!(world.counter("http_timeouts_linger"), 1);
    world.assert_empty();
}

#[test]
fn empty_lines_are_no_request() {
    let mut world = ContentTestBed::new();
    let id = world.accept();
    for _ in 0..10 {
        assert!(!world.is_shut(id));
        world.receive(id, "\r\n");
        world.advance(seconds(1));
    }
    assert!(world.is_shut(id));
}

/// Draining closes idle connections, completes responses that are being sent, and answers one more
/// request of connections that have had none.
#[test]
fn drain() {
    let mut world = ContentTestBed::new();
    let [idle, busy, new, half] = [(); 4].map(|()| world.accept());
    world.receive(idle, &get("/a.txt"));
    world.finish_opens();
    world.acknowledge_all(idle);
    world.receive(half, "GET /a.txt HTTP/1.1\r\n");
    world.receive(busy, &get("/big"));
    world.server.drain(world.now, &mut world.sockets);
    assert_eq!([idle, busy, new, half].map(|id| world.is_shut(id)), [true, false, false, false]);
    world.finish_opens();
    world.receive(new, &get("/a.txt"));
    world.receive(half, "Host: a\r\n\r\n");
    world.finish_opens();
    for id in [busy, new, half] {
        let sent = world.sent(id);
        assert!(sent.to_ascii_lowercase().contains("connection: close"), "{sent}");
        assert_eq!((statuses(&sent).len(), world.is_shut(id)), (1, true));
    }
    assert_eq!(world.counter("http_timeouts_keepalive"), 0);
}

#[test]
fn keepalive_timeout() {
    let mut world = ContentTestBed::new();
    let id = world.accept();
    for _ in 0..3 {
        world.receive(id, &get("/a.txt"));
        world.finish_opens();
        world.acknowledge_all(id);
        world.advance(seconds(59));
        assert!(!world.is_shut(id));
    }
    world.advance(seconds(1));
    assert!(world.is_shut(id));
    assert_eq!(world.counter("http_timeouts_keepalive"), 1);
    assert_eq!(statuses(&world.sent(id)), [200, 200, 200]);
}

#[test]
fn send_timeout() {
    let mut world = ContentTestBed::new();
    let (stuck, slow) = (world.accept(), world.accept());
    for id in [stuck, slow] {
        world.receive(id, &get("/a.txt"));
        world.finish_opens();
    }
    for _ in 0..100 {
        world.advance(seconds(30));
        world.acknowledge(slow, 1);
    }
    assert!(world.is_aborted(stuck) && !world.is_aborted(slow));
    assert_eq!(world.counter("http_timeouts_send"), 1);
    // The same while the last response is being sent.
    world.receive(slow, "GET /b HTTP/1.0\r\n\r\n");
    world.finish_opens();
    assert!(world.is_shut(slow));
    world.advance(seconds(121));
    assert!(world.is_aborted(slow));
    assert_eq!(world.counter("http_timeouts_send"), 2);
    world.assert_empty();
}

#[test]
fn disk_that_does_not_answer() {
    let mut world = ContentTestBed::new();
    let id = world.accept();
    world.receive(id, &get("/a.txt"));
    world.advance(seconds(60));
    assert_eq!(statuses(&world.sent(id)), [503]);
    assert!(world.is_shut(id));
    assert_eq!(world.counter("http_timeouts_open"), 1);
    // A late end of the open is ignored.
    world.finish_opens();
    assert_eq!(world.sent(id), "");
}

#[test]
fn no_handle_left() {
    let mut world = ContentTestBed::new();
    world.sockets.app_state.files_max = 2;
    let ids: Vec<_> = (0..4).map(|_| world.accept()).collect();
    for (id, path) in ids.iter().zip(["/a.txt", "/b", "/missing"]) {
        world.receive(*id, &get(path));
    }
    // Opens in progress hold both handles, so the third request is refused.
    assert_eq!(statuses(&world.sent(ids[2])), [503]);
    world.finish_opens();
    assert_eq!(statuses(&world.sent(ids[0])), [200]);
    // A cached file is evicted.
    world.receive(ids[3], &get("/missing"));
    world.finish_opens();
    assert_eq!(statuses(&world.sent(ids[3])), [404]);
}

#[test]
fn content_is_never_parsed_as_a_request() {
    let mut world = ContentTestBed::new();
    let id = world.accept();
    let inner = get("/b");
    let length = inner.len();
    let fields = format!("Host: a\r\nContent-Length: {length}");
    world.receive(id, &format!("POST /a.txt HTTP/1.1\r\n{fields}\r\n\r\n{inner}"));
    assert_eq!(statuses(&world.sent(id)), [405]);
    assert!(!world.is_shut(id));
    world.receive(id, &format!("POST /a HTTP/1.1\r\nConnection: close\r\n{fields}\r\n\r\n{inner}"));
    assert_eq!(statuses(&world.sent(id)), [405]);
    assert!(world.is_shut(id));
    assert_eq!(world.opens(), [""; 0]);
    let id = world.accept();
    world.receive(id, &format!("nonsense\r\n\r\n{inner}"));
    assert_eq!(statuses(&world.sent(id)), [400]);
    assert!(world.is_shut(id));
}

#[test]
fn heads_that_are_too_long() {
    let mut world = ContentTestBed::new();
    for (text, expected) in [
        (format!("GET /{}", "a".repeat(9000)), 414),
        (format!("GET / HTTP/1.1\r\nX: {}", "a".repeat(17_000)), 431),
    ] {
        let whole = world.accept();
        world.receive(whole, &text);
        assert_eq!(statuses(&world.sent(whole)), [expected]);
        let pieces = world.accept();
        for piece in text.as_bytes().chunks(100) {
            world.receive(pieces, core::str::from_utf8(piece).expect("ascii"));
        }
        assert_eq!(statuses(&world.sent(pieces)), [expected]);
        assert!(world.is_shut(pieces));
    }
}

#[test]
fn connections_are_bounded() {
    let mut world = ContentTestBed::new();
    world.server.config.connections_max = 2;
    let ids: Vec<_> = (0..3).map(|_| world.accept()).collect();
    assert!(world.is_aborted(ids[2]) && !world.is_aborted(ids[1]));
    assert_eq!(world.counter("http_connections_refused"), 1);
    world.peer_closes(ids[0]);
    world.acknowledge_all(ids[0]);
    let id = world.accept();
    world.receive(id, &get("/a.txt"));
    world.finish_opens();
    assert_eq!(statuses(&world.sent(id)), [200]);
    assert_eq!(world.server.connections(), 2);
}

#[test]
fn requests_are_bounded() {
    let mut world = ContentTestBed::new();
    world.server.config.requests_per_connection_max = 3;
    let id = world.accept();
    world.receive(id, &get("/a.txt").repeat(5));
    world.finish_opens();
    let sent = world.sent(id);
    assert_eq!(statuses(&sent), [200, 200, 200]);
    assert_eq!(sent.matches("Connection: close").count(), 1);
    assert!(world.is_shut(id));
}

#[test]
fn stale_and_foreign_notices() {
    let mut world = ContentTestBed::new();
    let old = world.accept();
    world.fail(old, SocketError::Reset);
    world.notify(old);
    let new = world.accept();
    world.notify(old);
    world.receive(new, &get("/a.txt"));
    world.server.handle_file(world.now, &mut world.sockets, FileId(4_000_000));
    world.finish_opens();
    assert_eq!(statuses(&world.sent(new)), [200]);
    assert_eq!(world.counter("http_aborted_peer"), 0, "an idle connection loses nothing");
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
        let mut world = ContentTestBed::new();
        world.put("big", &"0123456789".repeat(10_000));
        let id = world.accept();
        let text: String = paths.iter().map(|p| get(p)).collect();
        let (mut given, mut sent) = (0, String::new());
        for happening in weather {
            match happening {
                PipelineEvent::Arrive(bytes) => {
                    let end = (given + bytes).min(text.len());
                    world.receive(id, &text[given..end]);
                    given = end;
                }
                PipelineEvent::Acknowledge(bytes) => world.acknowledge(id, bytes),
                PipelineEvent::Room(bytes) => { world.set_room(id, bytes); world.notify(id); }
                PipelineEvent::Open => world.finish_opens(),
                PipelineEvent::Pass(millis) => world.advance(Duration::from_millis(millis)),
            }
            sent.push_str(&world.sent(id));
        }
        // Without further faults, everything must end.
        prop_assume!(!world.is_shut(id));
        world.set_room(id, usize::MAX);
        world.receive(id, &text[given..]);
        for _ in 0..4 * paths.len() {
            world.finish_opens();
            world.acknowledge_all(id);
        }
        sent.push_str(&world.sent(id));
        let expected: Vec<_> = paths.iter().map(|path| match path.as_str() {
            "/a.txt" => (200, "content of a".to_string()),
            "/b" => (200, "content of b".to_string()),
            "/big" => (200, "0123456789".repeat(10_000)),
            "/d" => (301, "301 Moved Permanently\n".to_string()),
            _ => (404, "404 Not Found\n".to_string()),
        }).collect();
        prop_assert_eq!(responses(&sent), expected);
        world.peer_closes(id);
        world.acknowledge_all(id);
        prop_assert!(world.is_closed(id));
        world.assert_empty();
    }
}
