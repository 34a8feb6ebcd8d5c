//! Bytes of device memory for an entry of each of the device's tables.
//!
//! Fills a table of a [`Device`] by operations alone, and divides what the heap of the process has
//! grown by, which includes the memory of aws-lc, by the number of entries. The keys have been
//! used: a part of their memory is allocated then. [`nic::table_memory`] has the same figures as
//! constants, from which the limits of the tables follow. Entries that have carried packets can
//! need more: incomplete records, kept frames and unacknowledged bytes have limits of their own.

use std::sync::Arc;

use abi::crypto::{Aead, CryptoProvider, HeaderProtection, NONCE_BYTES, Suite, TAG_BYTES};
use abi::l5o::{L5oCreate, L5oDirection, L5oId, L5oState, TlsState};
use abi::link::LinkCaps;
use abi::quic::{QuicAdd, QuicConnectionId, QuicDirection, QuicId, QuicKeys, QuicRouteKey};
use abi::splice::{Splice, SpliceId, SpliceSide, SpliceTimestamps};
use abi::teardown::{ClosingState, Teardown};
use abi::{FlowId, Op, TransmitPart};
use base::{Duration, Instant, SeqNum};
use bytes::Bytes;
use host::TlsVersion;
use io::heap::allocated_bytes;
use nic::table_memory::{
    CLOSURE_BYTES, CLOSURE_UNACKED_BYTES, CONTEXT_BYTES, QUIC_ENTRY_BYTES, SPLICE_PAIR_BYTES,
};
use nic::{Device, DeviceConfig, L5oConfig, QuicConfig};
use serde_json::{Value, json};
use wire::{Endpoint, Tuple};

use crate::bench::connections::memory::teardown;
use cli::Failure;

/// Number of entries to measure with: enough that the growth of a table by halves is seen on
/// average, at three quarters of a power of two.
const ENTRIES: u32 = 3 << 13;
/// Number of closures to measure with: AccelTCP section 4.2.
const CLOSURES: u32 = 256 << 10;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// A kind of entry, the bytes of one, and the bytes from which limits follow.
#[derive(Clone, Debug)]
pub(super) struct DeviceEntry {
    pub(super) entry: &'static str,
    pub(super) bytes: f64,
    bytes_assumed: u32,
}

impl DeviceEntry {
    pub(super) fn to_json(&self) -> Value {
        json!({ "entry": self.entry, "bytes": self.bytes, "bytes_assumed": self.bytes_assumed })
    }
}

/// A table: the gauge and the number of its entries, and their assumed size.
type Table = (&'static str, u32, u32);

const CONTEXT: Table = ("l5o_contexts", ENTRIES, CONTEXT_BYTES);
const QUIC_ENTRY: Table = ("quic_entries", ENTRIES, QUIC_ENTRY_BYTES);
const SPLICE_PAIR: Table = ("splice_pairs", ENTRIES, SPLICE_PAIR_BYTES);
const CLOSURE: Table = ("teardown_flows", CLOSURES, CLOSURE_BYTES);
const UNACKED_CLOSURE: Table =
    ("teardown_unacked", CLOSURES, CLOSURE_BYTES + CLOSURE_UNACKED_BYTES);

/// Returns the bytes of a TLS transmit context with AES-128-GCM.
pub(in crate::bench) fn tls_transmit_context() -> Result<f64, Failure> {
    let op = |n| tls_context(Suite::Aes128Gcm, n, L5oDirection::Transmit);
    bytes_of(CONTEXT, Arc::new(UsedKeys), &op)
}

/// The product's provider; its keys have encrypted something.
struct UsedKeys;

impl CryptoProvider for UsedKeys {
    fn aead(&self, suite: Suite, key: &[u8]) -> Option<Box<dyn Aead>> {
        let key = crypto::Provider.aead(suite, key)?;
        let _ = key.seal(&[0; NONCE_BYTES], b"", &mut [0; 16]);
        Some(key)
    }

    fn header_protection(&self, suite: Suite, key: &[u8]) -> Option<Box<dyn HeaderProtection>> {
        crypto::Provider.header_protection(suite, key)
    }

    fn crc32c(&self, crc: u32, bytes: &[u8]) -> u32 {
        crypto::Provider.crc32c(crc, bytes)
    }

    fn crc32c_combine(&self, first: u32, second: u32, len: u64) -> u32 {
        crypto::Provider.crc32c_combine(first, second, len)
    }
}

/// Returns the bytes that a receive context allocates to decrypt its first whole record.
fn decryption_bytes(suite: Suite) -> Result<f64, Failure> {
    let key = |_| crypto::Provider.aead(suite, &[1; 32][..suite.key_bytes()]);
    let keys: Option<Vec<_>> = (0..ENTRIES).map(key).collect();
    let keys = keys.ok_or_else(|| Failure::System(format!("no key for {suite:?}")))?;
    let mut used = Vec::with_capacity(keys.len());
    let before = allocated_bytes();
    for key in &keys {
        let mut ranges = key.ranges();
        // The tag is wrong, which changes nothing.
        let (mut sealed, mut copy) = ([0; 16 + TAG_BYTES], Vec::new());
        let _ = ranges.open_whole(&[0; NONCE_BYTES], b"", &mut sealed, &mut copy);
        used.push(ranges);
    }
    let bytes = allocated_bytes().saturating_sub(before);
    Ok(bytes as f64 / used.len() as f64)
}

/// Measures each kind of entry.
pub(super) fn measure() -> Result<Vec<DeviceEntry>, Failure> {
    const AES_128: Suite = Suite::Aes128Gcm;
    const AES_256: Suite = Suite::Aes256Gcm;
    const CHACHA: Suite = Suite::ChaCha20Poly1305;
    let mut entries = Vec::new();
    let mut add = |entry, bytes: f64, (.., bytes_assumed): Table| {
        if bytes > f64::from(bytes_assumed) {
            return Err(Failure::System(format!(
                "{entry}: {bytes:.1} bytes, but nic::table_memory has {bytes_assumed}"
            )));
        }
        entries.push(DeviceEntry { entry, bytes, bytes_assumed });
        Ok(())
    };
    add("TLS transmit context, AES-128-GCM", tls_transmit_context()?, CONTEXT)?;
    for (name, suite) in [
        ("TLS receive context, AES-128-GCM", AES_128),
        ("TLS receive context, AES-256-GCM", AES_256),
        ("TLS receive context, ChaCha20-Poly1305", CHACHA),
    ] {
        let op = |n| tls_context(suite, n, L5oDirection::Receive(tuple(1, n)));
        let bytes = bytes_of(CONTEXT, Arc::new(crypto::Provider), &op)?;
        add(name, bytes + decryption_bytes(suite)?, CONTEXT)?;
    }
    let mut add_used = |entry, table, op: &dyn Fn(u32) -> Op| {
        add(entry, bytes_of(table, Arc::new(UsedKeys), op)?, table)
    };
    add_used("QUIC transmit entry, AES-128-GCM", QUIC_ENTRY, &|n| {
        quic_entry(AES_128, n, QuicDirection::Transmit)
    })?;
    add_used("QUIC receive entry, AES-128-GCM", QUIC_ENTRY, &|n| {
        quic_entry(AES_128, n, quic_receive(n))
    })?;
    add_used("splice pair", SPLICE_PAIR, &splice)?;
    add_used("closure, nothing unacknowledged", CLOSURE, &|n| closure(n, &[]))?;
    add_used("closure, without its 64 unacknowledged bytes", UNACKED_CLOSURE, &|n| {
        closure(n, &[b'x'; 64])
    })?;
    Ok(entries)
}

/// Returns the bytes of the heap for each entry of a table, added by `op`. The gauge shows that
/// the device has them.
fn bytes_of(
    (gauge, count, _): Table,
    crypto: Arc<dyn CryptoProvider>,
    op: &dyn Fn(u32) -> Op,
) -> Result<f64, Failure> {
    let mut device = device(crypto);
    let before = allocated_bytes();
    for n in 0..count {
        device.handle_op(Instant::ZERO, 0, op(n));
        while device.poll_frame(Instant::ZERO).is_some() {}
        while device.poll_event().is_some() {}
    }
    let bytes = allocated_bytes().saturating_sub(before);
    let mut entries = 0;
    device.visit(&mut |name, value| entries += if name == gauge { value } else { 0 });
    if entries != u64::from(count) {
        return Err(Failure::System(format!("{gauge} is {entries}, not {count}")));
    }
    Ok(bytes as f64 / f64::from(count))
}

fn device(crypto: Arc<dyn CryptoProvider>) -> Device {
    let config = DeviceConfig {
        l5o: Some(L5oConfig::new(crypto.clone())),
        quic: Some(QuicConfig::new(crypto)),
        file: None,
        ..DeviceConfig::new(MAC)
    };
    let link = LinkCaps { segmentation: true, udp_segmentation: true, checksum: true, mtu: 1500 };
    Device::new(config, link)
}

/// Returns the tuple of connection `n` to the local address that ends with `local`.
fn tuple(local: u8, n: u32) -> Tuple {
    let [_, _, high, low] = n.to_be_bytes();
    Tuple {
        local: Endpoint { addr: [10, 0, 0, local].into(), port: 443 },
        remote: Endpoint { addr: [10, 1 + local, 0, high].into(), port: 1024 + u16::from(low) },
    }
}

fn tls_context(suite: Suite, n: u32, direction: L5oDirection) -> Op {
    let state =
        TlsState { version: TlsVersion::Tls13, suite, key: [1; 32].into(), iv: [2; 12], number: 0 };
    Op::L5oCreate(Box::new(L5oCreate {
        context: L5oId(n.into()),
        flow: FlowId(n.into()),
        direction,
        tcpsn: SeqNum(0),
        state: L5oState::Tls(state),
    }))
}

fn quic_receive(n: u32) -> QuicDirection {
    let mut id = [7; 8];
    id[..4].copy_from_slice(&n.to_be_bytes());
    let routes = QuicConnectionId::new(&id).map(|id| QuicRouteKey::Id { port: 443, id });
    QuicDirection::Receive {
        routes: routes.into_iter().collect(),
        reorder: Some(quic::QuicEndpointConfig::REORDER),
    }
}

fn quic_entry(suite: Suite, n: u32, direction: QuicDirection) -> Op {
    Op::QuicAdd(Box::new(QuicAdd {
        quic: QuicId(n.into()),
        flow: FlowId(n.into()),
        direction,
        suite,
        header_key: [3; 32].into(),
        keys: QuicKeys { phase: false, key: [4; 32].into(), iv: [5; 12] },
        next_packet_number: 0,
    }))
}

/// Returns a closure with these bytes unacknowledged, or in FIN-WAIT-2 with none.
fn closure(n: u32, unacked: &'static [u8]) -> Op {
    let mut closure = Teardown { state: ClosingState::FinWait2, ..teardown(n) };
    closure.parts.clear();
    if !unacked.is_empty() {
        closure.state = ClosingState::LastAck;
        closure.parts.push(TransmitPart::Host(Bytes::from_static(unacked)));
    }
    Op::Teardown(Box::new(closure))
}

fn splice(n: u32) -> Op {
    let side = |local| SpliceSide {
        tuple: tuple(local, n),
        next_hop_mac: [2, 0, 0, 0, 0, 9],
        snd_nxt: SeqNum(1),
        rcv_nxt: SeqNum(1),
        peer_scale: 7,
        own_scale: 7,
        peer_window: 1 << 16,
        own_window: 1 << 16,
        mss: 1448,
        sack: true,
        ecn: false,
        timestamps: Some(SpliceTimestamps { tsval: 1, ts_recent: 1 }),
    };
    let id = SpliceId(n.into());
    let sides = [side(1), side(2)];
    Op::Splice(Box::new(Splice { id, sides, idle_timeout: Duration::from_secs(300) }))
}
