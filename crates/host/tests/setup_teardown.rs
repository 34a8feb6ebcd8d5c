//! Connections that the device sets up and tears down: AccelTCP sections 4.1, 4.2 and 5.2.

use abi::l5o::L5oId;
use abi::setup::ListenId;
use abi::steering::SteeringReason;
use abi::teardown::{ClosingState, Teardown, TeardownDone, TeardownRefused};
use abi::{DeviceLoad, Event, Op, Refusal, TransmitPart};
use base::Duration;
use outboard_host::{ListenerOption, SocketError, SocketOption};
use testkit::{HOST, HOST_V6, ScriptedTcpPeer, seg};
use wire::tcp::TcpHeader;

const ALL_OFFLOADS: [ListenerOption; 3] = [
    ListenerOption::DeferAccept(true),
    ListenerOption::TeardownOffload(true),
    ListenerOption::SetupOffload(true),
];

/// Returns a server with all offload options, whose device knows the listener.
fn server() -> ScriptedTcpPeer {
    let (mut t, _) = ScriptedTcpPeer::server_with_options(&ALL_OFFLOADS);
    t.take_listener_ops();
    t
}

/// Returns a connection that the device has set up, and whose request was read.
fn request_read() -> ScriptedTcpPeer {
    let mut t = server();
    resolve_peer_and_change_port(&mut t);
    t.device_accepts(&seg!(ACK PSH data b"ping"), ScriptedTcpPeer::default_established());
    t.host.consume(t.socket(), 4);
    t
}

/// Returns such a connection after its response and close, and its hand-over.
fn handed_over() -> (ScriptedTcpPeer, Box<Teardown>) {
    let mut t = request_read();
    t.app_write_unpumped(b"pong");
    t.app_close();
    let teardown = t.take_teardown().expect("it was handed over");
    (t, teardown)
}

fn bytes(teardown: &Teardown) -> Vec<u8> {
    let mut all = Vec::new();
    for part in &teardown.parts {
        match part {
            TransmitPart::Host(bytes) => all.extend_from_slice(bytes),
            other => panic!("{other:?}"),
        }
    }
    all
}

fn segment(teardown: &Teardown) -> TcpHeader {
    let header = &teardown.header;
    TcpHeader::parse(&header.as_slice()[header.l4()..]).unwrap().0
}

/// The device withholds the acknowledgment of its SYN-ACK, and the first segment is lost. Later
/// ones are dropped: a reset would end a connection that the first one still establishes.
#[test]
fn segments_after_a_lost_first_one_cause_no_reset() {
    let mut t = server();
    t.expect_counters(
        |t| {
            t.device_marks_later(&seg!(ACK seq 5 ack 1 tsval 5000));
            t.device_marks_later(&seg!(ACK PSH seq 5 ack 1 tsval 5000 data b"pong"));
        },
        &[("tcp_first_segment_missing", 2)],
    );
    t.expect_nothing();
    t.device_accepts(&seg!(ACK PSH seq 1 data b"ping"), ScriptedTcpPeer::default_established());
    t.device_marks_later(&seg!(ACK PSH seq 5 ack 1 tsval 5001 data b"pong"));
    assert_eq!(t.app_read(), b"pingpong");
}

/// One request, one response and a close take one event and one operation, and no TCB.
#[test]
fn a_transaction_is_one_event_and_one_operation() {
    let mut t = server();
    // A connection can be handed over only if its peer's link address is known.
    let t = &mut t;
    resolve_peer_and_change_port(t);
    t.expect_counters(
        |t| {
            t.device_accepts(&seg!(ACK PSH data b"ping"), ScriptedTcpPeer::default_established());
            assert_eq!(t.host.peek(t.socket()), b"ping");
            assert_eq!(t.host.remote(t.socket()).unwrap().port, 40_001);
            t.host.consume(t.socket(), 4);
            t.app_write_unpumped(b"pong");
            t.app_close();
        },
        &[
            ("setup_accepted", 1),
            ("tcp_passive_opens", 1),
            ("handed_over", 1),
            ("connections_closing_on_device", 1),
        ],
    );
    t.expect_nothing();
    assert_eq!(t.state(), "GONE");
    let teardown = t.take_teardown().expect("a connection was handed over");
    assert_eq!(bytes(&teardown), b"pong");
    assert_eq!(
        (t.host_stream_position(teardown.una), t.host_stream_position(teardown.nxt)),
        (1, 1)
    );
    assert_eq!(t.peer_stream_position(teardown.rcv_nxt), 5);
    assert_eq!(t.host_stream_position(teardown.edge), 1 + (512 << 7), "the ACK's window, scaled");
    assert_eq!((teardown.mss, teardown.peer_scale), (1448, 7));
    assert_eq!(teardown.state, ClosingState::FinWait1);
    assert_eq!(
        (teardown.rto, teardown.time_wait),
        (Duration::from_secs(1), Duration::from_secs(60))
    );
    let header = segment(&teardown);
    assert_eq!(t.peer_stream_position(header.ack), 5, "the request is acknowledged");
    let ts = header.options.timestamps.unwrap();
    let after = ts.value.wrapping_sub(ScriptedTcpPeer::device_timestamp());
    assert!((1..=64).contains(&after), "our clock continues from that of the SYN-ACK: {after}");
    assert_eq!(t.other_ops.len(), 0, "one operation, and no other");
}

/// Makes the peer's link address known, and moves the peer to another port.
fn resolve_peer_and_change_port(t: &mut ScriptedTcpPeer) {
    t.send(seg!(SYN mss 1460 sack_ok tsval 5000 wscale 7));
    t.take("a SYN-ACK");
    t.send(seg!(ACK RST));
    t.pump();
    t.take_all();
    t.notices.clear();
    t.use_peer_port(40_001);
}

/// A connection that continues after its response has a complete TCB.
#[test]
fn a_second_transaction_creates_a_tcb() {
    let mut t = server();
    resolve_peer_and_change_port(&mut t);
    t.device_accepts(&seg!(ACK PSH data b"one"), ScriptedTcpPeer::default_established());
    assert_eq!(t.host.peek(t.socket()), b"one");
    t.host.consume(t.socket(), 3);
    t.app_write_unpumped(b"first");
    t.pump();
    assert_eq!(t.host.counters().quasi_tcbs_promoted, 1);
    t.expect(seg!(ACK PSH seq 1 ack 4 data b"first" first));
    t.send(seg!(ACK PSH ack 6 data b"two"));
    assert_eq!(t.app_read(), b"two");
    t.expect(seg!(ACK seq 6 ack 7 len 0));
    t.app_write_unpumped(b"second");
    t.app_close();
    let teardown = t.take_teardown().expect("a connection was handed over");
    assert_eq!(bytes(&teardown), b"second");
    assert_eq!(
        (t.host_stream_position(teardown.una), t.host_stream_position(teardown.nxt)),
        (6, 6)
    );
    assert_eq!(t.peer_stream_position(teardown.rcv_nxt), 7);
    t.expect_nothing();
}

/// Without `TCP_DEFER_ACCEPT` the handshake's last ACK arrives first; it needs no TCB either.
#[test]
fn the_request_may_come_after_the_handshake() {
    let mut t = server();
    resolve_peer_and_change_port(&mut t);
    t.device_accepts(&seg!(ACK), ScriptedTcpPeer::default_established());
    assert_eq!(t.notices.len(), 1, "accepted");
    t.pump();
    t.expect_nothing();
    t.after_ms(500);
    t.deliver(&seg!(ACK PSH data b"ping"));
    assert_eq!(t.host.peek(t.socket()), b"ping");
    t.host.consume(t.socket(), 4);
    t.app_write_unpumped(b"pong");
    t.expect_counters(
        ScriptedTcpPeer::app_close,
        &[("handed_over", 1), ("connections_closing_on_device", 1)],
    );
    assert_eq!(bytes(&t.take_teardown().unwrap()), b"pong");
    // Its route was removed: a stray segment is answered with a reset.
    t.send(seg!(ACK data b"more"));
    t.expect(seg!(RST));
}

/// A duplicate of the segment that established the connection carries the cookie once more.
#[test]
fn duplicates_of_the_cookie_are_no_new_connections() {
    let mut t = server();
    resolve_peer_and_change_port(&mut t);
    t.device_accepts(&seg!(ACK PSH seq 1 data b"ping"), ScriptedTcpPeer::default_established());
    let first = t.socket();
    t.device_accepts(&seg!(ACK PSH seq 1 data b"ping"), ScriptedTcpPeer::default_established());
    assert_eq!((t.socket(), t.notices.len()), (first, 1), "the same connection, made whole");
    t.pump();
    assert_eq!(t.host.counters().setup_accepted, 1);
    assert_eq!(t.app_read(), b"ping", "once");
}

/// A peer that has restarted completed a handshake with the device: the old connection ends.
#[test]
fn a_new_incarnation_takes_the_tuple_over() {
    let mut t = server();
    resolve_peer_and_change_port(&mut t);
    t.device_accepts(&seg!(ACK PSH data b"old"), ScriptedTcpPeer::default_established());
    let old = t.socket();
    t.pump();
    t.take_all();
    // Beyond the receive window of the old connection.
    t.new_incarnation(3_000_000);
    t.device_accepts(&seg!(ACK PSH ack 77 data b"new"), ScriptedTcpPeer::default_established());
    assert_ne!(t.socket(), old);
    assert_eq!(t.host.readiness(old).error, Some(SocketError::Reset));
    assert_eq!(t.host.peek(t.socket()), b"new");
    t.pump();
    assert!(
        t.take_all().iter().all(|s| !s.flags.has(testkit::TcpFlags::RST)),
        "no reset to anybody"
    );
}

/// A response of more than an initial window is sent by the host; its rest is handed over when it
/// fits.
#[test]
fn a_long_response_is_handed_over_when_it_fits() {
    let mut t = request_read();
    t.app_write_unpumped(&[7; 20_000]);
    t.app_close();
    assert!(t.take_teardown().is_none(), "more than a congestion window");
    t.expect(seg!(ACK seq 1 ack 5 len 14480));
    t.send(seg!(ACK ack 14481));
    let teardown = t.take_teardown().expect("what is left fits");
    assert_eq!(t.host_stream_position(teardown.una), 14_481);
    let left: usize = bytes(&teardown).len();
    assert_eq!(left, 20_000 - 14_480);
    // It makes no difference to the peer whether the host had sent the rest already.
    let sent = t.host_stream_position(teardown.nxt) - 14_481;
    assert!(sent == 0 || sent as usize == left + 1);
    assert_eq!(t.state(), "GONE");
}

/// Bytes in flight and bytes never sent are separate parts.
#[test]
fn sent_and_unsent_bytes_are_separate_parts() {
    let mut t = request_read();
    t.app_write_unpumped(b"sent");
    t.pump();
    t.expect(seg!(ACK PSH seq 1 ack 5 data b"sent"));
    t.app_write_unpumped(b"unsent");
    t.app_close();
    let teardown = t.take_teardown().expect("it fits");
    let lens: Vec<u32> = teardown.parts.iter().map(TransmitPart::len).collect();
    assert_eq!(
        (lens, t.host_stream_position(teardown.una), t.host_stream_position(teardown.nxt)),
        (vec![4, 6], 1, 5)
    );
    assert_eq!(bytes(&teardown), b"sentunsent");
}

/// RFC 7323 section 5.5: the device counts the age of TS.Recent from the hand-over on, so a
/// connection whose TS.Recent has expired is not handed over.
#[test]
fn a_connection_with_an_expired_timestamp_stays() {
    for (days, stays) in [(23, false), (25, true)] {
        let mut t = request_read();
        t.app_write_unpumped(b"pong");
        t.pump();
        t.take("the response");
        t.send(seg!(ACK ack 5));
        t.after_ms(days * 24 * 3600 * 1000);
        t.take_all();
        t.app_close();
        assert_eq!(t.take_teardown().is_none(), stays, "{days} days");
    }
}

/// A file's extents go with the connection; the device itself tells its file engine which bytes
/// were acknowledged.
#[test]
fn file_extents_are_handed_over() {
    let mut t = request_read();
    let file = t.app_open();
    t.host.offload_write(t.now(), t.socket(), file, 4096, 500).unwrap();
    t.app_close();
    t.host.offload_close(file);
    t.pump();
    let teardown = t.take_teardown().expect("nothing was sent yet, so nothing is awaited");
    assert!(
        matches!(&teardown.parts[..], [TransmitPart::File(e)] if (e.offset, e.len) == (4096, 500))
    );
    assert_eq!(t.take_acked_file_bytes(), 0);
    assert!(t.take_file_close(), "no other user needs the file");
}

/// Returns a connection whose application has written a file and closed; its echoes are
/// outstanding.
fn closed_with_a_file() -> ScriptedTcpPeer {
    let mut t = request_read();
    t.app_file(500);
    t.expect(seg!(ACK seq 1 ack 5 len 0));
    t.app_close();
    t
}

/// A condition beyond those of AccelTCP: while transmits wait for a disk, the connection stays on
/// the host, which has to know how they end.
#[test]
fn a_connection_waiting_for_a_disk_stays() {
    let mut t = closed_with_a_file();
    assert!(t.take_teardown().is_none(), "echoes are still out");
    t.echo_all();
    let teardown = t.take_teardown().expect("everything has left");
    assert_eq!(t.host_stream_position(teardown.una), 1);
}

/// The peer closed first: the connection is handed over in LAST-ACK.
#[test]
fn a_passive_close_is_handed_over() {
    let mut t = server();
    resolve_peer_and_change_port(&mut t);
    t.device_accepts(&seg!(ACK PSH FIN data b"ping"), ScriptedTcpPeer::default_established());
    assert_eq!(t.host.peek(t.socket()), b"ping");
    t.host.consume(t.socket(), 4);
    assert!(t.host.readiness(t.socket()).peer_closed);
    t.app_write_unpumped(b"pong");
    t.app_close();
    let teardown = t.take_teardown().expect("it fits");
    assert_eq!(teardown.state, ClosingState::LastAck);
    assert_eq!(t.peer_stream_position(teardown.rcv_nxt), 6, "behind the FIN");
    assert_eq!(bytes(&teardown), b"pong");
}

/// The peer's FIN arrived before the hand-over, but not the acknowledgment of ours: CLOSING.
#[test]
fn a_close_of_both_at_once_is_handed_over() {
    let mut t = closed_with_a_file();
    t.send(seg!(FIN ACK seq 5 ack 1));
    assert!(t.take_teardown().is_none(), "echoes are still out");
    t.echo_all();
    let teardown = t.take_teardown().expect("everything has left");
    assert_eq!(teardown.state, ClosingState::Closing);
    assert_eq!(
        (t.host_stream_position(teardown.una), t.peer_stream_position(teardown.rcv_nxt)),
        (1, 6)
    );
}

/// RFC 2525 section 2.17 applies to quasi-TCBs, too.
#[test]
fn unread_bytes_turn_the_close_into_a_reset() {
    let mut t = server();
    resolve_peer_and_change_port(&mut t);
    t.device_accepts(&seg!(ACK PSH data b"ping"), ScriptedTcpPeer::default_established());
    t.app_close();
    t.expect(seg!(ACK RST seq 1));
    assert!(t.take_teardown().is_none());
}

/// If the device's table is full, the host closes the connection by itself. It hands over again
/// when the device has room.
#[test]
fn a_full_device_table_keeps_connections_on_the_host() {
    let mut t = server();
    resolve_peer_and_change_port(&mut t);
    for port in 0..3 {
        t.use_peer_port(41_000 + port);
        t.device_accepts(&seg!(ACK PSH data b"ping"), ScriptedTcpPeer::default_established());
        t.host.consume(t.socket(), 4);
        t.app_write_unpumped(b"pong");
        t.app_close();
    }
    t.expect(seg!(ACK PSH FIN seq 1 ack 5 data b"pong"));
    assert_eq!(t.host.counters().handed_over, 2);
    assert!(t.host.counters().hand_over_kept_full > 0);
    t.handle_device_event(Event::TeardownDone(TeardownDone { closed: 1, reset: 1, timed_out: 0 }));
    let counters = t.host.counters();
    assert_eq!((counters.handed_over_closed, counters.handed_over_reset), (1, 1));
    t.send(seg!(ACK ack 2));
    assert_eq!(t.host.counters().handed_over, 3, "there is room again");
}

/// Frames that were on their way to the host when it handed the connection over are returned to the
/// device. They cause no reset, and a duplicate with the cookie causes no second connection.
#[test]
fn frames_that_crossed_the_hand_over_are_returned() {
    let mut t = server();
    resolve_peer_and_change_port(&mut t);
    t.device_accepts(&seg!(ACK PSH seq 1 data b"ping"), ScriptedTcpPeer::default_established());
    t.host.consume(t.socket(), 4);
    t.app_write_unpumped(b"pong");
    t.app_close();
    t.device_accepts(&seg!(ACK PSH seq 1 data b"ping"), ScriptedTcpPeer::default_established());
    t.send(seg!(ACK FIN seq 5));
    assert_eq!(t.take_returned_frames(), 2);
    t.expect_nothing();
    let counters = t.host.counters();
    assert_eq!((counters.setup_accepted, counters.hand_over_frames_returned), (1, 2));
    // After the device has taken the connection, frames to the host belong to no connection.
    assert!(t.take_teardown().is_some());
    t.send(seg!(ACK seq 5));
    t.expect(seg!(RST));
    assert_eq!(t.take_returned_frames(), 0);
}

/// A returned segment whose connection another one has ended on the device is not answered with a
/// reset: the peer may have ended the connection itself, or be in TIME-WAIT.
#[test]
fn returned_segments_of_ended_connections_are_dropped() {
    let (mut t, _) = handed_over();
    t.steered = SteeringReason::TornDown;
    t.send(seg!(ACK seq 5 ack 1));
    t.send(seg!(ACK FIN seq 5 ack 1));
    t.send(seg!(RST seq 5));
    t.expect_nothing();
    assert_eq!((t.host.counters().hand_over_frames_late, t.take_returned_frames()), (3, 0));
    // Only if they were returned, and no SYN: it begins another connection.
    t.send(seg!(SYN));
    t.expect(seg!(SYN ACK));
    t.steered = SteeringReason::Current;
    t.use_peer_port(41_000);
    t.send(seg!(ACK seq 5));
    t.expect(seg!(RST));
    assert_eq!(t.host.counters().hand_over_frames_late, 3);
}

/// A segment that the device has returned belongs to a connection that it has refused.
#[test]
fn returned_segments_of_refused_connections_are_delivered() {
    let (mut t, teardown) = handed_over();
    let refused = TeardownRefused { teardown, reason: Refusal::DoesNotFit };
    t.handle_device_event(Event::TeardownRefused(refused));
    t.expect(seg!(ACK PSH FIN seq 1 ack 5 data b"pong"));
    t.steered = SteeringReason::TornDown;
    t.send(seg!(ACK FIN ack 6));
    t.expect(seg!(ACK seq 6 ack 6));
    assert_eq!(t.host.counters().hand_over_frames_late, 0);
}

/// A connection that the device refuses continues on the host.
#[test]
fn a_refused_connection_is_closed_by_the_host() {
    let (mut t, teardown) = handed_over();
    let why = Refusal::DoesNotFit;
    t.handle_device_event(Event::TeardownRefused(TeardownRefused { teardown, reason: why }));
    let back = t.take_teardown();
    assert!(back.is_none(), "it is not offered again at once");
    t.expect(seg!(ACK PSH FIN seq 1 ack 5 data b"pong"));
    t.send(seg!(ACK FIN ack 6));
    t.expect(seg!(ACK seq 6 ack 6));
    let counters = t.host.counters();
    assert_eq!((counters.hand_over_refused, counters.hand_over_refused_reset), (1, 0));
}

/// The host has no use for the offload contexts of a refused connection: they are destroyed.
#[test]
fn contexts_of_a_refused_connection_are_destroyed() {
    let (mut t, mut teardown) = handed_over();
    teardown.contexts.push(L5oId(7));
    let why = Refusal::DoesNotFit;
    t.handle_device_event(Event::TeardownRefused(TeardownRefused { teardown, reason: why }));
    let destroyed = |op: &Op| matches!(op, Op::L5oDestroy { context } if *context == L5oId(7));
    assert_eq!(t.other_ops.iter().filter(|op| destroyed(op)).count(), 1);
}

/// `Op::Listen` has the parameters that the device needs: for a wildcard every address of the host,
/// and no others.
#[test]
fn listeners_are_offloaded_to_the_device() {
    let (mut t, listener) = ScriptedTcpPeer::server_with_options(&ALL_OFFLOADS);
    let told = t.take_listener_ops();
    let listen = told.last().unwrap().as_ref().unwrap();
    assert_eq!(*listen.addrs, [HOST, HOST_V6]);
    assert_eq!((listen.listener, listen.port, listen.mss), (ListenId(0), 80, [1460, 1440]));
    assert!(listen.defer_accept && listen.sack && listen.ecn);
    assert_eq!(t.host.setup_offload(listener), Ok(()));
    // An overloaded device still answers SYNs, so that a flood of them does not reach the host.
    for (permille, high) in [(990, true), (995, true), (300, false)] {
        t.handle_device_event(Event::Load(DeviceLoad { permille, high }));
        assert_eq!(t.take_listener_ops(), []);
    }
    assert_eq!(t.host.counters().device_overloads, 1);
    // Another MTU of the link allows another segment size.
    t.handle_device_event(Event::LinkChanged { mtu: 1400 });
    let told = t.take_listener_ops();
    assert_eq!(told.last().unwrap().as_ref().unwrap().mss, [1360, 1340]);
    // After a reset the device has to be told again.
    t.handle_device_event(Event::Reset);
    assert!(matches!(&t.take_listener_ops()[..], [Ok(_)]));
    t.handle_device_event(Event::ListenRefused {
        listener: ListenId(0),
        reason: Refusal::TableFull,
    });
    assert_eq!(t.host.setup_offload(listener), Err(Refusal::TableFull));
    t.host.set_listener_option(listener, ListenerOption::SetupOffload(false));
    t.pump();
    assert_eq!(t.take_listener_ops(), [], "it has none");
}

/// A device that does not have the listener again yet passes acknowledgments of its own cookies.
/// The host checks them itself for a second.
#[test]
fn a_cookie_that_the_device_passes_after_a_reset_is_accepted() {
    for (ms, accepted) in [(999, true), (1000, false)] {
        let mut t = server();
        resolve_peer_and_change_port(&mut t);
        t.handle_device_event(Event::Reset);
        assert!(matches!(&t.take_listener_ops()[..], [Ok(_)]));
        t.after_ms(ms);
        t.assume_cookie(ScriptedTcpPeer::COOKIE_SECRET);
        // The device would have held this one back.
        t.send(seg!(ACK));
        if accepted {
            t.expect_nothing();
        } else {
            t.expect(seg!(RST));
        }
        t.send(seg!(ACK PSH data b"ping"));
        let counted = ["setup_accepted", "setup_accepted_after_reset"].map(|name| t.count(name));
        assert_eq!(counted, [accepted.into(); 2]);
        if accepted {
            let _socket = t.accepted();
            assert_eq!(t.app_read(), b"ping");
        } else {
            t.expect(seg!(RST));
        }
    }
}

/// A segment that has no cookie of the device is answered with a reset, and one whose predecessor
/// is missing with nothing.
#[test]
fn other_segments_after_a_reset_of_the_device() {
    let mut t = server();
    resolve_peer_and_change_port(&mut t);
    t.handle_device_event(Event::Reset);
    t.assume_cookie(ScriptedTcpPeer::COOKIE_SECRET);
    t.expect_counters(
        |t| t.send(seg!(ACK PSH seq 5 data b"pong")),
        &[("tcp_first_segment_missing", 1)],
    );
    t.expect_nothing();
    t.send(seg!(ACK PSH seq 1 ack 2 data b"ping"));
    t.expect(seg!(RST));
}

/// An overloaded device gets no connections to tear down.
#[test]
fn an_overloaded_device_gets_no_teardowns() {
    let mut t = server();
    resolve_peer_and_change_port(&mut t);
    t.handle_device_event(Event::Load(DeviceLoad { permille: 990, high: true }));
    t.device_accepts(&seg!(ACK PSH data b"ping"), ScriptedTcpPeer::default_established());
    t.host.consume(t.socket(), 4);
    t.app_write_unpumped(b"pong");
    t.app_close();
    assert!(t.take_teardown().is_none());
    t.expect(seg!(ACK PSH FIN seq 1 ack 5 data b"pong"));
    assert!(t.host.counters().hand_over_kept_overloaded > 0);
}

/// Tear-down offload alone, on a connection that the host has set up itself.
#[test]
fn tear_down_without_set_up() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_option(SocketOption::TeardownOffload(true));
    t.app_write_unpumped(b"bye");
    t.app_close();
    let teardown = t.take_teardown().expect("it fits");
    assert_eq!((bytes(&teardown), t.host_stream_position(teardown.nxt)), (b"bye".to_vec(), 1));
    t.expect_nothing();
}

/// Events about unknown listeners or connections are ignored.
#[test]
fn invalid_device_events_are_ignored() {
    let mut t = server();
    resolve_peer_and_change_port(&mut t);
    let mut other = ScriptedTcpPeer::default_established();
    other.listener = ListenId(9);
    t.device_accepts(&seg!(ACK PSH data b"ping"), other);
    t.pump();
    assert_eq!(t.host.counters().events_ignored, 1);
    t.expect(seg!(RST));
    assert_eq!(t.host.counters().setup_accepted, 0);
    t.handle_device_event(Event::TeardownDone(TeardownDone {
        closed: 9,
        reset: u32::MAX,
        timed_out: 1,
    }));
    t.handle_device_event(Event::ListenRefused {
        listener: ListenId(7),
        reason: Refusal::TableFull,
    });
    assert_eq!(t.host.counters().events_ignored, 2);
    assert!(t.other_ops.iter().all(|op| !matches!(op, Op::Teardown(_))));
}
