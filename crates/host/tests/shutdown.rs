//! Shutdown of a host: it resets its connections, and asks its device to reset those of the device.

use abi::{Event, Op};
use base::Instant;
use testkit::{ScriptedTcpPeer, seg};

/// Returns a host that was told to end while a connection is open.
fn ending() -> ScriptedTcpPeer {
    let mut t = ScriptedTcpPeer::server().established();
    t.host.end(Instant::from_millis(t.ms()));
    t.pump();
    t
}

/// The reset leaves before `Op::Quiesce`, and only `Event::Quiesced` ends the host.
#[test]
fn the_device_is_asked_after_the_resets() {
    let mut t = ending();
    t.expect(seg!(RST ACK seq 1));
    let asked = t.other_ops.iter().filter(|op| matches!(op, Op::Quiesce)).count();
    assert_eq!(asked, 1, "{:?}", t.other_ops);
    assert!(!t.host.has_ended());
    t.handle_device_event(Event::Quiesced);
    assert!(t.host.has_ended());
}

/// A device reset loses the request: it is sent again.
#[test]
fn a_reset_device_is_asked_again() {
    let mut t = ending();
    t.other_ops.clear();
    t.handle_device_event(Event::Reset);
    assert!(t.other_ops.iter().any(|op| matches!(op, Op::Quiesce)), "{:?}", t.other_ops);
    t.handle_device_event(Event::Quiesced);
    assert!(t.host.has_ended());
}

/// The request is sent only after the echo of the last bytes of a file.
#[test]
fn the_device_is_asked_after_its_last_echo() {
    let mut t = ScriptedTcpPeer::server_with(|c| c.tcp.pacing = false).established();
    t.app_file(1448);
    t.take("a file");
    t.host.end(t.now());
    t.pump();
    t.expect(seg!(RST ACK));
    assert!(!t.other_ops.iter().any(|op| matches!(op, Op::Quiesce)), "{:?}", t.other_ops);
    t.echo_last_transmit(0);
    assert!(t.other_ops.iter().any(|op| matches!(op, Op::Quiesce)), "{:?}", t.other_ops);
    t.handle_device_event(Event::Quiesced);
    assert!(t.host.has_ended());
}
