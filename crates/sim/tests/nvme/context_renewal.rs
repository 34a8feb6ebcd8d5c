//! Offload contexts that are created anew: TLS key updates, also in the middle of a PDU, device
//! resets, and both under loss. The peer has no `Transport`: it writes PDUs in pieces of any
//! length, so that records end, and keys change, anywhere.

use std::collections::{BTreeMap, VecDeque};

use base::{Duration, Instant, Prng};
use bytes::Bytes;
use crypto::Provider;
use host::nvme::NvmeInitiatorParams;
use host::{Application, Host, Notice, SocketId};
use testkit::NetworkNode;
use wire::nvme::pdu::{DataPduHeader, IcReq, IcResp, PduCommonHeader, PduHeader, PduRules};

use crate::machines::{FaultyDiskMachine, FaultyLinkPair, LinkFaultRates, START, machines};
use crate::transport::{
    PatternCommand, PatternInitiator, PatternTarget, connect, listen, pattern_bytes, take,
    tls_with_key_updates,
};

/// Maximum data length of a PDU.
const PDU_DATA: u32 = 65_536;
const RULES: PduRules =
    PduRules { header_digest: true, data_digest: true, pda: 0, plen_max: u32::MAX };

fn pdu(header: &PduHeader, data: &[u8], rules: &PduRules) -> Vec<u8> {
    testkit::pdu(header, data, rules, &Provider).unwrap()
}

/// An initiator that writes, or a target that is read from, without any offload of NVMe/TCP.
struct SoftwareNvmePeer {
    /// True if it is the initiator.
    is_initiator: bool,
    /// True once the peer's ICReq or ICResp has come.
    handshake_done: bool,
    socket: Option<SocketId>,
    todo: VecDeque<PatternCommand>,
    depth: usize,
    running: BTreeMap<u16, PatternCommand>,
    done: usize,
    got: Vec<u8>,
    out: Vec<u8>,
    /// Maximum length of a piece that is sent at one time.
    piece: u64,
    rng: Prng,
}

impl SoftwareNvmePeer {
    fn new(asks: bool, piece: u64, seed: u64) -> Self {
        Self {
            is_initiator: asks,
            handshake_done: false,
            socket: None,
            todo: VecDeque::new(),
            depth: 8,
            running: BTreeMap::new(),
            done: 0,
            got: Vec::new(),
            out: Vec::new(),
            piece,
            rng: Prng::new(seed),
        }
    }

    /// Handles a whole PDU.
    fn take(&mut self, bytes: &[u8]) {
        let rules = if matches!(bytes[0], 0 | 1) { PduRules::NONE } else { RULES };
        let common = PduCommonHeader::parse(bytes.first_chunk().unwrap(), &rules).unwrap();
        match PduHeader::parse(&common, bytes).unwrap() {
            PduHeader::ICReq(_) => {
                let response = IcResp {
                    pfv: 0,
                    cpda: 0,
                    header_digest: true,
                    data_digest: true,
                    maxh2cdata: PDU_DATA,
                };
                self.out.extend(pdu(&PduHeader::ICResp(response), &[], &PduRules::NONE));
            }
            PduHeader::CapsuleCmd(sqe) => {
                let (cid, command) = PatternCommand::of(&sqe);
                assert!(!command.write, "this target is only read from");
                self.data(command, 0, |data| DataPduHeader {
                    cccid: cid,
                    success: data.last,
                    ..data
                });
            }
            PduHeader::R2T(r2t) => {
                let command = self.running[&r2t.cccid];
                assert_eq!((r2t.offset, r2t.len), (0, command.len));
                let (cccid, ttag) = (r2t.cccid, r2t.ttag);
                self.data(command, 1, |data| DataPduHeader { cccid, ttag, ..data });
            }
            PduHeader::CapsuleResp(cqe) => {
                let cid = u16::from_le_bytes([cqe[12], cqe[13]]);
                self.running.remove(&cid).expect("it was asked for");
                self.done += 1;
            }
            PduHeader::ICResp(_) => {}
            other => panic!("{other:?}"),
        }
        self.handshake_done |= matches!(bytes[0], 0 | 1);
        self.ask();
    }

    fn ask(&mut self) {
        while self.handshake_done && self.running.len() < self.depth {
            let Some(command) = self.todo.pop_front() else { return };
            let cid = (0..).find(|cid| !self.running.contains_key(cid)).unwrap();
            self.running.insert(cid, command);
            self.out.extend(pdu(&PduHeader::CapsuleCmd(command.sqe(cid)), &[], &RULES));
        }
    }

    /// Queues all data of a command, in PDUs of random lengths.
    fn data(
        &mut self,
        command: PatternCommand,
        version: u64,
        of: impl Fn(DataPduHeader) -> DataPduHeader,
    ) {
        let mut offset = 0;
        while offset < command.len {
            let most = u64::from(PDU_DATA / 4).min(u64::from(command.len - offset) / 4);
            let len = 4 * (1 + u32::try_from(self.rng.next_u64() % most).unwrap());
            let last = offset + len == command.len;
            let header = DataPduHeader { cccid: 0, ttag: 0, offset, len, last, success: false };
            let header = match (self.is_initiator, of(header)) {
                (true, header) => PduHeader::H2CData(header),
                (false, header) => PduHeader::C2HData(header),
            };
            let data = pattern_bytes(command.at + u64::from(offset), len, version);
            self.out.extend(pdu(&header, &data, &RULES));
            offset += len;
        }
    }

    fn work(&mut self, now: Instant, host: &mut Host) {
        let Some(socket) = self.socket else { return };
        take(host, socket, &mut self.got);
        while let Some(len) =
            self.got.get(4..8).map(|len| u32::from_le_bytes(len.try_into().unwrap()))
        {
            if self.got.len() < len as usize {
                break;
            }
            let rest = self.got.split_off(len as usize);
            let whole = core::mem::replace(&mut self.got, rest);
            self.take(&whole);
        }
        while !self.out.is_empty() && host.readiness(socket).writable {
            let piece = 1 + self.rng.next_u64() % self.piece;
            let piece = self.out.len().min(usize::try_from(piece).unwrap());
            let taken = host.send(now, socket, Bytes::copy_from_slice(&self.out[..piece])).unwrap();
            self.out.drain(..taken);
            if taken < piece {
                return;
            }
        }
    }
}

impl Application for SoftwareNvmePeer {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        let (Notice::Accepted(_, socket) | Notice::Socket(socket)) = notice else { return };
        let first = self.is_initiator
            && self.out.is_empty()
            && self.got.is_empty()
            && self.socket.is_none();
        self.socket = Some(socket);
        if first {
            let (header_digest, data_digest) = (true, true);
            let request = IcReq { pfv: 0, hpda: 0, header_digest, data_digest, maxr2t: 0 };
            self.out.extend(pdu(&PduHeader::ICReq(request), &[], &PduRules::NONE));
        }
        self.work(now, host);
    }
}

/// Parameters of a run against a [`SoftwareNvmePeer`] peer: rounds of commands, with a second
/// between them.
#[derive(Clone, Copy, Debug)]
struct RenewalRunParams {
    seed: u64,
    /// True if the peer writes and the transport is a target's; otherwise the transport reads from
    /// the peer.
    peer_writes: bool,
    /// TLS records per key; `None` on plain TCP.
    key_records: Option<u64>,
    /// Maximum length of a piece that the peer sends at one time.
    piece: u64,
    faults: LinkFaultRates,
    rounds: usize,
    /// Commands of a round.
    commands: usize,
    /// Maximum number of commands at one time.
    depth: usize,
    /// True if the transport's device is reset in the middle of each round.
    resets: bool,
    out_of_order: bool,
}

impl Default for RenewalRunParams {
    fn default() -> Self {
        Self {
            seed: 1,
            peer_writes: false,
            key_records: None,
            piece: 20_000,
            faults: LinkFaultRates::default(),
            rounds: 4,
            commands: 16,
            depth: 8,
            resets: false,
            out_of_order: true,
        }
    }
}

/// Both machines of a run, by the transport's role.
enum RenewalRun {
    Reads(FaultyLinkPair<PatternInitiator, SoftwareNvmePeer>),
    Writes(FaultyLinkPair<SoftwareNvmePeer, PatternTarget>),
}

impl RenewalRun {
    fn ask(&mut self, more: Vec<PatternCommand>) {
        match self {
            Self::Reads(net) => {
                let now = net.now;
                let NetworkNode { machine, app } = &mut net.client;
                app.ask(now, machine.host(), more.into_iter());
            }
            Self::Writes(net) => {
                let now = net.now;
                let NetworkNode { machine, app } = &mut net.client;
                app.todo.extend(more);
                app.ask();
                app.work(now, machine.host());
            }
        }
    }

    /// Runs until `all` commands have ended or `limit` has passed; returns whether they have ended.
    fn run(&mut self, limit: Duration, all: usize) -> bool {
        match self {
            Self::Reads(net) => net.run_until(limit, |net| net.client.app.done >= all),
            Self::Writes(net) => net.run_until(limit, |net| net.client.app.done >= all),
        }
    }

    /// Returns the machine with the transport.
    const fn machine(&self) -> &FaultyDiskMachine {
        match self {
            Self::Reads(net) => net.both()[0],
            Self::Writes(net) => net.both()[1],
        }
    }

    fn reset_device(&mut self) {
        match self {
            Self::Reads(net) => net.client.device().reset(),
            Self::Writes(net) => net.server.device().reset(),
        }
    }

    fn dropped(&self) -> u64 {
        match self {
            Self::Reads(net) => net.dropped(),
            Self::Writes(net) => net.dropped(),
        }
    }

    fn now(&self) -> Instant {
        match self {
            Self::Reads(net) => net.now,
            Self::Writes(net) => net.now,
        }
    }
}

impl RenewalRunParams {
    fn start(self) -> RenewalRun {
        let (mut client, mut server) = machines(self.seed, &|_, device| {
            if let Some(l5o) = &mut device.l5o {
                l5o.out_of_order = self.out_of_order;
            }
        });
        let shake = self.key_records.map(tls_with_key_updates);
        listen(server.host(), shake.as_ref().map(|(server, _)| server));
        let tls = shake.map(|(_, client)| client);
        let mut raw = SoftwareNvmePeer::new(self.peer_writes, self.piece, self.seed);
        raw.depth = self.depth;
        if self.peer_writes {
            connect(START, client.host(), tls.as_ref());
            let target = PatternTarget::new(0, Prng::new(self.seed));
            let mut net = FaultyLinkPair::new(self.seed, (client, raw), (server, target));
            net.set_faults(self.faults);
            RenewalRun::Writes(net)
        } else {
            let params =
                NvmeInitiatorParams { header_digest: true, data_digest: true, hpda: 0, maxr2t: 0 };
            let mut asker = PatternInitiator::new(params, self.depth, VecDeque::new());
            asker.client = tls;
            asker.connect(START, client.host());
            let mut net = FaultyLinkPair::new(self.seed, (client, asker), (server, raw));
            net.set_faults(self.faults);
            RenewalRun::Reads(net)
        }
    }

    /// Runs all commands to their end. Returns the machines, for their counters, and the bytes
    /// placed in each round.
    fn run_to_end(self) -> (RenewalRun, Vec<u64>) {
        let mut ends = self.start();
        let mut rng = Prng::new(self.seed);
        let sizes = [4096, 16_384, 65_536, 131_072 + 512, 262_144];
        let mut command = || PatternCommand {
            write: self.peer_writes,
            at: (rng.next_u64() % 1000) * 512,
            len: sizes[usize::try_from(rng.next_u64() % 5).unwrap()],
        };
        let (long, mut placed) = (Duration::from_secs(300), vec![]);
        for round in 0..self.rounds {
            let before = ends.machine().sum_counters("nvme_rx_placed_bytes");
            ends.ask((0..self.commands).map(|_| command()).collect());
            let (begun, all) = (round * self.commands, (round + 1) * self.commands);
            if self.resets {
                assert!(ends.run(long, begun + self.commands / 3), "{self:?}");
                ends.reset_device();
            }
            assert!(ends.run(long, all), "{self:?}: round {round}");
            ends.run(Duration::from_secs(1), all + 1);
            let after = ends.machine().sum_counters("nvme_rx_placed_bytes");
            placed.push(after - before);
        }
        let (bad_digests, ended) = match &ends {
            RenewalRun::Reads(net) => (net.client.app.bad_digests, net.client.app.ended),
            RenewalRun::Writes(net) => (net.server.app.bad_digests, net.server.app.ended),
        };
        assert_eq!((bad_digests, ended), (0, None));
        let machine = ends.machine();
        let contexts =
            machine.sum_counters("nvme_rx_renewed") + machine.sum_counters("nvme_rx_device");
        assert_eq!(machine.sum_counters("rx_nvmeotcp_sk_add"), contexts, "{self:?}");
        assert_eq!(machine.sum_counters("nvme_tcp_buffers"), 0, "all came back: {self:?}");
        (ends, placed)
    }
}

/// Key lifetime beyond the length of a run.
const LONG: Option<u64> = Some(1 << 20);
const LOSSY: LinkFaultRates = LinkFaultRates { loss: 0.02, reorder: 0.02, duplicate: 0.01 };

#[test]
fn devices_are_reset_with_hundreds_of_commands_under_way() {
    for (writes, key_records) in [(false, None), (true, None), (false, LONG), (true, LONG)] {
        let run = RenewalRunParams {
            peer_writes: writes,
            key_records,
            resets: true,
            ..RenewalRunParams::default()
        };
        let run = RenewalRunParams { commands: 300, depth: 300, rounds: 1, ..run };
        let (ends, placed) = run.run_to_end();
        let machine = ends.machine();
        for (name, is) in [
            // Counted by the host and by the device.
            ("device_resets", 2),
            ("nvme_rx_renewed", 1),
            ("nvme_rx_lost", 0),
            ("nvme_rx_put_off", 0),
            ("nvme_ddp_refused", 0),
            ("nvme_data_digest_errors", 0),
        ] {
            assert_eq!(machine.sum_counters(name), is, "{name}: {run:?}");
        }
        if key_records.is_none() {
            assert_eq!(machine.sum_counters("rx_nvmeotcp_drop"), 0, "nothing was searched for");
        }
        let copied = machine.sum_counters("nvme_rx_copied_bytes");
        assert!(copied > 0 && copied < placed[0] / 10, "{copied} {placed:?}: {run:?}");
    }
}

/// Records end and keys change at any byte of a PDU: a new context begins with the rest of a PDU.
#[test]
fn keys_change_within_a_pdu() {
    for writes in [false, true] {
        for (out_of_order, share) in [(false, 4), (true, 2)] {
            let run = RenewalRunParams {
                peer_writes: writes,
                key_records: Some(100),
                out_of_order,
                ..RenewalRunParams::default()
            };
            let (ends, placed) = run.run_to_end();
            let machine = ends.machine();
            let changes = machine.sum_counters("tls_rx_rekey_ok");
            assert_eq!(changes, 7);
            for (name, is) in [
                ("nvme_rx_lost", changes),
                ("nvme_rx_renewed", changes),
                ("nvme_rx_put_off", 0),
                ("tls_rx_device_put_off", 0),
                ("nvme_data_digest_errors", 0),
            ] {
                assert_eq!(machine.sum_counters(name), is, "{name}: {run:?}");
            }
            assert!(machine.sum_counters("nvme_tcp_streams_stopped") > 0);
            let all = placed.iter().sum::<u64>() + machine.sum_counters("nvme_rx_copied_bytes");
            assert!(
                placed.iter().all(|placed| *placed > all / 4 / 4 / share),
                "{placed:?} of {all}"
            );
        }
    }
}

#[test]
fn keys_change_under_loss() {
    for seed in 1..=3 {
        for writes in [false, true] {
            let run = RenewalRunParams {
                seed,
                peer_writes: writes,
                key_records: Some(100),
                faults: LOSSY,
                ..RenewalRunParams::default()
            };
            let (ends, placed) = RenewalRunParams { resets: seed == 3, ..run }.run_to_end();
            let machine = ends.machine();
            let renewed = machine.sum_counters("nvme_rx_renewed");
            assert!(renewed >= machine.sum_counters("nvme_rx_lost") && renewed >= 5, "{renewed}");
            assert!(ends.dropped() > 0);
            assert!(placed.iter().all(|placed| *placed > 100_000), "{placed:?}");
        }
    }
}

/// A peer that changes its keys every few records gets a bounded number of contexts per second, and
/// all its data arrives.
#[test]
fn keys_that_change_all_the_time() {
    for writes in [false, true] {
        let run = RenewalRunParams {
            peer_writes: writes,
            key_records: Some(3),
            piece: 1000,
            ..RenewalRunParams::default()
        };
        let (ends, _) = run.run_to_end();
        let machine = ends.machine();
        let seconds = ends.now().since(START).as_secs() + 1;
        let changes = machine.sum_counters("tls_rx_rekey_ok");
        assert!(changes > 1000, "{changes}");
        let contexts = machine.sum_counters("rx_nvmeotcp_sk_add");
        assert!(contexts > 4 && contexts <= 4 * seconds, "{contexts} in {seconds} s");
        let opened = machine.sum_counters("rx_tls_ctx");
        assert!(opened <= 64 * seconds, "{opened} in {seconds} s");
        assert!(machine.sum_counters("nvme_rx_put_off") > 0);
        assert!(machine.sum_counters("tls_rx_device_put_off") > 0);
    }
}

/// Random mixtures of key changes, resets and faults.
#[test]
fn random_mixtures_corrupt_no_byte() {
    for seed in 0..40 {
        let mut rng = Prng::new(seed);
        let mut pick = |of: &[u64]| of[usize::try_from(rng.next_u64()).unwrap_or(0) % of.len()];
        let run = RenewalRunParams {
            seed,
            peer_writes: pick(&[0, 1]) == 1,
            key_records: Some(pick(&[0, 4, 20, 60, 200, 1000])).filter(|records| *records > 0),
            piece: pick(&[300, 3000, 20_000, 100_000]),
            faults: [LinkFaultRates::default(), LOSSY, LinkFaultRates { loss: 0.1, ..LOSSY }]
                [usize::try_from(pick(&[0, 1, 2])).unwrap()],
            rounds: usize::try_from(pick(&[1, 2, 4])).unwrap(),
            commands: usize::try_from(pick(&[4, 12])).unwrap(),
            depth: usize::try_from(pick(&[1, 3, 16])).unwrap(),
            resets: pick(&[0, 1]) == 1,
            out_of_order: pick(&[0, 1, 1]) == 1,
        };
        run.run_to_end();
    }
}
