//! Relay between two TAP interfaces that drops, doubles and reorders frames, for tests of the
//! Ethernet carrier.
//!
//! `framerelay A B DROP REORDER DUP SEED` creates both interfaces, prints `ready`, and runs until
//! it is killed. The interfaces may be moved to other network namespaces. The last four arguments
//! are those of `outboard serve`, each probability from 0 to 1.

use std::os::fd::AsRawFd as _;

use abi::PacketHeader;
use abi::PacketPool;
use abi::link::{FramePayload, LinkTxStatus, TxFrame};
use base::Duration;
use interop::quic::Failure;
use io::clock::MonotonicClock;
use io::fault::{FaultConfig, FaultLink, LinkDirection};
use io::link::Link;
use io::notify::Poller;
use io::tap::{self, TapConfig};

/// Time after which a frame that the kernel had no room for is sent again.
const RETRY: Duration = Duration::from_millis(1);

fn open(name: &str, faults: FaultConfig) -> Result<Box<dyn Link>, Failure> {
    let config = TapConfig {
        name: name.to_owned(),
        queues: 1,
        steering: None,
        peer: Vec::new(),
        mtu: None,
        offloads: false,
    };
    let link = tap::open(&config)?.into_iter().next().ok_or("no queue")?;
    Ok(Box::new(FaultLink::new(link, faults)))
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [one, other, drop, reorder, dup, seed] = &args[..] else {
        return Err("framerelay A B DROP REORDER DUP SEED".into());
    };
    let faults = FaultConfig {
        drop: drop.parse()?,
        reorder: reorder.parse()?,
        dup: dup.parse()?,
        seed: seed.parse()?,
        // Each direction has the faults once.
        spared: Some(LinkDirection::Receive),
        ..FaultConfig::default()
    };
    let mut links = [open(one, faults.clone())?, open(other, faults)?];
    let (clock, mut pool) = (MonotonicClock::new(), PacketPool::new(256));
    let mut poller = Poller::new();
    links.iter().filter_map(|link| link.pollable()).for_each(|fd| {
        poller.add(fd.as_raw_fd());
    });
    println!("ready");
    let mut unsent: [Option<TxFrame>; 2] = [None, None];
    loop {
        let now = clock.now();
        let mut moved = false;
        for from in 0..2 {
            let to = 1 - from;
            let mut received = || links[from].receive(now, &mut pool);
            let next = unsent[to].take().or_else(|| received().map(|frame| whole(frame.packet)));
            let Some(mut frame) = next else { continue };
            moved = true;
            if links[to].transmit(now, &mut frame) == LinkTxStatus::Full {
                unsent[to] = Some(frame);
                moved = false;
            }
        }
        let flushed = links.iter_mut().all(|link| link.flush(now));
        if !moved {
            let due = links.iter().filter_map(|link| link.poll_timeout()).min();
            let waits = unsent.iter().any(Option::is_some) || !flushed;
            let limit = due.map(|at| at.since(now)).into_iter().chain(waits.then_some(RETRY)).min();
            poller.wait(limit)?;
        }
    }
}

/// Returns a frame that is sent as it was received.
fn whole(packet: abi::PacketBuf) -> TxFrame {
    TxFrame {
        header: PacketHeader::in_payload(14, 14),
        payload: [FramePayload::Frame(packet)].into_iter().collect(),
        segment_size: 0,
        checksum_partial: false,
    }
}
