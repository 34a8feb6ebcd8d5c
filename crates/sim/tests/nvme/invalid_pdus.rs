//! Invalid PDUs: each is answered by a terminate request with its fatal error status, and the
//! connection ends. Nothing of the PDU reaches the layer above the transport.

use std::sync::Arc;

use abi::aligned::AlignedBuf;
use abi::crypto::CryptoProvider;
use base::{Duration, Instant};
use bytes::Bytes;
use crypto::Provider;
use host::nvme::{
    NvmeInitiatorParams, NvmeTargetParams, NvmeTransport, NvmeTransportEnd, NvmeTransportEvent,
};
use host::{Application, Host, ListenConfig, Notice, SocketId};
use testkit::{NetworkNode, TwoMachineNetwork};
use wire::nvme::pdu::{
    DataPduHeader, FatalErrorStatus, IcReq, IcResp, PduCommonHeader, PduFault, PduHeader, PduRules,
    R2t, TERM_BYTES_MAX, at,
};

use crate::machines::{FaultyLinkPair, START, machines};
use crate::storage::REMOTE;
use crate::transport::take;

const PORT: u16 = 4420;
/// Tag or command identifier for which data is awaited.
pub(crate) const TAG: u16 = 7;
/// Bytes of data that are awaited for [`TAG`].
const AWAITED: u32 = 8192;

/// A peer that sends its next lot of bytes after each answer, and keeps what it receives.
struct InvalidPduPeer {
    socket: Option<SocketId>,
    lots: Vec<Vec<u8>>,
    got: Vec<u8>,
    /// True if it sends its first lot without an answer.
    opens: bool,
}

impl InvalidPduPeer {
    fn new(opens: bool, lots: Vec<Vec<u8>>) -> Self {
        Self { socket: None, lots, got: Vec::new(), opens }
    }

    fn send(&mut self, now: Instant, host: &mut Host) {
        if let (Some(socket), false) = (self.socket, self.lots.is_empty()) {
            let lot = self.lots.remove(0);
            host.send(now, socket, Bytes::from(lot)).unwrap();
        }
    }
}

impl Application for InvalidPduPeer {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        let (Notice::Accepted(_, socket) | Notice::Socket(socket)) = notice else { return };
        self.socket = Some(socket);
        let first = self.opens && self.got.is_empty();
        let mut answered = first && host.readiness(socket).writable;
        let before = self.got.len();
        take(host, socket, &mut self.got);
        answered |= self.got.len() > before;
        if answered {
            self.send(now, host);
        }
    }
}

/// A transport under test, and what it reported.
pub(crate) struct TransportUnderTest {
    transport: Option<NvmeTransport>,
    /// `Ok` if it is a target's, `Err` if it is an initiator's.
    role: Result<NvmeTargetParams, NvmeInitiatorParams>,
    ended: Option<NvmeTransportEnd>,
    pub(crate) reports: Vec<String>,
}

impl TransportUnderTest {
    pub(crate) fn new(role: Result<NvmeTargetParams, NvmeInitiatorParams>) -> Self {
        Self { transport: None, role, ended: None, reports: Vec::new() }
    }

    fn poll(&mut self, now: Instant, host: &mut Host) {
        while let Some(incoming) = self.transport.as_mut().and_then(|t| t.poll(now, host)) {
            match incoming {
                NvmeTransportEvent::Ready => {
                    let transport = self.transport.as_mut().unwrap();
                    let cccid = if self.role.is_ok() { 1 } else { TAG };
                    let back = transport.expect(host, (cccid, TAG), 0, AWAITED, AlignedBuf::new(2));
                    assert!(back.is_none());
                    if self.role.is_err() {
                        transport.send_command(now, host, &[0; 64], Bytes::new());
                    }
                }
                NvmeTransportEvent::Ended(how) => {
                    self.ended = Some(how);
                    let socket = self.transport.as_ref().unwrap().socket();
                    host.close(now, socket);
                }
                other => self.reports.push(format!("{other:?}")),
            }
        }
    }
}

impl Application for TransportUnderTest {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        if let (Notice::Accepted(_, socket), Ok(serve)) = (notice, self.role) {
            self.transport = Some(NvmeTransport::serve(socket, Arc::new(Provider), serve));
        }
        self.poll(now, host);
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.poll(now, host);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.transport.as_ref().and_then(NvmeTransport::poll_timeout)
    }
}

pub(crate) const SERVE: NvmeTargetParams = NvmeTargetParams {
    header_digest: true,
    data_digest: true,
    cpda: 0,
    maxh2cdata: 4096,
    in_capsule_max: 1024,
};
const INITIATE: NvmeInitiatorParams =
    NvmeInitiatorParams { header_digest: true, data_digest: true, hpda: 0, maxr2t: 0 };

pub(crate) const RULES: PduRules =
    PduRules { header_digest: true, data_digest: true, pda: 0, plen_max: u32::MAX };

/// Returns a PDU with `data` zeros and right digests.
fn pdu(header: &PduHeader, data: u32, rules: &PduRules) -> Vec<u8> {
    testkit::pdu(header, &vec![0; data as usize], rules, &Provider).unwrap()
}

fn ic_req(change: impl Fn(&mut IcReq)) -> Vec<u8> {
    let mut request = IcReq { pfv: 0, hpda: 0, header_digest: true, data_digest: true, maxr2t: 0 };
    change(&mut request);
    pdu(&PduHeader::ICReq(request), 0, &PduRules::NONE)
}

fn ic_resp(change: impl Fn(&mut IcResp)) -> Vec<u8> {
    let mut response =
        IcResp { pfv: 0, cpda: 0, header_digest: true, data_digest: true, maxh2cdata: 4096 };
    change(&mut response);
    pdu(&PduHeader::ICResp(response), 0, &PduRules::NONE)
}

fn data(change: impl Fn(&mut DataPduHeader)) -> DataPduHeader {
    let mut data =
        DataPduHeader { cccid: 1, ttag: TAG, offset: 0, len: 4096, last: false, success: false };
    change(&mut data);
    data
}

/// Replaces the byte at `at` of a PDU and recomputes its header digest. `header` is the length of
/// the header.
fn patched(mut pdu: Vec<u8>, at: usize, to: u8, header: usize) -> Vec<u8> {
    pdu[at] = to;
    let digest = Provider.crc32c(0, &pdu[..header]).to_le_bytes();
    pdu[header..header + 4].copy_from_slice(&digest);
    pdu
}

/// Returns the fault in the last PDU of `got`, which must be a terminate request of type `kind`.
fn fault_of(got: &[u8], kind: u8) -> PduFault {
    let mut rest = got;
    loop {
        let plen = u32::from_le_bytes(rest[4..8].try_into().unwrap()) as usize;
        if plen == rest.len() {
            break;
        }
        rest = &rest[plen..];
    }
    assert_eq!(rest[0], kind, "a terminate request");
    assert!(rest.len() <= TERM_BYTES_MAX as usize);
    let common = PduCommonHeader::parse(rest.first_chunk().unwrap(), &PduRules::NONE).unwrap();
    match PduHeader::parse(&common, rest).unwrap() {
        PduHeader::C2HTermReq(fault) | PduHeader::H2CTermReq(fault) => fault,
        other => panic!("{other:?}"),
    }
}

/// Runs a target against a peer that sends `lots`, until the connection has ended or for 30 s.
fn run_target(lots: Vec<Vec<u8>>) -> FaultyLinkPair<InvalidPduPeer, TransportUnderTest> {
    let (mut client, mut server) = machines(1, &|_, _| {});
    server.host().listen(ListenConfig { addr: None, port: PORT, backlog: 8 }).unwrap();
    let mut raw = InvalidPduPeer::new(true, lots);
    raw.socket = Some(client.host().connect(START, REMOTE).unwrap());
    let mut net =
        FaultyLinkPair::new(1, (client, raw), (server, TransportUnderTest::new(Ok(SERVE))));
    net.run_until(Duration::from_secs(30), |net| net.server.app.ended.is_some());
    net.run_until(Duration::from_secs(1), |_| false);
    net
}

/// Sends `lots` to a target. Returns how it ended, the bytes of its answers, and its reports.
fn target(lots: Vec<Vec<u8>>) -> (Option<NvmeTransportEnd>, Vec<u8>, Vec<String>) {
    let mut net = run_target(lots);
    let TwoMachineNetwork {
        client: NetworkNode { app: raw, .. },
        server: NetworkNode { app: end, .. },
        ..
    } = &mut *net;
    (end.ended, core::mem::take(&mut raw.got), core::mem::take(&mut end.reports))
}

/// Like [`target`], for an initiator.
fn initiator(
    ask: NvmeInitiatorParams,
    lots: Vec<Vec<u8>>,
) -> (Option<NvmeTransportEnd>, Vec<u8>, Vec<String>) {
    let (mut client, mut server) = machines(1, &|_, _| {});
    server.host().listen(ListenConfig { addr: None, port: PORT, backlog: 8 }).unwrap();
    let socket = client.host().connect(START, REMOTE).unwrap();
    let mut end = TransportUnderTest::new(Err(ask));
    end.transport = Some(NvmeTransport::initiate(socket, Arc::new(Provider), ask));
    let mut net = FaultyLinkPair::new(1, (client, end), (server, InvalidPduPeer::new(false, lots)));
    net.run_until(Duration::from_secs(30), |net| net.client.app.ended.is_some());
    net.run_until(Duration::from_secs(1), |_| false);
    let TwoMachineNetwork {
        client: NetworkNode { app: end, .. },
        server: NetworkNode { app: raw, .. },
        ..
    } = &mut *net;
    (end.ended, core::mem::take(&mut raw.got), core::mem::take(&mut end.reports))
}

#[test]
fn a_target_terminates_on_invalid_pdus() {
    let h2c = |change: &dyn Fn(&mut DataPduHeader)| {
        let header = data(change);
        pdu(&PduHeader::H2CData(header), header.len, &RULES)
    };
    let command = |bytes| pdu(&PduHeader::CapsuleCmd([0; 64]), bytes, &RULES);
    let field = PduFault::field;
    let open = || ic_req(|_| {});
    let wrong_digest = {
        let mut pdu = command(0);
        pdu[72] ^= 1;
        pdu
    };
    let no_data = vec![0x07, 0, 24, 0, 24, 0, 0, 0];
    let came = u32::from_le_bytes(wrong_digest[72..76].try_into().unwrap());
    let cases: Vec<(&str, Vec<Vec<u8>>, PduFault)> = vec![
        (
            "no ICReq",
            vec![pdu(&PduHeader::CapsuleCmd([0; 64]), 0, &PduRules::NONE)],
            PduFault::SEQUENCE,
        ),
        ("version", vec![ic_req(|r| r.pfv = 1)], PduFault::unsupported(at::PFV)),
        ("alignment", vec![ic_req(|r| r.hpda = 32)], field(at::PDA)),
        ("a second", vec![open(), open()], PduFault::SEQUENCE),
        ("type", vec![open(), patched(command(0), 0, 0x0a, 72)], field(at::TYPE)),
        (
            "direction",
            vec![open(), pdu(&PduHeader::CapsuleResp([0; 16]), 0, &RULES)],
            field(at::TYPE),
        ),
        // C2HData without data: the type is checked before the field that would also be wrong.
        ("read data", vec![open(), no_data], field(at::TYPE)),
        ("HLEN", vec![open(), patched(command(0), 2, 24, 72)], field(at::HLEN)),
        ("PLEN", vec![open(), patched(command(0), 4, 75, 72)], field(at::PLEN)),
        ("flags", vec![open(), patched(command(0), 1, 0, 72)], field(at::FLAGS)),
        ("PDO", vec![open(), patched(command(512), 3, 77, 72)], field(at::PDO)),
        ("capsule", vec![open(), command(1028)], PduFault::LIMIT_EXCEEDED),
        ("header digest", vec![open(), wrong_digest], PduFault::header_digest(came)),
        ("tag", vec![open(), h2c(&|d| d.ttag = 8)], field(at::TTAG)),
        ("command", vec![open(), h2c(&|d| d.cccid = 2)], field(at::CCCID)),
        ("last", vec![open(), h2c(&|d| d.last = true)], field(at::FLAGS)),
        ("behind", vec![open(), h2c(&|d| d.offset = AWAITED)], PduFault::OUT_OF_RANGE),
        ("a hole", vec![open(), h2c(&|d| d.offset = 512)], PduFault::OUT_OF_RANGE),
        ("long", vec![open(), h2c(&|d| d.len = 4100)], PduFault::LIMIT_EXCEEDED),
        ("odd", vec![open(), h2c(&|d| d.offset = 2)], field(at::DATAO)),
    ];
    for (name, lots, fault) in cases {
        let (ended, got, came) = target(lots);
        assert_eq!(ended, Some(NvmeTransportEnd::Terminated(fault)), "{name}");
        assert_eq!(fault_of(&got, 0x03), fault, "{name}");
        assert_eq!(came, Vec::<String>::new(), "{name}");
    }
}

#[test]
fn an_initiator_terminates_on_invalid_pdus() {
    let c2h = |change: &dyn Fn(&mut DataPduHeader)| {
        let header = data(change);
        pdu(&PduHeader::C2HData(DataPduHeader { ttag: 0, ..header }), header.len, &RULES)
    };
    let r2t = R2t { cccid: TAG, ttag: 1, offset: 0, len: 0 };
    let field = PduFault::field;
    let open = || ic_resp(|_| {});
    let cases: Vec<(&str, Vec<Vec<u8>>, PduFault)> = vec![
        ("version", vec![ic_resp(|r| r.pfv = 9)], PduFault::unsupported(at::PFV)),
        ("alignment", vec![ic_resp(|r| r.cpda = 32)], field(at::PDA)),
        ("MAXH2CDATA", vec![ic_resp(|r| r.maxh2cdata = 4092)], field(at::MAXH2CDATA)),
        (
            "early",
            vec![pdu(&PduHeader::CapsuleResp([0; 16]), 0, &PduRules::NONE)],
            PduFault::SEQUENCE,
        ),
        (
            "direction",
            vec![open(), pdu(&PduHeader::CapsuleCmd([0; 64]), 0, &RULES)],
            field(at::TYPE),
        ),
        ("command", vec![open(), c2h(&|d| d.cccid = 8)], field(at::CCCID)),
        ("past it", vec![open(), c2h(&|d| (d.cccid, d.len) = (TAG, 8196))], PduFault::OUT_OF_RANGE),
        ("nothing", vec![open(), pdu(&PduHeader::R2T(r2t), 0, &RULES)], field(at::DATAL)),
    ];
    // SUCCESS with only a part of the data is detected before the data, regardless of who holds the
    // buffer.
    let part = c2h(&|d| (d.cccid, d.last, d.success) = (TAG, true, true));
    let cases = [cases, vec![("a part", vec![open(), part], field(at::FLAGS))]].concat();
    for (name, lots, fault) in cases {
        let (ended, got, came) = initiator(INITIATE, lots);
        assert_eq!(ended, Some(NvmeTransportEnd::Terminated(fault)), "{name}");
        assert_eq!(fault_of(&got, 0x02), fault, "{name}");
        assert_eq!(came, Vec::<String>::new(), "{name}");
    }
    // SUCCESS without LAST_PDU.
    let success = c2h(&|d| (d.cccid, d.last, d.success) = (TAG, true, true));
    let (ended, ..) = initiator(INITIATE, vec![open(), patched(success, 1, 0x0b, 24)]);
    assert_eq!(ended, Some(NvmeTransportEnd::Terminated(field(at::FLAGS))));
}

#[test]
fn unrequested_digests_terminate() {
    let plain = NvmeInitiatorParams { header_digest: false, data_digest: false, ..INITIATE };
    let (ended, ..) = initiator(plain, vec![ic_resp(|_| {})]);
    assert_eq!(ended, Some(NvmeTransportEnd::Terminated(PduFault::field(at::DGST))));
}

#[test]
fn a_wrong_data_digest_is_reported_and_the_connection_survives() {
    let mut wrong = pdu(&PduHeader::H2CData(data(|_| {})), 4096, &RULES);
    let last = wrong.len() - 1;
    wrong[last] ^= 0x80;
    let right = pdu(&PduHeader::H2CData(data(|d| d.offset = 4096)), 4096, &RULES);
    let lots = vec![ic_req(|_| {}), [wrong, right].concat()];
    let (ended, _, came) = target(lots);
    assert_eq!(ended, None);
    assert_eq!(came.len(), 3, "{came:?}");
    assert!(came[0].contains("WriteData") && came[0].contains("digest_ok: false"), "{came:?}");
    assert!(came[1].contains("digest_ok: true"), "{came:?}");
    assert!(came[2].starts_with("Buffer"), "{came:?}");
}

/// A PDU with a wrong digest is followed by many small PDUs, whose reports could wait for the
/// buffer until all its data has come. The buffer is recalled earlier, and all PDUs are reported in
/// order.
#[test]
fn small_pdus_behind_a_wrong_digest() {
    let pdus = AWAITED / 4;
    let mut lot = Vec::new();
    // The last PDU is left out.
    for offset in (0..AWAITED - 4).step_by(4) {
        let header = data(|d| (d.offset, d.len) = (offset, 4));
        let mut pdu = pdu(&PduHeader::H2CData(header), 4, &RULES);
        *pdu.last_mut().unwrap() ^= u8::from(offset == 0);
        lot.extend(pdu);
    }
    let net = run_target(vec![ic_req(|_| {}), lot]);
    let TransportUnderTest { ended, reports: came, .. } = &net.server.app;
    assert_eq!((ended, came.len()), (&None, pdus as usize - 1));
    for (at, came) in came.iter().enumerate() {
        let wanted = format!("offset: {}, len: 4, last: false, digest_ok: {}", at * 4, at > 0);
        assert!(came.contains(&wanted), "{came}");
    }
    let count = |name| net.server.count(name);
    assert_eq!((count("nvme_ddp_setup"), count("nvme_ddp_early")), (1, 1));
    assert_eq!(count("nvme_data_digest_errors"), 1);
    let (device, host) = (count("nvme_rx_digests_device"), count("nvme_rx_digests_host"));
    assert!(device >= 256, "it checked what came before it was asked: {device}");
    assert_eq!(device + host, u64::from(pdus) - 1);
}

#[test]
fn the_peer_ends_it() {
    let fault = PduFault { fes: FatalErrorStatus::OUT_OF_RANGE, fei: 3 };
    let (ended, got, _) =
        target(vec![ic_req(|_| {}), pdu(&PduHeader::H2CTermReq(fault), 24, &RULES)]);
    assert_eq!(ended, Some(NvmeTransportEnd::TerminatedByPeer(fault)));
    assert_eq!(got.len(), 128, "ICResp and nothing more");
}

#[test]
fn a_silent_peer_times_out() {
    let (ended, got, _) = target(vec![]);
    assert_eq!((ended, got), (Some(NvmeTransportEnd::Silent), vec![]));
    let (ended, ..) = initiator(INITIATE, vec![]);
    assert_eq!(ended, Some(NvmeTransportEnd::Silent));
}
