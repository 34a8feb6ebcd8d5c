//! The end of a host: it resets its connections, and asks its device to reset what that holds.

use abi::{Event, Op};
use base::Instant;
use testkit::{Peer, seg};

/// A host that was told to end while a connection is open.
fn ending() -> Peer {
    let mut t = Peer::server().established();
    t.host.end(Instant::from_millis(t.ms()));
    t.pump();
    t
}

/// The peer's reset leaves before the question, and only the answer ends the host.
#[test]
fn the_device_is_asked_after_the_resets() {
    let mut t = ending();
    t.expect(seg!(RST ACK seq 1));
    let asked = t.file_ops.iter().filter(|op| matches!(op, Op::Quiesce)).count();
    assert_eq!(asked, 1, "{:?}", t.file_ops);
    assert!(!t.host.has_ended());
    t.event(Event::Quiesced);
    assert!(t.host.has_ended());
}

/// A device that was reset forgot the question: it is asked again.
#[test]
fn a_reset_device_is_asked_again() {
    let mut t = ending();
    t.file_ops.clear();
    t.event(Event::Reset);
    assert!(t.file_ops.iter().any(|op| matches!(op, Op::Quiesce)), "{:?}", t.file_ops);
    t.event(Event::Quiesced);
    assert!(t.host.has_ended());
}

/// What the device is still to send of a file is waited for before it is asked.
#[test]
fn the_device_is_asked_after_its_last_echo() {
    let mut t = Peer::server_with(|c| c.tcp.pacing = false).established();
    t.app_file(1448);
    t.take("a file");
    t.host.end(t.now());
    t.pump();
    t.expect(seg!(RST ACK));
    assert!(!t.file_ops.iter().any(|op| matches!(op, Op::Quiesce)), "{:?}", t.file_ops);
    t.echo(0);
    assert!(t.file_ops.iter().any(|op| matches!(op, Op::Quiesce)), "{:?}", t.file_ops);
    t.event(Event::Quiesced);
    assert!(t.host.has_ended());
}
