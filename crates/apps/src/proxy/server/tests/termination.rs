//! The termination state in the access log, for each way in which a pair can end.

use super::*;

/// Returns the letters of the last line about a client.
fn letters(bed: &mut ProxyTestBed) -> String {
    let log = bed.log();
    let line = log.iter().rfind(|line| !line.starts_with('#')).expect("a line");
    line.rsplit(' ').next().expect("a word").to_owned()
}

/// Returns a pair whose head, if the mode has one, has been forwarded.
fn relayed(mode: ProxyMode) -> (ProxyTestBed, FakeSocketId, FakeSocketId) {
    let mut bed = ProxyTestBed::new(mode, 1);
    let client = bed.accept();
    if mode == ProxyMode::Http {
        bed.receive(client, GET);
    }
    let backend = bed.establish();
    (bed, client, backend)
}

/// Acknowledges a response of the proxy's own, and closes.
fn leave(bed: &mut ProxyTestBed, client: FakeSocketId) {
    bed.acknowledge(client);
    bed.peer_closes(client);
}

#[test]
fn before_there_is_a_backend() {
    type Ends = fn(&mut ProxyTestBed, FakeSocketId);
    let cases: [(&str, Ends); 8] = [
        ("CR", |bed, client| bed.peer_closes(client)),
        ("CR", |bed, client| bed.fail(client, SocketError::Reset)),
        ("cR", |bed, _| bed.advance(seconds(10))),
        ("PR", |bed, client| {
            bed.receive(client, "GET / HTTP/1.1\r\nHost: a b\r\n\r\n");
            leave(bed, client);
        }),
        ("CC", |bed, client| {
            bed.receive(client, GET);
            bed.fail(client, SocketError::Reset);
        }),
        ("SC", |bed, client| {
            bed.receive(client, GET);
            bed.fail(bed.opened(), SocketError::Refused);
            leave(bed, client);
        }),
        ("sC", |bed, client| {
            bed.receive(client, GET);
            bed.advance(seconds(4));
            leave(bed, client);
        }),
        ("RC", |bed, client| {
            bed.sockets.app_state.connect_error = Some(ConnectError::NoPort);
            bed.receive(client, GET);
            leave(bed, client);
        }),
    ];
    for (expected, ends) in cases {
        let mut bed = ProxyTestBed::new(ProxyMode::Http, 1);
        let client = bed.accept();
        ends(&mut bed, client);
        assert_eq!(letters(&mut bed), expected);
        bed.assert_empty();
    }
}

/// A client that resets the connection after a response did not cause its end.
#[test]
fn the_first_cause_counts() {
    let mut bed = ProxyTestBed::new(ProxyMode::Http, 0);
    let client = bed.accept();
    bed.receive(client, GET);
    bed.fail(client, SocketError::Reset);
    assert_eq!(letters(&mut bed), "SC");
}

#[test]
fn relayed_by_the_host() {
    type Ends = fn(&mut ProxyTestBed, FakeSocketId, FakeSocketId);
    let cases: [(&str, ProxyMode, Ends); 8] = [
        ("--", ProxyMode::Http, |bed, client, backend| {
            bed.receive(backend, "HTTP/1.1 200 OK\r\n\r\n");
            bed.peer_closes(backend);
            bed.peer_closes(client);
        }),
        ("CH", ProxyMode::Http, |bed, client, _| bed.fail(client, SocketError::Reset)),
        ("CD", ProxyMode::Tcp, |bed, client, _| bed.fail(client, SocketError::Reset)),
        ("SH", ProxyMode::Http, |bed, client, backend| {
            bed.peer_closes(backend);
            leave(bed, client);
        }),
        ("SD", ProxyMode::Http, |bed, _, backend| {
            bed.receive(backend, "HTTP/1.1 200 OK\r\n\r\n");
            bed.fail(backend, SocketError::Reset);
        }),
        ("SD", ProxyMode::Tcp, |bed, _, backend| bed.fail(backend, SocketError::Reset)),
        ("sH", ProxyMode::Http, |bed, _, backend| {
            bed.acknowledge(backend);
            bed.advance(seconds(601));
        }),
        ("cD", ProxyMode::Tcp, |bed, _, _| bed.advance(seconds(601))),
    ];
    for (expected, mode, ends) in cases {
        let (mut bed, client, backend) = relayed(mode);
        ends(&mut bed, client, backend);
        assert_eq!(letters(&mut bed), expected);
        bed.assert_empty();
    }
}

#[test]
fn relayed_by_the_device() {
    for (expected, mode, end, bytes) in [
        ("--", ProxyMode::Http, SpliceEnd::Closed, [0, 100]),
        ("--", ProxyMode::Tcp, SpliceEnd::Closed, [0, 0]),
        // As documented in docs/proxy.md: the client sees what the backend did.
        ("SH", ProxyMode::Http, SpliceEnd::Closed, [0, 0]),
        ("SH", ProxyMode::Http, SpliceEnd::Reset(1), [0, 0]),
        ("SD", ProxyMode::Http, SpliceEnd::Reset(1), [0, 1]),
        ("CD", ProxyMode::Tcp, SpliceEnd::Reset(0), [0, 0]),
        ("cD", ProxyMode::Tcp, SpliceEnd::IdleTimeout, [5, 5]),
        ("KD", ProxyMode::Tcp, SpliceEnd::Unspliced, [5, 5]),
    ] {
        let mut bed = ProxyTestBed::with(ProxyConfig::default(), table(mode, 1));
        let client = bed.accept();
        if mode == ProxyMode::Http {
            bed.receive(client, GET);
        }
        bed.establish();
        bed.spliced();
        bed.splice_closed(bytes, end);
        let line = bed.log().pop().expect("a line");
        assert!(line.ends_with(expected) && line.contains("\" -1 "), "{end:?}: {line}");
        bed.assert_empty();
    }
}
