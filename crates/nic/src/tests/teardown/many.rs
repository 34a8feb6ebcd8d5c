//! Many connections at one time, and the precision of their timers.

use super::*;

/// AccelTCP section 4.2.
const MANY: u32 = 256 << 10;

/// Returns the host byte and the port of a connection.
fn peer_of(nth: u32) -> (u8, u16) {
    let [_, high, mid, low] = nth.to_be_bytes();
    (1 + 2 * high + mid / 128, u16::from_be_bytes([mid | 128, low]))
}

fn connection(nth: u32) -> Teardown {
    let (host, port) = peer_of(nth);
    let mut next = teardown_of(&[10]);
    next.header.as_mut_slice()[33] = host;
    next.header.as_mut_slice()[36..38].copy_from_slice(&port.to_be_bytes());
    next
}

/// Each of the peers sends this segment. Returns the packets sent.
fn all_send(rig: &mut Rig, segment: &PeerSegment) -> usize {
    let mut sent = 0;
    for nth in 0..MANY {
        let (host, port) = peer_of(nth);
        send(rig, &PeerSegment { host, port, ..segment.clone() });
        sent += rig.sent.drain(..).count();
    }
    sent
}

#[test]
fn a_quarter_of_a_million_connections_close() {
    let mut rig = rig();
    let many = MANY as usize;
    for nth in 0..MANY {
        hand_over(&mut rig, connection(nth));
        assert_eq!(rig.sent.drain(..).count(), 1);
    }
    let gauges_of = |rig: &Rig| (gauges(rig), rig.counter("teardown_unacked"));
    assert_eq!(gauges_of(&rig), ((MANY.into(), 0), MANY.into()));
    hand_over(&mut rig, connection(MANY));
    assert_eq!(refused(&mut rig)[0].0, Refusal::TableFull);
    // The bytes are acknowledged, and the FIN is lost.
    assert_eq!(all_send(&mut rig, &peer(RCV, UNA + 10, TcpFlags::ACK)), 0);
    assert_eq!(gauges_of(&rig), ((MANY.into(), 0), 0));
    rig.now = Instant::from_millis(16_202);
    rig.collect();
    assert_eq!(rig.sent.len(), 0);
    rig.now = Instant::from_millis(16_203);
    rig.collect();
    assert_eq!(rig.sent.drain(..).count(), many);
    assert_eq!(rig.counter("teardown_retransmits"), MANY.into());
    // The last acknowledgment is lost, too, and the peers send their FINs again.
    assert_eq!(all_send(&mut rig, &peer(RCV, UNA + 11, FIN_ACK)), many);
    assert_eq!(gauges_of(&rig), ((0, MANY.into()), 0));
    assert_eq!(all_send(&mut rig, &peer(RCV, UNA + 11, FIN_ACK)), many);
    advance_to(&mut rig, 16_300);
    let closed = reported_ends(&mut rig).iter().map(|done| done.closed).sum::<u32>();
    assert_eq!((closed, rig.counter("teardown_closed")), (MANY, MANY.into()));
    assert_eq!((rig.counter("teardown_time_wait_evicted"), delivered_frames(&mut rig)), (0, 0));
    rig.now = Instant::from_millis(16_203 + 60_000);
    rig.collect();
    assert_eq!((gauges(&rig), rig.device.poll_timeout(rig.now)), ((0, 0), None));
}

/// Time-outs are exact to a millisecond, and between them the device need not be polled.
#[test]
fn timeouts_are_exact() {
    let mut rig = rig();
    for nth in 1..=100 {
        // Not at the beginning of a millisecond: never early.
        rig.now += Duration::from_micros(4321);
        let rto = Duration::from_millis((u64::from(nth) * 37) % 500 + 1);
        hand_over(&mut rig, Teardown { rto, ..connection(nth) });
        rig.sent.clear();
        let due = (rig.now + rto).as_nanos().div_ceil(1_000_000);
        let sent = advance_to(&mut rig, due + 100);
        assert_eq!(sent.first().map(|&(at, _)| at), Some(due), "{nth}");
        let (host, port) = peer_of(nth);
        send(&mut rig, &PeerSegment { host, port, ..peer(RCV, 0, TcpFlags::RST) });
        assert_eq!((gauges(&rig), rig.sent.drain(..).count()), ((0, 0), 0));
    }
    advance_to(&mut rig, 90_000);
    hand_over(&mut rig, connection(0));
    rig.sent.clear();
    let mut polls = 0;
    while rig.sent.is_empty() {
        rig.now = rig.device.poll_timeout(rig.now).unwrap();
        rig.collect();
        polls += 1;
    }
    assert_eq!(rig.now, Instant::from_millis(90_200));
    assert!(polls <= 3, "{polls}");
}
