//! Threads that encrypt and decrypt for a device: the frames are those of a device alone, a thread
//! that panics costs nothing but time, and no thread outlives its device.

use std::sync::Arc;

use abi::crypto::{
    Aead, AeadRanges, AuthSum, BadTag, CryptoProvider, HeaderProtection, NONCE_BYTES, Suite,
    TAG_BYTES,
};
use abi::l5o::{L5oContent, L5oCreate, L5oDirection, L5oId, L5oState, RecordRange, TlsState};
use abi::link::LinkCaps;
use abi::{FlowId, Op, PacketHeader, Transmit, TransmitPart, TransmitParts};
use base::counters::collect_counters;
use base::{Instant, SeqNum};
use bytes::Bytes;
use nic::{Device, DeviceConfig, L5oConfig};
use outboard_stack::CryptoThreads;
use wire::emit::{EthernetAddrs, IpHeader, tcp_headers};
use wire::frame::protocol;
use wire::tcp::TcpHeader;
use wire::tls::{TlsRecordRun, TlsRecordVersion};

const RECORD_BYTES: u32 = 16 << 10;
const OVERHEAD: u32 = 22;
const RECORDS: u32 = 15;

/// A key that panics in the crypto threads.
struct PanickingKey(Box<dyn Aead>);

impl PanickingKey {
    fn check_thread() {
        let thread = std::thread::current();
        assert!(!thread.name().unwrap_or_default().starts_with("crypto"), "the test's panic");
    }
}

impl Aead for PanickingKey {
    fn seal(&self, nonce: &[u8; NONCE_BYTES], aad: &[u8], text: &mut [u8]) -> [u8; TAG_BYTES] {
        Self::check_thread();
        self.0.seal(nonce, aad, text)
    }

    fn seal_copy(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        text: &[u8],
        last: &[u8],
        out: &mut [u8],
    ) {
        Self::check_thread();
        self.0.seal_copy(nonce, aad, text, last, out);
    }

    fn open(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        sealed: &mut [u8],
    ) -> Result<usize, BadTag> {
        self.0.open(nonce, aad, sealed)
    }

    fn apply_keystream(&self, nonce: &[u8; NONCE_BYTES], offset: u64, range: &mut [u8]) {
        self.0.apply_keystream(nonce, offset, range);
    }

    fn merge(&self, sum: &mut AuthSum, other: &AuthSum) {
        self.0.merge(sum, other);
    }

    fn finish(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        text_len: u64,
        sum: &AuthSum,
    ) -> [u8; TAG_BYTES] {
        self.0.finish(nonce, aad, text_len, sum)
    }

    fn ranges(&self) -> Box<dyn AeadRanges> {
        self.0.ranges()
    }
}

/// The product's provider, with keys that panic in the crypto threads.
struct PanickingProvider;

impl CryptoProvider for PanickingProvider {
    fn aead(&self, suite: Suite, key: &[u8]) -> Option<Box<dyn Aead>> {
        Some(Box::new(PanickingKey(crypto::Provider.aead(suite, key)?)))
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

fn header(seq: u32) -> PacketHeader {
    let ip = IpHeader {
        source: [10, 0, 0, 1].into(),
        destination: [10, 0, 0, 2].into(),
        protocol: protocol::TCP,
        ecn: 0,
        hop_limit: 64,
    };
    let link = EthernetAddrs { source: [2, 0, 0, 0, 0, 1], destination: [2, 0, 0, 0, 0, 2] };
    let segment = TcpHeader { seq: SeqNum(seq), ..TcpHeader::default() };
    let l4 = 14 + ip.len();
    let mut header = PacketHeader::zeroed(l4 + segment.header_len(), 14, l4).unwrap();
    tcp_headers(&link, &ip, &segment, 0, header.as_mut_slice());
    header
}

fn transmit(number: u64, seq: u32, content: &Bytes) -> Op {
    let run = TlsRecordRun {
        content_bytes: content.len() as u64,
        record_content_bytes: RECORD_BYTES,
        overhead: OVERHEAD,
    };
    let mut parts = TransmitParts::new();
    parts.push(TransmitPart::Records(Box::new(RecordRange {
        context: L5oId(1),
        content: L5oContent::Host(content.clone()),
        prefix: 0,
        number,
        kind: 23,
        run,
        skip: 0,
        len: u32::try_from(run.wire_len()).unwrap(),
    })));
    Op::Transmit(Transmit {
        flow: FlowId(1),
        header: header(seq),
        segment_size: 1448,
        parts,
        timestamp: None,
        echo: None,
        retransmission: false,
        quic: None,
    })
}

/// Sends records, some of them between two polls. Returns the frames and some counters.
fn frames_with(workers: u8, provider: Arc<dyn CryptoProvider>) -> (Vec<Vec<u8>>, [u64; 4]) {
    let mut config = DeviceConfig::new([2, 0, 0, 0, 0, 1]);
    config.transmit_bytes_max = nic::LONG_TRANSMIT_BYTES;
    config.l5o = Some(L5oConfig::new(provider));
    let link = LinkCaps { segmentation: true, udp_segmentation: true, checksum: true, mtu: 1500 };
    let threads = CryptoThreads::start(7, workers).unwrap();
    let mut device = Device::new(config, link).with_crypto_workers(Box::new(threads));
    let state = TlsState {
        version: TlsRecordVersion::Tls13,
        suite: Suite::Aes128Gcm,
        key: [1; 32].into(),
        iv: [2; 12],
        number: 0,
    };
    let create = L5oCreate {
        context: L5oId(1),
        flow: FlowId(1),
        direction: L5oDirection::Transmit,
        tcpsn: SeqNum(0),
        state: L5oState::Tls(state),
    };
    device.handle_op(Instant::ZERO, 0, Op::L5oCreate(Box::new(create)));
    let content: Bytes =
        (0..RECORDS * RECORD_BYTES).map(|at| at.to_le_bytes()[1]).collect::<Vec<_>>().into();
    let (mut frames, mut seq) = (Vec::new(), 0_u32);
    for round in 0..20_u32 {
        device.handle_op(Instant::ZERO, 0, transmit((round * RECORDS).into(), seq, &content));
        seq = seq.wrapping_add(RECORDS * (RECORD_BYTES + OVERHEAD));
        if round % 4 != 0 {
            continue;
        }
        while let Some(frame) = device.poll_frame(Instant::ZERO) {
            let mut bytes = vec![0; frame.len()];
            frame.copy_to(&mut bytes);
            frames.push(bytes);
        }
    }
    let counters = collect_counters(|f| device.visit(f));
    let of = |name| counters.iter().find(|(known, _)| *known == name).expect("a counter").1;
    let names = ["crypto_workers", "crypto_jobs_worker", "crypto_jobs_failed", "crypto_jobs_lost"];
    (frames, names.map(of))
}

/// Returns whether the process has a crypto thread of queue 7.
fn has_threads() -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks.into_iter().any(|task| {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        name.starts_with("crypto7.")
    })
}

/// One test, because it examines the threads of the process.
#[test]
fn frames_do_not_depend_on_threads() {
    let (expected, counted) = frames_with(0, Arc::new(crypto::Provider));
    assert!(expected.len() > 50, "{}", expected.len());
    assert_eq!(counted, [0; 4]);
    for workers in [1, 3] {
        let (frames, [count, by_workers, failed, lost]) =
            frames_with(workers, Arc::new(crypto::Provider));
        assert!(frames == expected, "{workers} workers");
        assert_eq!((count, failed, lost), (workers.into(), 0, 0));
        assert!(by_workers > 0);
        assert!(!has_threads(), "the threads ended with the device");
    }
    let (frames, [_, by_workers, failed, lost]) = frames_with(2, Arc::new(PanickingProvider));
    assert!(frames == expected, "the device repeats the jobs of threads that panic");
    assert!(by_workers == 0 && failed > 0 && lost == 0, "{by_workers} {failed} {lost}");
    assert!(!has_threads());
}
