//! Invalid PDUs: each is answered by a terminate request with its fatal error status, and the
//! connection ends. Nothing of the PDU reaches the layer above the transport.

use std::sync::Arc;

use abi::aligned::AlignedBuf;
use abi::crypto::CryptoProvider;
use base::{Duration, Instant};
use bytes::Bytes;
use crypto::Provider;
use host::nvme::{Ended, Incoming, Initiate, Serve, Transport};
use host::{Application, Host, Listen, Notice, SocketId};
use testkit::{Network, Node};
use wire::nvme::pdu::{
    Common, DataHeader, Fault, Fes, Header, IcReq, IcResp, R2t, Rules, TERM_BYTES_MAX, at,
};

use crate::machines::{Machines, START, machines};
use crate::storage::REMOTE;
use crate::transport::take;

const PORT: u16 = 4420;
/// Tag or command identifier for which data is awaited.
pub(crate) const TAG: u16 = 7;
/// Bytes of data that are awaited for [`TAG`].
const AWAITED: u32 = 8192;

/// A peer that sends its next lot of bytes after each answer, and keeps what it receives.
struct Raw {
    socket: Option<SocketId>,
    lots: Vec<Vec<u8>>,
    got: Vec<u8>,
    /// True if it sends its first lot without an answer.
    opens: bool,
}

impl Raw {
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

impl Application for Raw {
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
pub(crate) struct End {
    transport: Option<Transport>,
    /// `Ok` if it is a target's, `Err` if it is an initiator's.
    role: Result<Serve, Initiate>,
    ended: Option<Ended>,
    pub(crate) came: Vec<String>,
}

impl End {
    pub(crate) fn new(role: Result<Serve, Initiate>) -> Self {
        Self { transport: None, role, ended: None, came: Vec::new() }
    }

    fn poll(&mut self, now: Instant, host: &mut Host) {
        while let Some(incoming) = self.transport.as_mut().and_then(|t| t.poll(now, host)) {
            match incoming {
                Incoming::Ready => {
                    let transport = self.transport.as_mut().unwrap();
                    let cccid = if self.role.is_ok() { 1 } else { TAG };
                    let back = transport.expect(host, (cccid, TAG), 0, AWAITED, AlignedBuf::new(2));
                    assert!(back.is_none());
                    if self.role.is_err() {
                        transport.send_command(now, host, &[0; 64], Bytes::new());
                    }
                }
                Incoming::Ended(how) => {
                    self.ended = Some(how);
                    let socket = self.transport.as_ref().unwrap().socket();
                    host.close(now, socket);
                }
                other => self.came.push(format!("{other:?}")),
            }
        }
    }
}

impl Application for End {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        if let (Notice::Accepted(_, socket), Ok(serve)) = (notice, self.role) {
            self.transport = Some(Transport::serve(socket, Arc::new(Provider), serve));
        }
        self.poll(now, host);
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.poll(now, host);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.transport.as_ref().and_then(Transport::poll_timeout)
    }
}

pub(crate) const SERVE: Serve = Serve {
    header_digest: true,
    data_digest: true,
    cpda: 0,
    maxh2cdata: 4096,
    in_capsule_max: 1024,
};
const INITIATE: Initiate = Initiate { header_digest: true, data_digest: true, hpda: 0, maxr2t: 0 };

pub(crate) const RULES: Rules =
    Rules { header_digest: true, data_digest: true, pda: 0, plen_max: u32::MAX };

/// Returns a PDU with `data` zeros and right digests.
fn pdu(header: &Header, data: u32, rules: &Rules) -> Vec<u8> {
    testkit::pdu(header, &vec![0; data as usize], rules, &Provider).unwrap()
}

fn ic_req(change: impl Fn(&mut IcReq)) -> Vec<u8> {
    let mut request = IcReq { pfv: 0, hpda: 0, header_digest: true, data_digest: true, maxr2t: 0 };
    change(&mut request);
    pdu(&Header::ICReq(request), 0, &Rules::NONE)
}

fn ic_resp(change: impl Fn(&mut IcResp)) -> Vec<u8> {
    let mut response =
        IcResp { pfv: 0, cpda: 0, header_digest: true, data_digest: true, maxh2cdata: 4096 };
    change(&mut response);
    pdu(&Header::ICResp(response), 0, &Rules::NONE)
}

fn data(change: impl Fn(&mut DataHeader)) -> DataHeader {
    let mut data =
        DataHeader { cccid: 1, ttag: TAG, offset: 0, len: 4096, last: false, success: false };
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
fn fault_of(got: &[u8], kind: u8) -> Fault {
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
    let common = Common::parse(rest.first_chunk().unwrap(), &Rules::NONE).unwrap();
    match Header::parse(&common, rest).unwrap() {
        Header::C2HTermReq(fault) | Header::H2CTermReq(fault) => fault,
        other => panic!("{other:?}"),
    }
}

/// Runs a target against a peer that sends `lots`, until the connection has ended or for 30 s.
fn run_target(lots: Vec<Vec<u8>>) -> Machines<Raw, End> {
    let (mut client, mut server) = machines(1, &|_, _| {});
    server.host().listen(Listen { addr: None, port: PORT, backlog: 8 }).unwrap();
    let mut raw = Raw::new(true, lots);
    raw.socket = Some(client.host().connect(START, REMOTE).unwrap());
    let mut net = Machines::new(1, (client, raw), (server, End::new(Ok(SERVE))));
    net.run_until(Duration::from_secs(30), |net| net.server.app.ended.is_some());
    net.run_until(Duration::from_secs(1), |_| false);
    net
}

/// Sends `lots` to a target. Returns how it ended, the bytes of its answers, and its reports.
fn target(lots: Vec<Vec<u8>>) -> (Option<Ended>, Vec<u8>, Vec<String>) {
    let mut net = run_target(lots);
    let Network { client: Node { app: raw, .. }, server: Node { app: end, .. }, .. } = &mut *net;
    (end.ended, core::mem::take(&mut raw.got), core::mem::take(&mut end.came))
}

/// Like [`target`], for an initiator.
fn initiator(ask: Initiate, lots: Vec<Vec<u8>>) -> (Option<Ended>, Vec<u8>, Vec<String>) {
    let (mut client, mut server) = machines(1, &|_, _| {});
    server.host().listen(Listen { addr: None, port: PORT, backlog: 8 }).unwrap();
    let socket = client.host().connect(START, REMOTE).unwrap();
    let mut end = End::new(Err(ask));
    end.transport = Some(Transport::initiate(socket, Arc::new(Provider), ask));
    let mut net = Machines::new(1, (client, end), (server, Raw::new(false, lots)));
    net.run_until(Duration::from_secs(30), |net| net.client.app.ended.is_some());
    net.run_until(Duration::from_secs(1), |_| false);
    let Network { client: Node { app: end, .. }, server: Node { app: raw, .. }, .. } = &mut *net;
    (end.ended, core::mem::take(&mut raw.got), core::mem::take(&mut end.came))
}

#[test]
fn what_a_target_does_not_take() {
    let h2c = |change: &dyn Fn(&mut DataHeader)| {
        let header = data(change);
        pdu(&Header::H2CData(header), header.len, &RULES)
    };
    let command = |bytes| pdu(&Header::CapsuleCmd([0; 64]), bytes, &RULES);
    let field = Fault::field;
    let open = || ic_req(|_| {});
    let wrong_digest = {
        let mut pdu = command(0);
        pdu[72] ^= 1;
        pdu
    };
    let no_data = vec![0x07, 0, 24, 0, 24, 0, 0, 0];
    let came = u32::from_le_bytes(wrong_digest[72..76].try_into().unwrap());
    let cases: Vec<(&str, Vec<Vec<u8>>, Fault)> = vec![
        ("no ICReq", vec![pdu(&Header::CapsuleCmd([0; 64]), 0, &Rules::NONE)], Fault::SEQUENCE),
        ("version", vec![ic_req(|r| r.pfv = 1)], Fault::unsupported(at::PFV)),
        ("alignment", vec![ic_req(|r| r.hpda = 32)], field(at::PDA)),
        ("a second", vec![open(), open()], Fault::SEQUENCE),
        ("type", vec![open(), patched(command(0), 0, 0x0a, 72)], field(at::TYPE)),
        ("direction", vec![open(), pdu(&Header::CapsuleResp([0; 16]), 0, &RULES)], field(at::TYPE)),
        // C2HData without data: the type is checked before the field that would also be wrong.
        ("read data", vec![open(), no_data], field(at::TYPE)),
        ("HLEN", vec![open(), patched(command(0), 2, 24, 72)], field(at::HLEN)),
        ("PLEN", vec![open(), patched(command(0), 4, 75, 72)], field(at::PLEN)),
        ("flags", vec![open(), patched(command(0), 1, 0, 72)], field(at::FLAGS)),
        ("PDO", vec![open(), patched(command(512), 3, 77, 72)], field(at::PDO)),
        ("capsule", vec![open(), command(1028)], Fault::LIMIT_EXCEEDED),
        ("header digest", vec![open(), wrong_digest], Fault::header_digest(came)),
        ("tag", vec![open(), h2c(&|d| d.ttag = 8)], field(at::TTAG)),
        ("command", vec![open(), h2c(&|d| d.cccid = 2)], field(at::CCCID)),
        ("last", vec![open(), h2c(&|d| d.last = true)], field(at::FLAGS)),
        ("behind", vec![open(), h2c(&|d| d.offset = AWAITED)], Fault::OUT_OF_RANGE),
        ("a hole", vec![open(), h2c(&|d| d.offset = 512)], Fault::OUT_OF_RANGE),
        ("long", vec![open(), h2c(&|d| d.len = 4100)], Fault::LIMIT_EXCEEDED),
        ("odd", vec![open(), h2c(&|d| d.offset = 2)], field(at::DATAO)),
    ];
    for (name, lots, fault) in cases {
        let (ended, got, came) = target(lots);
        assert_eq!(ended, Some(Ended::Terminated(fault)), "{name}");
        assert_eq!(fault_of(&got, 0x03), fault, "{name}");
        assert_eq!(came, Vec::<String>::new(), "{name}");
    }
}

#[test]
fn what_an_initiator_does_not_take() {
    let c2h = |change: &dyn Fn(&mut DataHeader)| {
        let header = data(change);
        pdu(&Header::C2HData(DataHeader { ttag: 0, ..header }), header.len, &RULES)
    };
    let r2t = R2t { cccid: TAG, ttag: 1, offset: 0, len: 0 };
    let field = Fault::field;
    let open = || ic_resp(|_| {});
    let cases: Vec<(&str, Vec<Vec<u8>>, Fault)> = vec![
        ("version", vec![ic_resp(|r| r.pfv = 9)], Fault::unsupported(at::PFV)),
        ("alignment", vec![ic_resp(|r| r.cpda = 32)], field(at::PDA)),
        ("MAXH2CDATA", vec![ic_resp(|r| r.maxh2cdata = 4092)], field(at::MAXH2CDATA)),
        ("early", vec![pdu(&Header::CapsuleResp([0; 16]), 0, &Rules::NONE)], Fault::SEQUENCE),
        ("direction", vec![open(), pdu(&Header::CapsuleCmd([0; 64]), 0, &RULES)], field(at::TYPE)),
        ("command", vec![open(), c2h(&|d| d.cccid = 8)], field(at::CCCID)),
        ("past it", vec![open(), c2h(&|d| (d.cccid, d.len) = (TAG, 8196))], Fault::OUT_OF_RANGE),
        ("nothing", vec![open(), pdu(&Header::R2T(r2t), 0, &RULES)], field(at::DATAL)),
    ];
    // SUCCESS with only a part of the data is detected before the data, regardless of who holds the
    // buffer.
    let part = c2h(&|d| (d.cccid, d.last, d.success) = (TAG, true, true));
    let cases = [cases, vec![("a part", vec![open(), part], field(at::FLAGS))]].concat();
    for (name, lots, fault) in cases {
        let (ended, got, came) = initiator(INITIATE, lots);
        assert_eq!(ended, Some(Ended::Terminated(fault)), "{name}");
        assert_eq!(fault_of(&got, 0x02), fault, "{name}");
        assert_eq!(came, Vec::<String>::new(), "{name}");
    }
    // SUCCESS without LAST_PDU.
    let success = c2h(&|d| (d.cccid, d.last, d.success) = (TAG, true, true));
    let (ended, ..) = initiator(INITIATE, vec![open(), patched(success, 1, 0x0b, 24)]);
    assert_eq!(ended, Some(Ended::Terminated(field(at::FLAGS))));
}

#[test]
fn digests_that_were_not_asked_for() {
    let plain = Initiate { header_digest: false, data_digest: false, ..INITIATE };
    let (ended, ..) = initiator(plain, vec![ic_resp(|_| {})]);
    assert_eq!(ended, Some(Ended::Terminated(Fault::field(at::DGST))));
}

#[test]
fn a_wrong_data_digest_is_said_and_the_connection_goes_on() {
    let mut wrong = pdu(&Header::H2CData(data(|_| {})), 4096, &RULES);
    let last = wrong.len() - 1;
    wrong[last] ^= 0x80;
    let right = pdu(&Header::H2CData(data(|d| d.offset = 4096)), 4096, &RULES);
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
        let mut pdu = pdu(&Header::H2CData(header), 4, &RULES);
        *pdu.last_mut().unwrap() ^= u8::from(offset == 0);
        lot.extend(pdu);
    }
    let net = run_target(vec![ic_req(|_| {}), lot]);
    let End { ended, came, .. } = &net.server.app;
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
    let fault = Fault { fes: Fes::OUT_OF_RANGE, fei: 3 };
    let (ended, got, _) = target(vec![ic_req(|_| {}), pdu(&Header::H2CTermReq(fault), 24, &RULES)]);
    assert_eq!(ended, Some(Ended::TerminatedByPeer(fault)));
    assert_eq!(got.len(), 128, "ICResp and nothing more");
}

#[test]
fn a_peer_that_says_nothing() {
    let (ended, got, _) = target(vec![]);
    assert_eq!((ended, got), (Some(Ended::Silent), vec![]));
    let (ended, ..) = initiator(INITIATE, vec![]);
    assert_eq!(ended, Some(Ended::Silent));
}
