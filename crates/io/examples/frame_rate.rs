//! Frames per second through a link: `frame_rate send|receive packet|xdp|generic IF [BYTES]`.
//!
//! `send` sends UDP datagrams to 10.77.0.2 for two seconds; `receive` counts those that arrive
//! within two seconds of the first. Run both on the ends of a veth pair in two network namespaces.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use abi::link::{FramePayload, TxFrame};
use abi::{PacketHeader, PacketPool};
use base::{Duration, Instant};
use bytes::Bytes;
use outboard_io::clock::MonotonicClock;
use outboard_io::link::{Link, LinkTxStatus};
use outboard_io::notify::Poller;
use outboard_io::packet_socket::{self, PacketSocketConfig};
use outboard_io::xdp::{self, XdpConfig, XdpMode};

const TIME: Duration = Duration::from_secs(2);
/// Frames per turn, as the driver of a device takes them.
const BATCH: usize = 64;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [action, kind, interface, rest @ ..] = &args[..] else {
        eprintln!("usage: frame_rate send|receive packet|xdp|generic IF [BYTES]");
        return ExitCode::from(2);
    };
    let bytes = rest.first().map_or(64, |bytes| bytes.parse().expect("a number of bytes"));
    let mut link = open(kind, interface);
    let rate = if action == "send" { send(&mut *link, bytes) } else { receive(&mut *link) };
    println!("{action} {kind} {bytes} bytes: {rate:.0} frames/s");
    link.visit(&mut |name, value| {
        if value > 0 {
            println!("  {name} {value}");
        }
    });
    ExitCode::SUCCESS
}

fn open(kind: &str, interface: &str) -> Box<dyn Link> {
    let interface = interface.to_owned();
    if kind == "packet" {
        let mac = [2, 0, 0, 0, 0, 7];
        let config =
            PacketSocketConfig { interface, queues: 1, steering: None, mac, offloads: false };
        let mut links = packet_socket::open(&config).unwrap_or_else(|e| panic!("{e}"));
        return Box::new(links.remove(0));
    }
    let mode = if kind == "generic" { XdpMode::Generic } else { XdpMode::Native };
    let config = XdpConfig {
        interface,
        queues: 1,
        mode: Some(mode),
        transfer: None,
        busy_poll: false,
        tx_checksum: false,
        addrs: vec!["10.77.0.2".parse().expect("an address")],
        shared: None,
    };
    let mut links = xdp::open(&config).unwrap_or_else(|e| panic!("{e}"));
    Box::new(links.remove(0))
}

/// Returns a broadcast frame of `bytes` bytes with a UDP datagram to 10.77.0.2.
fn datagram(bytes: usize) -> TxFrame {
    let mut header = [0; 42];
    header[..6].copy_from_slice(&[0xff; 6]);
    header[12..14].copy_from_slice(&[0x08, 0x00]);
    header[14] = 0x45;
    header[23] = 17;
    header[30..34].copy_from_slice(&[10, 77, 0, 2]);
    let payload = Bytes::from(vec![0; bytes.saturating_sub(header.len())]);
    TxFrame {
        header: PacketHeader::from_bytes(&header, 14, 34).expect("a short header"),
        payload: [FramePayload::Host(payload)].into_iter().collect(),
        segment_size: 0,
        checksum_partial: false,
    }
}

fn send(link: &mut dyn Link, bytes: usize) -> f64 {
    let (template, mut pool) = (datagram(bytes), PacketPool::new(1024));
    let (clock, mut sent) = (MonotonicClock::new(), 0_u32);
    let begin = clock.now();
    while clock.now().since(begin) < TIME {
        for _ in 0..BATCH {
            // The link may keep the payload.
            if link.transmit(Instant::ZERO, &mut template.clone()) != LinkTxStatus::Sent {
                break;
            }
            sent += 1;
        }
        link.flush(Instant::ZERO);
        if let Some(received) = link.receive(Instant::ZERO, &mut pool) {
            pool.put(received.packet);
        }
    }
    f64::from(sent) / seconds(clock.now().since(begin))
}

fn receive(link: &mut dyn Link) -> f64 {
    let (mut pool, mut poller) = (PacketPool::new(1024), Poller::new());
    link.pollable().map(|fd| poller.add(fd));
    let (clock, mut begin, mut received) = (MonotonicClock::new(), None, 0_u32);
    while begin.is_none_or(|begin| clock.now().since(begin) < TIME) {
        let mut is_idle = true;
        while let Some(frame) = link.receive(Instant::ZERO, &mut pool) {
            pool.put(frame.packet);
            begin.get_or_insert_with(|| clock.now());
            (received, is_idle) = (received + 1, false);
        }
        if is_idle {
            let wait = Duration::from_millis(100);
            poller.wait(Some(wait)).expect("memory for a list of one");
        }
    }
    begin.map_or(0.0, |begin| f64::from(received) / seconds(clock.now().since(begin)))
}

fn seconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e9
}
