//! Claims of a device about data, when a peer tricks the device into claims that are true only of
//! another buffer or of other bytes.

use base::{Duration, Instant, Prng};
use bytes::Bytes;
use crypto::Provider;
use host::{Application, Host, ListenConfig, Notice, SocketId};
use testkit::{LinkDestination, NetworkNode, TwoMachineNetwork};
use wire::nvme::pdu::{DataPduHeader, IcReq, PduHeader, PduRules};
use wire::segment::HeaderLayout;

use crate::disk::FaultyDisk;
use crate::invalid_pdus::{RULES, SERVE, TAG, TransportUnderTest};
use crate::machines::{FaultyLinkPair, START, machines};
use crate::storage::REMOTE;
use crate::transport::{PatternCommand, PatternTarget, pattern_bytes};

const PORT: u16 = 4420;
/// Bytes of an ICResp.
const SETUP_BYTES: usize = 128;
/// Bytes of an R2T.
const R2T_BYTES: usize = 24;
/// Payload of a full segment.
const SEGMENT: u32 = 1448;
/// Bytes of the first write. Together with the PDUs after it, it fills whole segments of the
/// initial window.
const FIRST: u32 = 8592;
/// Time limit of every wait.
const LIMIT: Duration = Duration::from_secs(10);

/// An initiator that sends an ICReq and then the bytes of the test.
struct RawPduInitiator {
    socket: SocketId,
    started: bool,
    digests: bool,
    /// Bytes received.
    got: usize,
}

impl Application for RawPduInitiator {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, _notice: Notice) {
        if !self.started && host.readiness(self.socket).writable {
            self.started = true;
            let (header_digest, data_digest) = (self.digests, self.digests);
            let request = IcReq { pfv: 0, hpda: 0, header_digest, data_digest, maxr2t: 0 };
            self.send(now, host, &pdu(&PduHeader::ICReq(request), &[]));
        }
        loop {
            let len = host.peek(self.socket).len();
            if len == 0 {
                return;
            }
            host.consume(self.socket, len);
            self.got += len;
        }
    }
}

impl RawPduInitiator {
    fn send(&self, now: Instant, host: &mut Host, bytes: &[u8]) {
        host.send(now, self.socket, Bytes::copy_from_slice(bytes)).unwrap();
    }
}

fn pdu(header: &PduHeader, data: &[u8]) -> Vec<u8> {
    testkit::pdu(header, data, &PduRules::NONE, &Provider).unwrap()
}

fn command(cid: u16, at: u64, len: u32) -> Vec<u8> {
    pdu(&PduHeader::CapsuleCmd(PatternCommand { write: true, at, len }.sqe(cid)), &[])
}

/// Returns all data of a write, under the first tag that a target uses.
fn data(cccid: u16, at: u64, len: u32) -> Vec<u8> {
    let header = DataPduHeader { cccid, ttag: 0, offset: 0, len, last: true, success: false };
    pdu(&PduHeader::H2CData(header), &pattern_bytes(at, len, 1))
}

/// Connects a script to a target and waits for the ICResp.
fn set_up<B: Application>(digests: bool, target: B) -> FaultyLinkPair<RawPduInitiator, B> {
    let (mut client, mut server) = machines(1, &|_, _| {});
    server.host().listen(ListenConfig { addr: None, port: PORT, backlog: 8 }).unwrap();
    let socket = client.host().connect(START, REMOTE).unwrap();
    let script = RawPduInitiator { socket, started: false, digests, got: 0 };
    let mut net = FaultyLinkPair::new(1, (client, script), (server, target));
    assert!(net.run_until(LIMIT, |net| net.client.app.got == SETUP_BYTES));
    net
}

fn send<B>(net: &mut FaultyLinkPair<RawPduInitiator, B>, bytes: &[u8]) {
    let now = net.now;
    let NetworkNode { machine, app } = &mut net.client;
    app.send(now, machine.host(), bytes);
}

/// Returns the frames with payload on their way to the target, in the order of their arrival.
fn data_frames_in_flight<A, B>(net: &mut TwoMachineNetwork<A, B, FaultyDisk>) -> Vec<&mut Vec<u8>> {
    // Ethernet, IPv4, and TCP with timestamps.
    let bare = 14 + 20 + 32;
    let frames = net.frames_to(LinkDestination::Server).map(|frame| &mut frame.bytes);
    frames.filter(|bytes| bytes.len() > bare).collect()
}

/// The first bytes of a write's data arrive before the PDU's header, so the device does not place
/// them. Then a second write arrives, with data under the same tag before its R2T. The device
/// places that data in the hole of the first buffer, and claims so. When the target parses the
/// second PDU, the tag names another buffer, so the claim must be rejected.
#[test]
fn a_claim_about_an_earlier_buffer_is_rejected() {
    let mut net = set_up(false, PatternTarget::new(0, Prng::new(1)));
    send(&mut net, &command(1, 0, FIRST));
    assert!(net.run_until(LIMIT, |net| net.client.app.got == SETUP_BYTES + R2T_BYTES));
    // The header alone, then the rest.
    let first = data(1, 0, FIRST);
    let (header, rest) = first.split_at(24);
    send(&mut net, header);
    assert!(net.run_until(LIMIT, |net| data_frames_in_flight(net).len() == 1));
    let second = data(2, 1 << 20, SEGMENT);
    let burst = [rest, &command(2, 1 << 20, SEGMENT), &second].concat();
    send(&mut net, &burst);
    assert!(net.run_until(LIMIT, |net| data_frames_in_flight(net).len() == 8));
    let mut frames = data_frames_in_flight(&mut net);
    let (header, data) = frames.split_at_mut(1);
    core::mem::swap(header[0], data[0]);
    // The target checks each byte that is written.
    let written = u64::from(FIRST + SEGMENT);
    assert!(net.run_until(LIMIT, |net| net.server.app.written == written));
    assert_eq!(net.server.app.ended, None);
    let target = &net.server.machine;
    assert_eq!(target.sum_counters("rx_nvmeotcp_bytes"), u64::from(FIRST), "the hole was filled");
    assert_eq!(target.sum_counters("nvme_rx_placed_bytes"), u64::from(FIRST - SEGMENT));
    assert_eq!(target.sum_counters("nvme_rx_copied_bytes"), u64::from(2 * SEGMENT));
}

/// Returns a frame with its lengths and checksums recomputed.
fn with_checksums(mut frame: Vec<u8>) -> Vec<u8> {
    HeaderLayout::of(&frame, 14, 34).expect("a packet").complete(&mut frame, 0);
    frame
}

/// Bytes arrive twice after a hole. The device computes the digest over the first copy; the host
/// keeps the second, which covers the first and was corrupted with a valid TCP checksum. The host
/// must not use the device's digest for the second copy.
#[test]
fn a_digest_is_of_the_copy_that_is_kept() {
    let mut net = set_up(true, TransportUnderTest::new(Ok(SERVE)));
    let data = |offset: u32| {
        let header =
            DataPduHeader { cccid: 1, ttag: TAG, offset, len: 4096, last: false, success: false };
        let text = pattern_bytes(u64::from(offset), 4096, 1);
        testkit::pdu(&PduHeader::H2CData(header), &text, &RULES, &Provider).unwrap()
    };
    let both = [data(0), data(4096)].concat();
    send(&mut net, &both[..28]);
    assert!(net.run_until(LIMIT, |net| data_frames_in_flight(net).len() == 1));
    send(&mut net, &both[28..]);
    assert!(net.run_until(LIMIT, |net| data_frames_in_flight(net).len() == 6));
    let mut frames = data_frames_in_flight(&mut net);
    let sent: Vec<Vec<u8>> = frames.iter().map(|frame| frame.to_vec()).collect();
    // A copy without its first 100 bytes.
    let seq = u32::from_be_bytes(sent[2][38..42].try_into().unwrap());
    let seq = seq.wrapping_add(100).to_be_bytes();
    let short = [&sent[2][..38], &seq, &sent[2][42..66], &sent[2][166..]].concat();
    let short = with_checksums(short);
    let mut damaged = sent[2].clone();
    damaged[500] ^= 1;
    let damaged = with_checksums(damaged);
    for (frame, becomes) in frames[1..4].iter_mut().zip([&short, &damaged, &sent[1]]) {
        frame.clone_from(becomes);
    }
    assert!(net.run_until(LIMIT, |net| net.server.app.reports.len() == 3));
    let TransportUnderTest { reports: came, .. } = &net.server.app;
    assert!(came[0].contains("digest_ok: false"), "{came:?}");
    assert!(came[1].contains("digest_ok: true"), "{came:?}");
    assert!(came[2].starts_with("Buffer"), "{came:?}");
    let target = &net.server.machine;
    // The header of the second PDU was lost with a frame that a copy replaced.
    assert_eq!(target.sum_counters("nvme_tcp_pdus_verified"), 1, "the first, as the device has it");
    assert_eq!(target.sum_counters("nvme_rx_digests_device"), 0);
    assert_eq!(target.sum_counters("nvme_rx_digests_host"), 2);
    assert_eq!(target.sum_counters("nvme_data_digest_errors"), 1);
}
