//! Fault injection: counts, equal traces for equal seeds, and parts that are never changed.

use super::*;
use crate::memory_link::{MemoryLink, MemoryLinkConfig, memory_link_pair};
use crate::test_frames::{bytes_of, frame, nonzero};

fn faulty(config: FaultConfig) -> (FaultLink<MemoryLink>, MemoryLink) {
    let (a, b) = memory_link_pair(&MemoryLinkConfig::default());
    (FaultLink::new(a, config), b)
}

fn only(set: impl Fn(&mut FaultConfig)) -> FaultConfig {
    let mut config = FaultConfig { seed: 42, ..FaultConfig::default() };
    set(&mut config);
    config
}

/// Sends numbered frames at one instant, then advances time until none is held.
fn send_all(link: &mut FaultLink<MemoryLink>, peer: &mut MemoryLink, count: u32) -> Vec<Vec<u8>> {
    let mut pool = PacketPool::new(4);
    let (mut now, mut got) = (Instant::from_millis(1), Vec::new());
    for i in 0..count {
        assert_eq!(link.transmit(now, &mut frame(&i.to_be_bytes())), LinkTxStatus::Sent);
        while let Some(rx) = peer.receive(now, &mut pool) {
            got.push(rx.packet.as_slice().to_vec());
        }
    }
    while let Some(due) = link.poll_timeout() {
        now = due;
        assert!(link.receive(now, &mut pool).is_none());
        while let Some(rx) = peer.receive(now, &mut pool) {
            got.push(rx.packet.as_slice().to_vec());
        }
    }
    got
}

/// Sends numbered frames from the peer, and receives them through the link with faults.
fn receive_all(
    link: &mut FaultLink<MemoryLink>,
    peer: &mut MemoryLink,
    count: u32,
) -> Vec<RxFrame> {
    let mut pool = PacketPool::new(4);
    let (mut now, mut got) = (Instant::from_millis(1), Vec::new());
    for i in 0..count {
        assert_eq!(peer.transmit(now, &mut frame(&i.to_be_bytes())), LinkTxStatus::Sent);
        got.extend(std::iter::from_fn(|| link.receive(now, &mut pool)));
    }
    while let Some(due) = link.poll_timeout() {
        now = due;
        got.extend(std::iter::from_fn(|| link.receive(now, &mut pool)));
    }
    got
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[54..].try_into().unwrap())
}

#[test]
fn no_fault_changes_nothing() {
    let (mut link, mut peer) = faulty(only(|_| ()));
    assert!(link.capabilities().segmentation && link.capabilities().checksum);
    let got = send_all(&mut link, &mut peer, 100);
    assert!(got.iter().map(|f| number(f)).eq(0..100));
    assert_eq!(*link.counters(), FaultCounters::default());
}

#[test]
fn any_fault_takes_the_offloads_away() {
    let (link, _peer) = faulty(only(|c| c.dup = 0.001));
    let caps = link.capabilities();
    assert_eq!((caps.segmentation, caps.checksum, caps.mtu), (false, false, 1500));
}

#[test]
fn drops() {
    let (mut link, mut peer) = faulty(only(|c| c.drop = 0.25));
    let got = send_all(&mut link, &mut peer, 1000);
    let dropped = link.counters().fault_tx_dropped;
    assert_eq!(got.len() as u64, 1000 - dropped);
    assert!((200..300).contains(&dropped), "{dropped}");
    let got = receive_all(&mut link, &mut peer, 1000);
    assert_eq!(got.len() as u64, 1000 - link.counters().fault_rx_dropped);
    let moved: Vec<_> = nonzero(|f| link.counters().visit(f)).iter().map(|c| c.0).collect();
    assert_eq!(moved, ["fault_tx_dropped", "fault_rx_dropped"]);
}

#[test]
fn duplicates() {
    let (mut link, mut peer) = faulty(only(|c| c.dup = 1.0));
    let got = send_all(&mut link, &mut peer, 10);
    assert!(got.iter().map(|f| number(f)).eq((0..20).map(|i| i / 2)));
    let got = receive_all(&mut link, &mut peer, 10);
    assert!(got.iter().map(|f| number(f.packet.as_slice())).eq((0..20).map(|i| i / 2)));
    let expected = [("fault_tx_duplicated", 10), ("fault_rx_duplicated", 10)];
    assert_eq!(nonzero(|f| link.counters().visit(f)), expected);
}

/// As `netem delay 1ms reorder 10%`: chosen packets are ahead of all that were sent in the last
/// millisecond, and the others keep their order.
#[test]
fn delays_all_packets_but_the_reordered() {
    let delay = Duration::from_millis(1);
    let (mut link, mut peer) = faulty(only(|c| (c.reorder, c.reorder_delay) = (0.1, delay)));
    assert!(!link.capabilities().segmentation);
    for received in [false, true] {
        let numbers: Vec<u32> = if received {
            let got = receive_all(&mut link, &mut peer, 1000);
            got.iter().map(|f| number(f.packet.as_slice())).collect()
        } else {
            send_all(&mut link, &mut peer, 1000).iter().map(|f| number(f)).collect()
        };
        let counters = link.counters();
        let early =
            if received { counters.fault_rx_reordered } else { counters.fault_tx_reordered };
        let early = usize::try_from(early).unwrap();
        assert!((70..130).contains(&early), "{early}");
        let (first, rest) = numbers.split_at(early);
        assert!(first.is_sorted() && rest.is_sorted(), "{numbers:?}");
        assert!(first.iter().zip(0..).all(|(&number, at)| number >= at));
        assert_eq!(numbers.len(), 1000, "none is lost");
    }
    let mut pool = PacketPool::new(4);
    let (mut link, mut peer) = faulty(only(|c| c.reorder_delay = delay));
    let start = Instant::from_millis(1);
    assert_eq!(link.transmit(start, &mut frame(&[1])), LinkTxStatus::Sent);
    assert_eq!(link.poll_timeout(), Some(start + delay));
    for (at, arrives) in [(start + delay - Duration::from_nanos(1), false), (start + delay, true)] {
        assert!(link.receive(at, &mut pool).is_none());
        assert_eq!(peer.receive(at, &mut pool).is_some(), arrives);
    }
}

#[test]
fn packets_beyond_the_limit_of_a_delay_are_dropped() {
    let delay = Duration::from_secs(1);
    let (mut link, _peer) = faulty(only(|c| c.reorder_delay = delay));
    for number in 0..u32::try_from(DELAYED_MAX).unwrap() + 5 {
        let sent = link.transmit(Instant::from_millis(1), &mut frame(&number.to_be_bytes()));
        assert_eq!(sent, LinkTxStatus::Sent);
    }
    assert_eq!(link.counters().fault_tx_dropped, 5);
}

#[test]
fn one_direction_can_be_spared() {
    for (spared, moved) in [
        (LinkDirection::Transmit, "fault_rx_dropped"),
        (LinkDirection::Receive, "fault_tx_dropped"),
    ] {
        let (mut link, mut peer) = faulty(only(|c| (c.drop, c.spared) = (0.5, Some(spared))));
        let sent = send_all(&mut link, &mut peer, 100).len();
        let received = receive_all(&mut link, &mut peer, 100).len();
        let whole = if spared == LinkDirection::Transmit { sent } else { received };
        assert_eq!(whole, 100);
        let counters = nonzero(|f| link.counters().visit(f));
        assert!(matches!(counters[..], [(name, 1..)] if name == moved), "{counters:?}");
    }
}

#[test]
fn reorders_without_loss_and_within_bounds() {
    let (mut link, mut peer) = faulty(only(|c| c.reorder = 0.1));
    for received in [false, true] {
        let numbers: Vec<u32> = if received {
            let got = receive_all(&mut link, &mut peer, 1000);
            got.iter().map(|f| number(f.packet.as_slice())).collect()
        } else {
            send_all(&mut link, &mut peer, 1000).iter().map(|f| number(f)).collect()
        };
        assert!(!numbers.is_sorted());
        for (at, &n) in numbers.iter().enumerate() {
            // At most eight overtake it; held frames that are released may also make it early.
            assert!(at.abs_diff(n as usize) <= 32, "frame {n} came as number {at}");
        }
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..1000));
    }
    let c = link.counters();
    assert!((50..200).contains(&c.fault_tx_reordered), "{c:?}");
    assert!((50..200).contains(&c.fault_rx_reordered), "{c:?}");
}

#[test]
fn a_held_packet_is_released_after_its_delay() {
    let (mut link, mut peer) = faulty(only(|c| c.reorder = 1.0));
    let (mut pool, now) = (PacketPool::new(4), Instant::from_millis(7));
    assert_eq!(link.transmit(now, &mut frame(b"last")), LinkTxStatus::Sent);
    assert!(peer.receive(now, &mut pool).is_none());
    let due = link.poll_timeout().unwrap();
    assert!(due > now && due <= now + Duration::from_millis(HELD_MS_MAX));
    assert!(link.receive(due, &mut pool).is_none());
    assert!(peer.receive(due, &mut pool).is_some());
    assert_eq!(link.poll_timeout(), None);
}

#[test]
fn corrupts_one_bit_after_the_ethernet_header() {
    let (mut link, mut peer) = faulty(only(|c| c.corrupt = 1.0));
    let sent = send_all(&mut link, &mut peer, 200);
    let received = receive_all(&mut link, &mut peer, 200);
    let received = received.iter().map(|f| f.packet.as_slice().to_vec());
    for (i, got) in sent.into_iter().zip(0..).chain(received.zip(0..)).map(|(g, i)| (i, g)) {
        let was = bytes_of(&frame(&u32::to_be_bytes(i)));
        assert_eq!(was[..14], got[..14]);
        let bits: u32 = was.iter().zip(&got).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!(bits, 1);
    }
    let expected = [("fault_tx_corrupted", 200), ("fault_rx_corrupted", 200)];
    assert_eq!(nonzero(|f| link.counters().visit(f)), expected);
}

#[test]
fn corrupting_leaves_the_senders_buffer_alone() {
    let original = frame(&[0; 1000]);
    let (mut link, _peer) = faulty(only(|c| c.corrupt = 1.0));
    for _ in 0..100 {
        assert_eq!(link.transmit(Instant::ZERO, &mut original.clone()), LinkTxStatus::Sent);
    }
    assert!(original.payload[0].as_slice().iter().all(|&b| b == 0));
}

#[test]
fn corruption_drops_arp_and_marks_checksums_bad() {
    let (mut link, mut peer) = faulty(only(|c| c.corrupt = 1.0));
    let mut pool = PacketPool::new(4);
    let mut arp = frame(b"who has");
    arp.header.as_mut_slice()[13] = 0x06;
    assert_eq!(link.transmit(Instant::ZERO, &mut arp), LinkTxStatus::Sent);
    assert!(peer.receive(Instant::ZERO, &mut pool).is_none());
    assert_eq!(peer.transmit(Instant::ZERO, &mut arp), LinkTxStatus::Sent);
    let mut partial = frame(b"unfinished");
    partial.checksum_partial = true;
    assert_eq!(peer.transmit(Instant::ZERO, &mut partial), LinkTxStatus::Sent);
    assert_eq!(link.receive(Instant::ZERO, &mut pool).unwrap().checksum, Checksum::Bad);
    let expected = [("fault_tx_dropped", 1), ("fault_rx_dropped", 1), ("fault_rx_corrupted", 1)];
    assert_eq!(nonzero(|f| link.counters().visit(f)), expected);
}

#[test]
fn equal_seeds_give_equal_traces() {
    let all = |seed| FaultConfig {
        drop: 0.1,
        reorder: 0.2,
        dup: 0.1,
        corrupt: 0.1,
        seed,
        ..FaultConfig::default()
    };
    let trace = |seed| {
        let (mut link, mut peer) = faulty(all(seed));
        let sent = send_all(&mut link, &mut peer, 500);
        let got = receive_all(&mut link, &mut peer, 500);
        let got: Vec<_> = got.iter().map(|f| f.packet.as_slice().to_vec()).collect();
        (sent, got, link.counters().clone())
    };
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7).0, trace(8).0);
    // The inner link's counters are visited before those of the faults.
    let (link, _peer) = faulty(all(1));
    assert_eq!(nonzero(|f| link.visit(f)), []);
}

#[test]
fn a_full_link_returns_frames_and_loses_none() {
    let (a, mut b) =
        memory_link_pair(&MemoryLinkConfig { frames_max: 1, ..MemoryLinkConfig::default() });
    let mut link = FaultLink::new(a, only(|c| c.dup = 1.0));
    let (mut pool, mut now) = (PacketPool::new(4), Instant::ZERO);
    let mut taken = 0_u32;
    while link.transmit(now, &mut frame(&taken.to_be_bytes())) == LinkTxStatus::Sent {
        taken += 1;
    }
    let mut numbers = Vec::new();
    loop {
        numbers.extend(b.receive(now, &mut pool).map(|f| number(f.packet.as_slice())));
        let Some(due) = link.poll_timeout() else { break };
        now = due;
        assert!(link.receive(now, &mut pool).is_none());
    }
    numbers.extend(b.receive(now, &mut pool).map(|f| number(f.packet.as_slice())));
    assert!(numbers.into_iter().eq((0..2 * taken).map(|i| i / 2)));
}
