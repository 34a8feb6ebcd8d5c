//! Device memory per connection that is torn down, and per pair that is spliced: the growth of the
//! heap over many of them.

use abi::splice::{Splice, SpliceId, SpliceSide, SpliceTimestamps};
use abi::teardown::{ClosingState, LateData, Teardown};
use abi::{FlowId, Op, PacketHeader, TransmitPart, TsvalPosition};
use base::{Duration, SeqNum};
use bytes::Bytes;
use io::heap::allocated_bytes;
use nic::{Device, DeviceConfig};
use wire::emit::{EthernetAddrs, IpHeader, tcp_template};
use wire::frame::protocol;
use wire::tcp::TcpFlags;
use wire::{Endpoint, Tuple};

use super::{LINK_CAPS, LOCAL_MAC, NOW, PAYLOAD, PEER_MAC, segment};
use crate::bench::testbed::check_counter;
use cli::Failure;

/// Connections, or pairs of connections.
const CONNECTIONS: u32 = 60_000;

/// Returns the bytes of the device's heap per connection that waits for the acknowledgment of its
/// FIN and of a response of 64 bytes, the response included.
pub(super) fn torn_down() -> Result<f64, Failure> {
    let mut device = Device::new(DeviceConfig::new(LOCAL_MAC), LINK_CAPS);
    // Queues and the index are allocated with the first connections, before the measurement.
    add_teardowns(&mut device, CONNECTIONS, CONNECTIONS + 64);
    let before = allocated_bytes();
    add_teardowns(&mut device, 0, CONNECTIONS);
    let growth = allocated_bytes().saturating_sub(before);
    check_counter(&device, "teardown_flows", u64::from(CONNECTIONS) + 64)?;
    Ok(growth as f64 / f64::from(CONNECTIONS))
}

/// Hands connections `from..to` to the device for tear-down.
pub(super) fn add_teardowns(device: &mut Device, from: u32, to: u32) {
    for i in from..to {
        device.handle_op(NOW, 0, Op::Teardown(Box::new(teardown(i))));
        while device.poll_frame(NOW).is_some() {}
        while device.poll_event().is_some() {}
    }
}

/// Returns connection `i`, below 12 million, with an unsent response.
pub(in crate::bench) fn teardown(i: u32) -> Teardown {
    let seq = SeqNum(i.wrapping_mul(0x9e37));
    let tuple = tuple(80, i);
    let (source, destination) = (tuple.local.port, tuple.remote.port);
    let segment =
        wire::tcp::TcpHeader { source, destination, ..segment(TcpFlags::ACK, seq, SeqNum(1), 1) };
    let ip = IpHeader {
        source: tuple.local.addr,
        destination: tuple.remote.addr,
        protocol: protocol::TCP,
        ecn: 0,
        hop_limit: 64,
    };
    let l4 = 14 + ip.len();
    let mut header = PacketHeader::zeroed(l4 + segment.header_len(), 14, l4).expect("66 bytes");
    let link = EthernetAddrs { source: LOCAL_MAC, destination: PEER_MAC };
    let tsval_at = tcp_template(&link, &ip, &segment, header.as_mut_slice());
    let offset = tsval_at.and_then(|at| u8::try_from(at).ok());
    Teardown {
        flow: FlowId(i.into()),
        header,
        timestamp: offset.map(|offset| TsvalPosition { offset, sub_ms_us: 0 }),
        una: seq,
        nxt: seq,
        edge: seq + 65_535,
        peer_scale: 7,
        mss: 1448,
        mss_after_timeouts: 1448,
        parts: [TransmitPart::Host(Bytes::copy_from_slice(&PAYLOAD))].into_iter().collect(),
        rcv_nxt: SeqNum(65),
        state: ClosingState::FinWait1,
        rto: Duration::from_secs(1),
        time_wait: Duration::from_secs(60),
        contexts: [].into_iter().collect(),
        late_data: LateData::Discard { bytes_max: 1 << 20 },
    }
}

/// Returns the bytes of the device's heap per pair of spliced connections.
pub(super) fn spliced() -> Result<f64, Failure> {
    let mut device = Device::new(DeviceConfig::new(LOCAL_MAC), LINK_CAPS);
    add_splices(&mut device, CONNECTIONS, CONNECTIONS + 64);
    let before = allocated_bytes();
    add_splices(&mut device, 0, CONNECTIONS);
    let growth = allocated_bytes().saturating_sub(before);
    check_counter(&device, "splice_pairs", u64::from(CONNECTIONS) + 64)?;
    Ok(growth as f64 / f64::from(CONNECTIONS))
}

/// Makes the device splice pairs `from..to`.
pub(super) fn add_splices(device: &mut Device, from: u32, to: u32) {
    for i in from..to {
        let id = SpliceId(i.into());
        let sides = [side(tuple(80, i), i), side(tuple(8080, i), i)];
        let splice = Splice { id, sides, idle_timeout: Duration::from_secs(300) };
        device.handle_op(NOW, 0, Op::Splice(Box::new(splice)));
        device.handle_op(NOW, 0, Op::SpliceStart { id, packets: Box::new([]) });
        while device.poll_event().is_some() {}
    }
}

fn side(tuple: Tuple, i: u32) -> SpliceSide {
    SpliceSide {
        tuple,
        next_hop_mac: PEER_MAC,
        snd_nxt: SeqNum(i),
        rcv_nxt: SeqNum(i ^ 77),
        peer_scale: 7,
        own_scale: 5,
        peer_window: 65_536,
        own_window: 65_536,
        mss: 1448,
        sack: true,
        ecn: false,
        timestamps: Some(SpliceTimestamps { tsval: i, ts_recent: i ^ 5 }),
    }
}

fn tuple(port: u16, i: u32) -> Tuple {
    let peer = u8::try_from(2 + i / 50_000).unwrap_or(u8::MAX);
    let remote = u16::try_from(1024 + i % 50_000).unwrap_or(0);
    Tuple {
        local: Endpoint { addr: [10, 0, 0, 1].into(), port },
        remote: Endpoint { addr: [10, 0, 0, peer].into(), port: remote },
    }
}
