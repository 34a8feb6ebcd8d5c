//! Pairs over fake sockets: heads in pieces, retries, aborts at each stage, back-pressure, splices.

mod fake;
mod patterns;
mod termination;

use abi::Refusal;
use base::Duration;
use host::{ConnectError, SocketError, SpliceEnd, SpliceError};
use proptest::prelude::*;
use wire::tls::fatal_alert;

use super::*;
use crate::proxy::config::{
    HealthCheckConfig, InsertedFields, ProxyListener, ProxyMode, ProxyOffloads, ProxyPool,
    ProxyRoute,
};
use crate::proxy::sni::tests::client_hello;
use fake::{FakeSocketId, ProxyTestBed, end, listener, pool, table};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

fn seconds(s: u64) -> Duration {
    Duration::from_secs(s)
}

fn status(text: &str) -> &str {
    assert!(text.starts_with("HTTP/1.1 "), "{text}");
    &text[9..12]
}

/// Asserts that the client gets `code` and then a close that does not destroy the response.
fn assert_answered(bed: &mut ProxyTestBed, client: FakeSocketId, code: &str) {
    assert_eq!(status(&bed.text(client)), code);
    assert!(bed.is_shut(client) && !bed.is_aborted(client));
    bed.receive(client, "what still comes");
    bed.acknowledge(client);
    bed.peer_closes(client);
    assert!(bed.is_closed(client));
    bed.assert_empty();
}

#[test]
fn tcp_connects_at_once_and_relays_both_ways() {
    let mut bed = ProxyTestBed::new(ProxyMode::Tcp, 1);
    let client = bed.accept();
    assert_eq!(bed.opened_to(), 11, "before the client says anything");
    let backend = bed.establish();
    bed.receive(backend, "220 ready\r\n");
    bed.receive(client, "HELO\r\n");
    assert_eq!((bed.text(client), bed.text(backend)), ("220 ready\r\n".into(), "HELO\r\n".into()));
    bed.peer_closes(client);
    assert!(bed.is_shut(backend) && !bed.is_shut(client), "one direction only");
    bed.receive(backend, "bye");
    bed.peer_closes(backend);
    assert_eq!(bed.text(client), "bye");
    assert!(bed.is_closed(client) && bed.is_closed(backend));
    bed.assert_empty();
    bed.assert_moved(&[
        ("proxy_accepted", 1),
        ("proxy_routed", 1),
        ("proxy_connects", 1),
        ("proxy_relayed_bytes_up", 6),
        ("proxy_relayed_bytes_down", 14),
        ("proxy_relayed", 1),
        ("proxy_relays_closed", 1),
    ]);
    let line = "10.77.0.1:40000 [01/Jan/1970:00:00:00 +0000] \"-\" -1 10.77.0.11:8080 6 14 relayed \
                closed 0/0/0/0/0 --";
    assert_eq!(bed.log(), [line]);
}

#[test]
fn http_head_at_any_cut() {
    let text = format!("\r\n{GET}body");
    for cut in 0..=text.len() {
        let mut bed = ProxyTestBed::new(ProxyMode::Http, 1);
        let client = bed.accept();
        bed.receive(client, &text[..cut]);
        bed.receive(client, &text[cut..]);
        assert_eq!(bed.unread(client), 4, "what follows the head waits, cut at {cut}");
        let backend = bed.establish();
        assert_eq!(bed.text(backend), format!("{GET}body"));
        bed.receive(backend, "HTTP/1.1 200 OK\r\n\r\n");
        assert_eq!(status(&bed.text(client)), "200");
        // The next request is not parsed.
        bed.receive(client, "CONNECT x HTTP/9\r\n\r\n");
        assert_eq!(bed.text(backend), "CONNECT x HTTP/9\r\n\r\n");
    }
}

#[test]
fn head_one_byte_at_a_time() {
    let mut bed = ProxyTestBed::new(ProxyMode::Http, 1);
    let client = bed.accept();
    for byte in GET.bytes() {
        bed.receive(client, [byte]);
    }
    let backend = bed.establish();
    assert_eq!(bed.text(backend), GET);
}

#[test]
fn routes_by_host_and_path_with_fields_added() {
    let mut table = table(ProxyMode::Http, 1);
    table.pools.push(ProxyPool { name: "q".into(), backends: vec![end(99, 1).into()], ..pool(0) });
    let route =
        ProxyRoute { host: "b".into(), path: "/x".into(), pool: 1, ..ProxyRoute::default() };
    let insert = InsertedFields { x_forwarded_for: true, ..InsertedFields::default() };
    table.listeners =
        vec![ProxyListener { routes: vec![route], insert, ..listener(ProxyMode::Http) }];
    let mut bed =
        ProxyTestBed::with(ProxyConfig { splice: false, ..ProxyConfig::default() }, table);
    let client = bed.accept();
    bed.receive(client, "GET /x/y HTTP/1.1\r\nHost: B:80\r\n\r\n");
    assert_eq!(bed.opened_to(), 99);
    let backend = bed.establish();
    let expected = "GET /x/y HTTP/1.1\r\nHost: B:80\r\nX-Forwarded-For: 10.77.0.1\r\n\r\n";
    assert_eq!(bed.text(backend), expected);
    let client = bed.accept();
    bed.receive(client, "GET /y HTTP/1.1\r\nHost: b\r\n\r\n");
    assert_eq!(bed.opened_to(), 11);
}

#[test]
fn malformed_and_oversized_heads() {
    for (text, code, counter) in [
        ("GET\r\n\r\n".to_owned(), "400", "proxy_400"),
        (format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(9000)), "414", "proxy_414"),
        (format!("GET / HTTP/1.1\r\nHost: a\r\nB: {}", "b".repeat(17_000)), "431", "proxy_431"),
        ("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n".to_owned(), "405", "proxy_405"),
        ("GET / HTTP/3.0\r\n\r\n".to_owned(), "505", "proxy_505"),
        ("GET / HTTP/1.1\r\nHost: a\r\nExpect: x\r\n\r\n".to_owned(), "417", "proxy_417"),
    ] {
        let mut bed = ProxyTestBed::new(ProxyMode::Http, 1);
        let client = bed.accept();
        bed.receive(client, &text);
        assert!(bed.sockets.app_state.opened.is_empty());
        assert_answered(&mut bed, client, code);
        let mut moved = base::counters::collect_counters(|f| bed.server.shared.counters.visit(f));
        let is_status = |name: &str| name.starts_with("proxy_4") || name.starts_with("proxy_5");
        moved.retain(|(name, value)| *value > 0 && is_status(name));
        assert_eq!(moved, [(counter, 1)]);
    }
    // No more is gathered than shows that the head is too long.
    let mut bed = ProxyTestBed::new(ProxyMode::Http, 1);
    let client = bed.accept();
    bed.receive(client, format!("GET / HTTP/1.1\r\nHost: a\r\nB: {}", "b".repeat(30_000)));
    let discarded = 28 + 30_000 - (16 * 1024 + 1);
    bed.assert_moved(&[
        ("proxy_accepted", 1),
        ("proxy_431", 1),
        ("proxy_discarded_bytes", discarded),
    ]);
    // A response to HEAD has no content.
    let mut bed = ProxyTestBed::new(ProxyMode::Http, 0);
    let client = bed.accept();
    bed.receive(client, GET.replace("GET", "HEAD"));
    assert!(bed.text(client).ends_with("\r\n\r\n"));
}

#[test]
fn slow_heads() {
    let mut bed = ProxyTestBed::new(ProxyMode::Http, 1);
    let client = bed.accept();
    bed.receive(client, "GET / HT");
    bed.advance(seconds(9));
    bed.receive(client, "TP/1.1\r\n");
    assert_eq!(bed.text(client), "");
    bed.advance(seconds(1));
    assert_answered(&mut bed, client, "408");
    // A client that sends nothing gets no response.
    let client = bed.accept();
    bed.advance(seconds(10));
    assert!(bed.is_closed(client));
    assert_eq!(bed.text(client), "");
    bed.assert_empty();
    bed.assert_moved(&[
        ("proxy_accepted", 2),
        ("proxy_timeouts_head", 2),
        ("proxy_408", 1),
        ("proxy_discarded_bytes", 16),
    ]);
}

#[test]
fn clients_that_leave_early() {
    for stage in 0..3 {
        let mut bed = ProxyTestBed::new(ProxyMode::Http, 1);
        let client = bed.accept();
        if stage > 0 {
            bed.receive(client, &GET[..GET.len() - stage % 2]);
        }
        match stage {
            0 => bed.peer_closes(client),
            1 => bed.fail(client, SocketError::Reset),
            // While the connection to the backend is in progress.
            _ => bed.fail(client, SocketError::Reset),
        }
        bed.assert_empty();
    }
    // Half-closed while the connection to the backend is in progress: the request is still
    // forwarded.
    let mut bed = ProxyTestBed::new(ProxyMode::Http, 1);
    let client = bed.accept();
    bed.receive(client, GET);
    bed.peer_closes(client);
    let backend = bed.establish();
    assert_eq!(bed.text(backend), GET);
    assert!(bed.is_shut(backend));
    bed.receive(backend, "HTTP/1.1 200 OK\r\n\r\n");
    bed.peer_closes(backend);
    assert_eq!(status(&bed.text(client)), "200");
    bed.assert_empty();
}

#[test]
fn retries_before_the_first_byte() {
    let mut bed = ProxyTestBed::new(ProxyMode::Http, 3);
    let client = bed.accept();
    bed.receive(client, GET);
    assert_eq!(bed.opened_to(), 11);
    bed.fail(bed.opened(), SocketError::Refused);
    assert_eq!(bed.opened_to(), 12);
    bed.advance(seconds(4));
    assert_eq!(bed.opened_to(), 13, "after a time-out");
    let backend = bed.establish();
    assert_eq!(bed.text(backend), GET);
    bed.assert_moved(&[
        ("proxy_accepted", 1),
        ("proxy_routed", 1),
        ("proxy_connects", 3),
        ("proxy_connects_refused", 1),
        ("proxy_connects_timed_out", 1),
        ("proxy_retries", 2),
        ("proxy_relayed", 1),
    ]);
}

#[test]
fn no_backend_available() {
    // All backends refuse.
    let mut bed = ProxyTestBed::new(ProxyMode::Http, 2);
    let client = bed.accept();
    bed.receive(client, GET);
    bed.fail(bed.opened(), SocketError::Refused);
    bed.fail(bed.opened(), SocketError::Refused);
    assert_answered(&mut bed, client, "502");
    // The last backend does not answer; no more are tried than allowed.
    let mut table = table(ProxyMode::Http, 5);
    table.limits.retries = 1;
    let mut bed = ProxyTestBed::with(ProxyConfig::default(), table);
    let client = bed.accept();
    bed.receive(client, GET);
    bed.fail(bed.opened(), SocketError::Refused);
    bed.advance(seconds(4));
    assert_eq!(bed.sockets.app_state.opened.len(), 2);
    assert_answered(&mut bed, client, "504");
    // The pool is empty.
    let mut bed = ProxyTestBed::new(ProxyMode::Http, 0);
    let client = bed.accept();
    bed.receive(client, GET);
    assert_answered(&mut bed, client, "503");
    // No local port is free.
    let mut bed = ProxyTestBed::new(ProxyMode::Http, 2);
    bed.sockets.app_state.connect_error = Some(ConnectError::NoPort);
    let client = bed.accept();
    bed.receive(client, GET);
    assert_answered(&mut bed, client, "503");
    bed.assert_moved(&[
        ("proxy_accepted", 1),
        ("proxy_routed", 1),
        ("proxy_503", 1),
        ("proxy_connects", 1),
        ("proxy_connects_local", 1),
        ("proxy_discarded_bytes", 16),
    ]);
    // TCP mode reports all of this with a reset.
    let mut bed = ProxyTestBed::new(ProxyMode::Tcp, 1);
    let client = bed.accept();
    bed.fail(bed.opened(), SocketError::Unreachable);
    assert!(bed.is_aborted(client));
    bed.assert_empty();
}

#[test]
fn limits_of_clients_and_backends() {
    let mut table = table(ProxyMode::Http, 1);
    table.limits.connections_max = 2;
    table.pools = vec![ProxyPool { connections_max: 1, ..pool(1) }];
    let mut bed =
        ProxyTestBed::with(ProxyConfig { splice: false, ..ProxyConfig::default() }, table);
    let first = bed.accept();
    bed.receive(first, GET);
    let second = bed.accept();
    bed.receive(second, GET);
    assert_eq!(status(&bed.text(second)), "503");
    let third = bed.accept();
    assert!(bed.is_aborted(third));
    let count = |name| testkit::count(name, |f| bed.server.shared.counters.visit(f));
    assert_eq!((count("proxy_refused_full"), count("proxy_no_backend_room")), (1, 1));
}

#[test]
fn backends_that_fail_before_and_after_they_answer() {
    for close in [true, false] {
        let fails = |bed: &mut ProxyTestBed, backend| {
            if close { bed.peer_closes(backend) } else { bed.fail(backend, SocketError::Reset) }
        };
        let mut bed = ProxyTestBed::new(ProxyMode::Http, 1);
        let client = bed.accept();
        bed.receive(client, GET);
        let backend = bed.establish();
        fails(&mut bed, backend);
        assert_answered(&mut bed, client, "502");
        let mut bed = ProxyTestBed::new(ProxyMode::Http, 1);
        let client = bed.accept();
        bed.receive(client, GET);
        let backend = bed.establish();
        bed.receive(backend, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart");
        fails(&mut bed, backend);
        let text = bed.text(client);
        assert!(text.ends_with("part"), "nothing is added: {text}");
        assert_eq!((bed.is_shut(client), bed.is_aborted(client)), (close, !close));
    }
    // TCP mode passes on a FIN as a FIN.
    let mut bed = ProxyTestBed::new(ProxyMode::Tcp, 1);
    let client = bed.accept();
    let backend = bed.establish();
    bed.peer_closes(backend);
    assert!(bed.is_shut(client) && !bed.is_aborted(client));
}

#[test]
fn hanging_backends_and_idle_connections() {
    let mut bed = ProxyTestBed::new(ProxyMode::Http, 1);
    let client = bed.accept();
    bed.receive(client, GET);
    let backend = bed.establish();
    bed.acknowledge(backend);
    bed.advance(seconds(299));
    assert_eq!(bed.text(client), "");
    bed.advance(seconds(301));
    assert!(bed.is_aborted(backend));
    assert_eq!(status(&bed.text(client)), "504");
    // A backend that has begun to respond: a reset.
    let mut bed = ProxyTestBed::new(ProxyMode::Http, 1);
    let client = bed.accept();
    bed.receive(client, GET);
    let backend = bed.establish();
    bed.receive(backend, "HTTP/1.1 200 OK\r\n\r\n");
    for _ in 0..3 {
        bed.advance(seconds(200));
        bed.receive(backend, "more");
        assert!(!bed.is_aborted(client));
    }
    // A reader that still acknowledges is not idle.
    bed.advance(seconds(299));
    bed.acknowledge(client);
    bed.advance(seconds(299));
    assert!(!bed.is_aborted(client));
    bed.advance(seconds(400));
    assert!(bed.is_aborted(client) && bed.is_aborted(backend));
    bed.assert_empty();
}

/// RFC 9112 section 9.6: a backend that has responded and closed resets its connection when the
/// client sends more. The client still gets the whole response.
#[test]
fn late_data_of_a_client_does_not_cut_the_response_off() {
    for mode in [ProxyMode::Http, ProxyMode::Tcp] {
        let mut bed = ProxyTestBed::new(mode, 1);
        let client = bed.accept();
        bed.receive(client, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let backend = bed.establish();
        bed.receive(backend, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        bed.peer_closes(backend);
        assert!(bed.text(client).ends_with("ok") && bed.is_shut(client));
        bed.sent(backend);
        bed.receive(client, "late");
        assert_eq!(bed.text(backend), "late");
        bed.fail(backend, SocketError::Reset);
        assert_eq!(bed.lingers(client), mode == ProxyMode::Http);
        assert_eq!(
            bed.is_aborted(client),
            mode == ProxyMode::Tcp,
            "any bytes: resets are passed on"
        );
        bed.assert_empty();
    }
}

#[test]
fn resets_are_passed_on() {
    let mut bed = ProxyTestBed::new(ProxyMode::Tcp, 1);
    let client = bed.accept();
    let backend = bed.establish();
    bed.fail(client, SocketError::Reset);
    assert!(bed.is_aborted(backend));
    bed.assert_empty();
    let client = bed.accept();
    let backend = bed.establish();
    bed.fail(backend, SocketError::TimedOut);
    assert!(bed.is_aborted(client));
    bed.assert_empty();
    bed.assert_moved(&[
        ("proxy_accepted", 2),
        ("proxy_routed", 2),
        ("proxy_connects", 2),
        ("proxy_relayed", 2),
        ("proxy_relays_reset_by_client", 1),
        ("proxy_relays_reset_by_backend", 1),
    ]);
}

#[test]
fn back_pressure_is_bounded() {
    let mut bed = ProxyTestBed::new(ProxyMode::Tcp, 1);
    let client = bed.accept();
    let backend = bed.establish();
    bed.set_room(client, 3000);
    bed.receive(backend, vec![7; 10_000]);
    assert_eq!((bed.sent(client).len(), bed.unread(backend)), (3000, 7000));
    bed.peer_closes(backend);
    assert!(!bed.is_shut(client), "the end comes after the bytes");
    for _ in 0..2 {
        bed.acknowledge(client);
        assert_eq!(bed.sent(client), vec![7; 3000]);
    }
    assert!(!bed.is_shut(client));
    bed.acknowledge(client);
    assert_eq!((bed.sent(client).len(), bed.is_shut(client)), (1000, true));
}

#[test]
fn a_head_that_does_not_fit_waits() {
    let mut bed = ProxyTestBed::new(ProxyMode::Http, 1);
    let client = bed.accept();
    bed.receive(client, format!("{GET}body"));
    let backend = bed.opened();
    bed.set_room(backend, 10);
    bed.establish();
    let mut all = bed.text(backend);
    while all.len() < GET.len() + 4 {
        bed.acknowledge(backend);
        let more = bed.text(backend);
        assert!((1..=10).contains(&more.len()));
        all.push_str(&more);
    }
    assert_eq!(all, format!("{GET}body"));
}

#[test]
fn tls_by_name() {
    let mut table = table(ProxyMode::Tls, 1);
    table.pools.push(ProxyPool {
        name: "q".into(),
        backends: vec![end(99, 443).into()],
        ..pool(0)
    });
    let route = ProxyRoute { host: "*.b.example".into(), pool: 1, ..ProxyRoute::default() };
    table.listeners = vec![ProxyListener { routes: vec![route], ..listener(ProxyMode::Tls) }];
    let config = ProxyConfig { splice: false, ..ProxyConfig::default() };
    for record in [3, 1000] {
        for cut in [1, 4, 5, 6, 40, 70] {
            let mut bed = ProxyTestBed::with(config.clone(), table.clone());
            let client = bed.accept();
            let hello = client_hello(Some("x.b.example"), record);
            bed.receive(client, &hello[..cut]);
            assert!(bed.sockets.app_state.opened.is_empty());
            bed.receive(client, &hello[cut..]);
            assert_eq!(bed.opened_to(), 99);
            let backend = bed.establish();
            assert_eq!(bed.sent(backend), hello, "untouched");
        }
    }
    let mut bed = ProxyTestBed::with(config.clone(), table.clone());
    let client = bed.accept();
    bed.receive(client, client_hello(None, 1000));
    assert_eq!(bed.opened_to(), 11, "no name: the default");
    // Without a default: unrecognized_name.
    table.listeners[0].default = None;
    for name in [None, Some("c.example")] {
        let mut bed = ProxyTestBed::with(config.clone(), table.clone());
        let client = bed.accept();
        bed.receive(client, client_hello(name, 1000));
        assert_eq!(bed.sent(client), fatal_alert(112));
        assert!(bed.is_shut(client));
    }
}

#[test]
fn malformed_client_hello_gets_an_alert() {
    let mut bed = ProxyTestBed::new(ProxyMode::Tls, 1);
    let client = bed.accept();
    bed.receive(client, GET);
    assert_eq!(bed.sent(client), fatal_alert(50));
    // A ClientHello without an end: the buffer is bounded.
    let mut bed = ProxyTestBed::new(ProxyMode::Tls, 1);
    let client = bed.accept();
    let record = [&[22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff][..], &[0; 0x3ffc]].concat();
    bed.receive(client, &record[..16_383]);
    assert!(bed.sent(client).is_empty());
    bed.receive(client, &record[16_383..]);
    assert_eq!(bed.sent(client), fatal_alert(50));
    // No backend is up.
    let mut bed = ProxyTestBed::new(ProxyMode::Tls, 0);
    let client = bed.accept();
    bed.receive(client, client_hello(None, 1000));
    assert_eq!(bed.sent(client), fatal_alert(80));
}

#[test]
fn proxy_protocol_comes_first() {
    let mut table = table(ProxyMode::Tcp, 1);
    table.pools = vec![ProxyPool { proxy_protocol: true, ..pool(1) }];
    let mut bed =
        ProxyTestBed::with(ProxyConfig { splice: false, ..ProxyConfig::default() }, table);
    let client = bed.accept();
    bed.receive(client, "x");
    let backend = bed.establish();
    let expected = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x0a\x4d\0\x01\x0a\x4d\0\x02\x9c\x40\0\x50x";
    assert_eq!(bed.sent(backend), expected);
}

#[test]
fn spliced_to_the_end() {
    let mut bed = ProxyTestBed::with(ProxyConfig::default(), table(ProxyMode::Http, 1));
    let client = bed.accept();
    bed.receive(client, format!("{GET}body"));
    let backend = bed.establish();
    assert_eq!(bed.text(backend), GET, "the head, and nothing more");
    assert_eq!(bed.sockets.app_state.spliced, [(client, backend)]);
    // The sockets are the host's until it has decided.
    bed.notify(client);
    bed.receive(backend, "early");
    assert_eq!((bed.unread(client), bed.unread(backend)), (4, 5));
    bed.spliced();
    // The indices are used again while the splice lasts.
    let other = bed.accept();
    assert_eq!(other.index, client.index);
    bed.peer_closes(other);
    bed.advance(seconds(10_000));
    assert_eq!(bed.server.connections(), 1);
    bed.splice_closed([4, 1000], SpliceEnd::Closed);
    bed.assert_empty();
    bed.assert_moved(&[
        ("proxy_accepted", 2),
        ("proxy_routed", 1),
        ("proxy_ended_early", 1),
        ("proxy_connects", 1),
        ("proxy_spliced_bytes_up", 4),
        ("proxy_spliced_bytes_down", 1000),
        ("proxy_spliced", 1),
        ("proxy_splices_closed", 1),
    ]);
    let log = bed.log();
    let line = log.last().expect("a line");
    assert!(
        line.contains(
            "\"GET / HTTP/1.1\" -1 10.77.0.11:8080 4 1000 spliced closed 0/0/0/-1/10000000 --"
        ),
        "{line}"
    );
}

/// AccelTCP section 1: flows whose responses the host must see are not offloaded.
#[test]
fn routes_without_offloads() {
    let offloads = ProxyOffloads { splice: false, teardown: false, ..ProxyOffloads::ALL };
    let route = ProxyRoute { host: "b".into(), offloads, ..ProxyRoute::default() };
    let mut table = table(ProxyMode::Http, 1);
    table.listeners[0].routes = vec![route];
    let mut bed = ProxyTestBed::with(ProxyConfig::default(), table);
    let client = bed.accept();
    bed.receive(client, "GET / HTTP/1.1\r\nHost: b\r\n\r\n");
    let backend = bed.establish();
    bed.receive(backend, "HTTP/1.1 200 OK\r\n\r\n");
    assert_eq!(status(&bed.text(client)), "200");
    assert_eq!(bed.sockets.app_state.spliced, []);
    assert_eq!(bed.sockets.app_state.teardown_kept, [client, backend]);
    let other = bed.accept();
    bed.receive(other, GET);
    let backend = bed.establish();
    assert_eq!(bed.sockets.app_state.spliced, [(other, backend)]);
    assert_eq!(bed.sockets.app_state.teardown_kept.len(), 2);
    bed.assert_moved(&[
        ("proxy_accepted", 2),
        ("proxy_routed", 2),
        ("proxy_connects", 2),
        ("proxy_relayed_bytes_down", 19),
        ("proxy_relayed", 1),
    ]);
}

#[test]
fn refused_splices_are_relayed_here() {
    let mut bed = ProxyTestBed::with(ProxyConfig::default(), table(ProxyMode::Http, 1));
    let client = bed.accept();
    bed.receive(client, format!("{GET}body"));
    let backend = bed.establish();
    bed.receive(backend, "HTTP/1.1 200 OK\r\n\r\n");
    bed.splice_refused(Refusal::TableFull);
    assert_eq!(bed.text(backend), format!("{GET}body"));
    assert_eq!(status(&bed.text(client)), "200");
    bed.peer_closes(backend);
    bed.peer_closes(client);
    bed.assert_empty();
    // Refused at once.
    bed.sockets.app_state.splice = Some(SpliceError::Refused(Refusal::NotSupported));
    let client = bed.accept();
    bed.receive(client, GET);
    let backend = bed.establish();
    bed.receive(backend, "HTTP/1.1 200 OK\r\n\r\n");
    assert_eq!(status(&bed.text(client)), "200");
    bed.fail(client, SocketError::Reset);
    bed.sockets.app_state.splice = Some(SpliceError::NotConnected(SocketError::Closed));
    let client = bed.accept();
    bed.receive(client, GET);
    bed.establish();
    bed.fail(client, SocketError::Reset);
    bed.assert_empty();
    bed.assert_moved(&[
        ("proxy_accepted", 3),
        ("proxy_routed", 3),
        ("proxy_connects", 3),
        ("proxy_relayed_bytes_up", 4),
        ("proxy_relayed_bytes_down", 38),
        ("proxy_relayed", 3),
        ("proxy_splice_refused_not_connected", 1),
        ("proxy_splice_refused_not_supported", 1),
        ("proxy_splice_refused_table_full", 1),
        ("proxy_relays_closed", 1),
        ("proxy_relays_reset_by_client", 2),
    ]);
}

/// The host asks the device once all bytes are acknowledged; a vanished peer acknowledges nothing.
#[test]
fn splices_that_never_begin() {
    let mut bed = ProxyTestBed::with(ProxyConfig::default(), table(ProxyMode::Http, 1));
    let client = bed.accept();
    bed.receive(client, GET);
    let backend = bed.establish();
    assert_eq!(bed.sockets.app_state.spliced, [(client, backend)]);
    bed.advance(seconds(299));
    assert!(!bed.is_aborted(client) && !bed.is_aborted(backend));
    bed.advance(seconds(301));
    assert!(bed.is_aborted(client) && bed.is_aborted(backend));
    bed.assert_empty();
}

#[test]
fn splices_that_do_not_end_well() {
    for (end, counter) in [
        (SpliceEnd::Reset(0), "proxy_splices_reset"),
        (SpliceEnd::IdleTimeout, "proxy_splices_idle"),
        (SpliceEnd::Unspliced, "proxy_splices_lost"),
    ] {
        let mut bed = ProxyTestBed::with(ProxyConfig::default(), table(ProxyMode::Tcp, 1));
        bed.accept();
        bed.establish();
        bed.spliced();
        bed.splice_closed([0, 0], end);
        bed.assert_empty();
        bed.assert_moved(&[
            ("proxy_accepted", 1),
            ("proxy_routed", 1),
            ("proxy_connects", 1),
            ("proxy_spliced", 1),
            (counter, 1),
        ]);
    }
}

/// Three consecutive failures take a backend down; without checks it is tried again later.
#[test]
fn passive_health() {
    let mut bed = ProxyTestBed::new(ProxyMode::Http, 1);
    for _ in 0..3 {
        let client = bed.accept();
        bed.receive(client, GET);
        bed.fail(bed.opened(), SocketError::Refused);
        assert_answered(&mut bed, client, "502");
    }
    let client = bed.accept();
    bed.receive(client, GET);
    assert_eq!(bed.sockets.app_state.opened.len(), 3, "not tried");
    assert_answered_later(&mut bed, client, "503");
    bed.advance(HealthCheckConfig::DOWN_TIME);
    let client = bed.accept();
    bed.receive(client, GET);
    assert_eq!(bed.sockets.app_state.opened.len(), 4);
    let log = bed.log();
    let remarks: Vec<&String> = log.iter().filter(|l| l.starts_with('#')).collect();
    assert_eq!(
        remarks,
        [
            "# [01/Jan/1970:00:00:00 +0000] backend 10.77.0.11:8080 of p is down",
            "# [01/Jan/1970:00:00:10 +0000] backend 10.77.0.11:8080 of p is up"
        ]
    );
}

/// Like `assert_answered`, but a deadline of a backend may remain.
fn assert_answered_later(bed: &mut ProxyTestBed, client: FakeSocketId, code: &str) {
    assert_eq!(status(&bed.text(client)), code);
    bed.acknowledge(client);
    bed.peer_closes(client);
    assert!(bed.is_closed(client));
}

fn checked(path: &str) -> ProxyTestBed {
    let mut table = table(ProxyMode::Http, 1);
    table.pools[0].check =
        HealthCheckConfig { path: path.to_owned(), ..HealthCheckConfig::default() };
    ProxyTestBed::with(ProxyConfig { splice: false, ..ProxyConfig::default() }, table)
}

/// Waits for the next check to begin; returns its socket.
fn next_check(bed: &mut ProxyTestBed) -> FakeSocketId {
    let before = bed.sockets.app_state.opened.len();
    for _ in 0..30 {
        if bed.sockets.app_state.opened.len() > before {
            return bed.opened();
        }
        bed.advance(Duration::from_millis(100));
    }
    panic!("no check in three seconds");
}

#[test]
fn checks_by_connection() {
    let mut bed = checked("");
    for _ in 0..3 {
        let id = next_check(&mut bed);
        bed.fail(id, SocketError::Refused);
        assert!(bed.is_aborted(id));
    }
    assert_eq!(bed.server.shared.backends.count(), (1, 0));
    let client = bed.accept();
    bed.receive(client, GET);
    assert_answered_later(&mut bed, client, "503");
    for _ in 0..2 {
        assert_eq!(bed.server.shared.backends.count(), (1, 0));
        let id = next_check(&mut bed);
        bed.establish();
        assert!(bed.is_aborted(id), "no TIME-WAIT for checks");
    }
    assert_eq!(bed.server.shared.backends.count(), (1, 1));
    // A check that takes too long has failed.
    let id = next_check(&mut bed);
    bed.advance(seconds(2));
    assert!(bed.is_aborted(id));
}

#[test]
fn checks_by_request() {
    let mut bed = checked("/health");
    for (answer, good, bad) in [
        ("HTTP/1.1 200 OK\r\n", 1, 0),
        ("HTTP/1.0 302 Found\r\n", 2, 0),
        ("HTTP/1.1 500 Oh\r\n", 2, 1),
        ("HTTP/1.1 100 Continue", 2, 2),
        ("SSH-2.0-OpenSSH_9", 2, 3),
    ] {
        let id = next_check(&mut bed);
        bed.establish();
        let expected = "GET /health HTTP/1.1\r\nHost: 10.77.0.11:8080\r\n\
                        User-Agent: outboard-check\r\nConnection: close\r\n\r\n";
        assert_eq!(bed.text(id), expected);
        bed.receive(id, &answer[..5]);
        assert!(!bed.is_aborted(id));
        bed.receive(id, &answer[5..]);
        assert!(bed.is_aborted(id));
        bed.assert_moved(
            &[
                ("proxy_checks_good", good),
                ("proxy_checks_bad", bad),
                ("proxy_backends_went_down", u64::from(bad == 3)),
            ]
            .into_iter()
            .filter(|(_, value)| *value > 0)
            .collect::<Vec<_>>(),
        );
    }
}

#[test]
fn a_new_table_keeps_connections() {
    let mut bed = ProxyTestBed::new(ProxyMode::Http, 1);
    let old = bed.accept();
    bed.receive(old, GET);
    let backend = bed.establish();
    let waiting = bed.accept();
    bed.receive(waiting, "GET / HTTP/1.1\r\n");
    let connecting = bed.accept();
    bed.receive(connecting, GET);
    // Backend 11 is removed, 50 is added.
    let mut next = table(ProxyMode::Http, 0);
    next.pools[0].backends = vec![end(50, 8080).into()];
    bed.server.apply(bed.now, next);
    bed.receive(backend, "HTTP/1.1 200 OK\r\n\r\n");
    assert_eq!(status(&bed.text(old)), "200", "existing connections continue");
    bed.receive(waiting, "Host: a\r\n\r\n");
    assert_eq!(bed.opened_to(), 50, "what is chosen from now on is new");
    bed.establish();
    // A retry goes to the new backend too.
    let first = bed.sockets.app_state.opened[1];
    bed.fail(first, SocketError::Refused);
    assert_eq!((bed.opened_to(), bed.sockets.app_state.opened.len()), (50, 4));
    // The removed backend is dropped when its last connection ends.
    assert_eq!(bed.server.shared.backends.get(0).map(|b| b.connections), Some(1));
    bed.fail(old, SocketError::Reset);
    assert!(bed.server.shared.backends.get(0).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Bytes in any pieces and with any room in the buffers arrive as they were sent, and so do
    /// both FINs.
    #[test]
    fn bytes_arrive(
        up in proptest::collection::vec(1_usize..3000, 0..12),
        down in proptest::collection::vec(1_usize..3000, 0..12),
        room in 1_usize..5000,
        turns in proptest::collection::vec(0_u8..4, 1..60),
    ) {
        let mut bed = ProxyTestBed::new(ProxyMode::Tcp, 1);
        let client = bed.accept();
        let backend = bed.establish();
        bed.set_room(client, room);
        bed.set_room(backend, room);
        let mut sides = [(client, up, 0_u8, Vec::new()), (backend, down, 1, Vec::new())];
        let mut got = [Vec::new(), Vec::new()];
        // First in random order; then everything, until both sides have closed.
        let rest = (0..4_u8).cycle().take(4 * 20_000);
        for turn in turns.into_iter().chain(rest) {
            if bed.is_closed(client) {
                break;
            }
            let side = usize::from(turn % 2);
            let (id, left, seed, all) = &mut sides[side];
            if turn >= 2 {
                got[side].extend(bed.sent(*id));
                bed.acknowledge(*id);
            } else if let Some(len) = left.pop() {
                let bytes: Vec<u8> = (0..len).map(|n| *seed ^ n.to_le_bytes()[0]).collect();
                all.extend_from_slice(&bytes);
                bed.receive(*id, bytes);
            } else {
                bed.peer_closes(*id);
            }
        }
        prop_assert!(bed.is_closed(client) && bed.is_closed(backend), "it never ended");
        for (side, (id, ..)) in sides.iter().enumerate() {
            got[side].extend(bed.sent(*id));
        }
        prop_assert_eq!(&got[0], &sides[1].3);
        prop_assert_eq!(&got[1], &sides[0].3);
        bed.assert_empty();
    }
}

/// At the end of the program every client is logged, with the stage that it had reached. No further
/// connections are made. A spliced pair is logged once the device has reported its bytes.
#[test]
fn drained_clients_are_logged() {
    let mut bed = ProxyTestBed::new(ProxyMode::Http, 1);
    let waiting = bed.accept();
    bed.receive(waiting, "GET / HT");
    let relayed = bed.accept();
    bed.receive(relayed, GET);
    let backend = bed.establish();
    bed.advance(Duration::from_millis(5));
    bed.receive(backend, "HTTP/1.");
    bed.receive(backend, "1 203 X\r\n");
    bed.server.end(bed.now);
    bed.fail(relayed, SocketError::Closed);
    bed.receive(waiting, "TP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(bed.sockets.app_state.opened.len(), 1, "no backend is connected to again");
    let ends: Vec<_> = bed.log().into_iter().map(|line| line[45..].to_owned()).collect();
    assert_eq!(
        ends,
        [
            "\"-\" -1 - 0 0 answered drained -1/-1/-1/-1/5 KR",
            "\"GET / HTTP/1.1\" 203 10.77.0.11:8080 0 16 relayed drained 0/0/0/5/5 KD"
        ]
    );
    let mut bed = ProxyTestBed::with(ProxyConfig::default(), table(ProxyMode::Http, 1));
    let client = bed.accept();
    bed.receive(client, GET);
    bed.establish();
    bed.spliced();
    bed.server.end(bed.now);
    assert_eq!(bed.log(), [""; 0]);
    bed.splice_closed([1, 2], SpliceEnd::Unspliced);
    assert!(bed.log()[0].contains(" 1 2 spliced drained 0/0/0/-1/0 KD"));
}
