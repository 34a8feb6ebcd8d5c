//! The termination state in the access log, for each way in which a pair can end.

use super::*;

/// Returns the letters of the last line about a client.
fn letters(world: &mut ProxyTestBed) -> String {
    let log = world.log();
    let line = log.iter().rfind(|line| !line.starts_with('#')).expect("a line");
    line.rsplit(' ').next().expect("a word").to_owned()
}

/// Returns a pair whose head, if the mode has one, has been forwarded.
fn relayed(mode: ProxyMode) -> (ProxyTestBed, FakeSocketId, FakeSocketId) {
    let mut world = ProxyTestBed::new(mode, 1);
    let client = world.accept();
    if mode == ProxyMode::Http {
        world.receive(client, GET);
    }
    let backend = world.establish();
    (world, client, backend)
}

/// Acknowledges a response of the proxy's own, and closes.
fn leave(world: &mut ProxyTestBed, client: FakeSocketId) {
    world.acknowledge(client);
    world.peer_closes(client);
}

#[test]
fn before_there_is_a_backend() {
    type Ends = fn(&mut ProxyTestBed, FakeSocketId);
    let cases: [(&str, Ends); 8] = [
        ("CR", |world, client| world.peer_closes(client)),
        ("CR", |world, client| world.fail(client, SocketError::Reset)),
        ("cR", |world, _| world.advance(seconds(10))),
        ("PR", |world, client| {
            world.receive(client, "GET / HTTP/1.1\r\nHost: a b\r\n\r\n");
            leave(world, client);
        }),
        ("CC", |world, client| {
            world.receive(client, GET);
            world.fail(client, SocketError::Reset);
        }),
        ("SC", |world, client| {
            world.receive(client, GET);
            world.fail(world.opened(), SocketError::Refused);
            leave(world, client);
        }),
        ("sC", |world, client| {
            world.receive(client, GET);
            world.advance(seconds(4));
            leave(world, client);
        }),
        ("RC", |world, client| {
            world.sockets.app_state.connect_error = Some(ConnectError::NoPort);
            world.receive(client, GET);
            leave(world, client);
        }),
    ];
    for (expected, ends) in cases {
        let mut world = ProxyTestBed::new(ProxyMode::Http, 1);
        let client = world.accept();
        ends(&mut world, client);
        assert_eq!(letters(&mut world), expected);
        world.assert_empty();
    }
}

/// A client that resets the connection after a response did not cause its end.
#[test]
fn the_first_cause_counts() {
    let mut world = ProxyTestBed::new(ProxyMode::Http, 0);
    let client = world.accept();
    world.receive(client, GET);
    world.fail(client, SocketError::Reset);
    assert_eq!(letters(&mut world), "SC");
}

#[test]
fn relayed_by_the_host() {
    type Ends = fn(&mut ProxyTestBed, FakeSocketId, FakeSocketId);
    let cases: [(&str, ProxyMode, Ends); 8] = [
        ("--", ProxyMode::Http, |world, client, backend| {
            world.receive(backend, "HTTP/1.1 200 OK\r\n\r\n");
            world.peer_closes(backend);
            world.peer_closes(client);
        }),
        ("CH", ProxyMode::Http, |world, client, _| world.fail(client, SocketError::Reset)),
        ("CD", ProxyMode::Tcp, |world, client, _| world.fail(client, SocketError::Reset)),
        ("SH", ProxyMode::Http, |world, client, backend| {
            world.peer_closes(backend);
            leave(world, client);
        }),
        ("SD", ProxyMode::Http, |world, _, backend| {
            world.receive(backend, "HTTP/1.1 200 OK\r\n\r\n");
            world.fail(backend, SocketError::Reset);
        }),
        ("SD", ProxyMode::Tcp, |world, _, backend| world.fail(backend, SocketError::Reset)),
        ("sH", ProxyMode::Http, |world, _, backend| {
            world.acknowledge(backend);
            world.advance(seconds(601));
        }),
        ("cD", ProxyMode::Tcp, |world, _, _| world.advance(seconds(601))),
    ];
    for (expected, mode, ends) in cases {
        let (mut world, client, backend) = relayed(mode);
        ends(&mut world, client, backend);
        assert_eq!(letters(&mut world), expected);
        world.assert_empty();
    }
}

#[test]
fn relayed_by_the_device() {
    for (expected, mode, end, bytes) in [
        ("--", ProxyMode::Http, SpliceEnd::Closed, [0, 100]),
        ("--", ProxyMode::Tcp, SpliceEnd::Closed, [0, 0]),
        // As documented in the README: the client sees what the backend did.
        ("SH", ProxyMode::Http, SpliceEnd::Closed, [0, 0]),
        ("SH", ProxyMode::Http, SpliceEnd::Reset(1), [0, 0]),
        ("SD", ProxyMode::Http, SpliceEnd::Reset(1), [0, 1]),
        ("CD", ProxyMode::Tcp, SpliceEnd::Reset(0), [0, 0]),
        ("cD", ProxyMode::Tcp, SpliceEnd::IdleTimeout, [5, 5]),
        ("KD", ProxyMode::Tcp, SpliceEnd::Unspliced, [5, 5]),
    ] {
        let mut world = ProxyTestBed::with(ProxyConfig::default(), table(mode, 1));
        let client = world.accept();
        if mode == ProxyMode::Http {
            world.receive(client, GET);
        }
        world.establish();
        world.spliced();
        world.splice_closed(bytes, end);
        let line = world.log().pop().expect("a line");
        assert!(line.ends_with(expected) && line.contains("\" -1 "), "{end:?}: {line}");
        world.assert_empty();
    }
}
