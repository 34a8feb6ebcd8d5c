//! Patterns in the data of NVMe/TCP commands: initiator and target on real stacks and devices, with
//! devices that inspect and with hosts that do it all, plain and over TLS. Both find the same.

mod machines;

use std::collections::BTreeMap;
use std::sync::Arc;

use abi::Refusal;
use abi::aligned::AlignedBuf;
use base::{Duration, Instant};
use bytes::Bytes;
use crypto::Provider;
use host::{Application, Host, Notice, TlsClient, TlsServer};
use machines::{CLIENT, SERVER, content, machine};
use nic::L5oConfig;
use outboard_apps::nvme::initiator::{
    Initiator, InitiatorConfig, InitiatorState, NvmeRequest, NvmeRequestError,
};
use outboard_apps::nvme::target::{NamespaceConfig, NvmeTarget, NvmeTargetConfig, SubsystemConfig};
use outboard_apps::pattern_rules::{PatternRules, RuleCounterNames};
use testkit::{MemDisk, TestMachine, TwoMachineNetwork};
use wire::Endpoint;
use wire::nvme::nqn::Nqn;
use wire::nvme::status::NvmeStatus;

const BLOCK: usize = 4096;
const BLOCKS: usize = 1024;
const RULES: &str = "evil\ncount: needle\ncount: dle nee\ncount: \\x00\\x00\\x00";
/// Counters of the rules, and of the bytes that were inspected.
const COUNTERS: [&str; 5] = [
    "pattern_line_1_matches",
    "pattern_line_2_matches",
    "pattern_line_3_matches",
    "pattern_line_4_matches",
    "inspect_matches",
];

/// The initiator, and the results of its requests by token.
struct Requests {
    initiator: Initiator,
    done: BTreeMap<u64, (Result<u64, NvmeRequestError>, Option<AlignedBuf>)>,
}

impl Application for Requests {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        self.initiator.handle_notice(now, host, notice);
        while let Some(done) = self.initiator.poll_done() {
            self.done.insert(done.token, (done.result, done.buffer));
        }
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.initiator.handle_timeout(now, host);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.initiator.poll_timeout()
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.initiator.visit_counters(f);
    }
}

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
struct Run {
    offload: bool,
    tls: bool,
    digests: bool,
}

struct PatternRig {
    net: TwoMachineNetwork<Requests, NvmeTarget>,
    next: u64,
}

fn nqn(name: &str) -> Nqn {
    Nqn::new(&format!("nqn.2026-11.example:{name}")).expect("it is valid")
}

fn node(number: u8, offload: bool) -> TestMachine<MemDisk> {
    let switch = if offload { Ok(()) } else { Err(Refusal::Disabled) };
    machine(number, switch, Some(L5oConfig::new(Arc::new(Provider))))
}

fn rules() -> Option<Arc<PatternRules>> {
    let rules = PatternRules::parse(RULES, &mut RuleCounterNames::default());
    Some(Arc::new(rules.expect("they are valid")))
}

impl PatternRig {
    fn new(run: Run) -> Self {
        Self::with_disk(run, content(BLOCKS * BLOCK))
    }

    fn with_disk(run: Run, disk: Vec<u8>) -> Self {
        let mut server = node(SERVER, run.offload);
        server.disk.insert("disk", disk, 1);
        let (tls_server, tls_client) = if run.tls {
            let (server, client) = testkit::tls13(vec!["target.test".into()], b"nvme");
            let (mut server, mut client) = ((*server).clone(), (*client).clone());
            server.enable_secret_extraction = true;
            client.enable_secret_extraction = true;
            let name = "target.test".try_into().expect("a name");
            let crypto = Arc::new(Provider);
            (
                Some(TlsServer { config: Arc::new(server), crypto: Arc::clone(&crypto) as _ }),
                Some(TlsClient { config: Arc::new(client), name, crypto }),
            )
        } else {
            (None, None)
        };
        let subsystem = SubsystemConfig {
            nqn: nqn("disks"),
            serial: String::from("1"),
            hosts: None,
            namespaces: vec![NamespaceConfig::new(&nqn("disks"), "disk")],
        };
        let config = NvmeTargetConfig {
            subsystems: vec![subsystem],
            tls: tls_server,
            pattern_rules: rules(),
            maxh2cdata: 16_384,
            ..NvmeTargetConfig::default()
        };
        let target =
            NvmeTarget::new(config, Arc::new(Provider), server.host()).expect("it is good");
        let mut config =
            InitiatorConfig::new(nqn("host"), [7; 16], nqn("disks"), Arc::new(Provider));
        (config.tls, config.pattern_rules) = (tls_client, rules());
        (config.header_digest, config.data_digest) = (run.digests, run.digests);
        let remote = Endpoint { addr: [10, 77, 0, SERVER].into(), port: 4420 };
        let app = Requests { initiator: Initiator::new(config, remote), done: BTreeMap::new() };
        let client = (node(CLIENT, run.offload), app);
        let net = TwoMachineNetwork::new(Instant::from_millis(1), client, (server, target));
        let mut rig = Self { net, next: 0 };
        let now = rig.net.now;
        let client = &mut rig.net.client;
        client.app.initiator.connect(now, client.machine.host());
        rig.run_until(|rig| {
            let initiator = &rig.net.client.app.initiator;
            initiator.state() == InitiatorState::Live && initiator.namespaces().count() == 1
        });
        rig
    }

    fn run_until(&mut self, done: impl Fn(&Self) -> bool) {
        let end = self.net.now + Duration::from_secs(60);
        loop {
            self.net.settle();
            if done(self) {
                return;
            }
            assert!(self.net.advance(end), "nothing came of it: {:?}", self.net.client.counters());
        }
    }

    fn request(
        &mut self,
        request: NvmeRequest,
        buffer: Option<AlignedBuf>,
    ) -> (Result<u64, NvmeRequestError>, Option<AlignedBuf>) {
        let (now, token) = (self.net.now, self.next);
        self.next += 1;
        let client = &mut self.net.client;
        let host = client.machine.host();
        client.app.initiator.submit(now, host, (token, 1), request, buffer).expect("there is room");
        self.run_until(|rig| rig.net.client.app.done.contains_key(&token));
        self.net.client.app.done.remove(&token).expect("it is done")
    }

    fn write(&mut self, lba: usize, data: &[u8]) -> Result<u64, NvmeRequestError> {
        let data = Bytes::copy_from_slice(data);
        self.request(NvmeRequest::Write { lba: lba as u64, data, fua: false }, None).0
    }

    fn read(&mut self, lba: usize, blocks: usize) -> Result<Vec<u8>, NvmeRequestError> {
        let count = u32::try_from(blocks).expect("few");
        let request = NvmeRequest::Read { lba: lba as u64, blocks: count };
        let (result, buffer) = self.request(request, Some(AlignedBuf::new(blocks)));
        result.map(|_| buffer.expect("it comes back").as_slice()[..blocks * BLOCK].to_vec())
    }

    fn file(&mut self) -> Vec<u8> {
        self.net.server.disk.file("disk").bytes().to_vec()
    }
}

/// Returns data of `blocks` blocks, with patterns in it and across the limits of packets and
/// H2CData PDUs.
fn data(blocks: usize) -> Vec<u8> {
    let mut data = vec![b'.'; blocks * BLOCK];
    // In some frames, more matches than a claim may have.
    data[100..300].fill(0);
    for at in (600..data.len() - 20).step_by(997).chain([16_375].into_iter().filter(|_| blocks > 8))
    {
        data[at..at + 19].copy_from_slice(b"hay needle needle, ");
    }
    data
}

/// Returns how often the counted patterns of [`RULES`] occur in the data of a command.
fn occurrences(data: &[u8]) -> [u64; 3] {
    [&b"needle"[..], b"dle nee", b"\0\0\0"].map(|pattern| {
        data.windows(pattern.len()).filter(|window| *window == pattern).count() as u64
    })
}

const RUNS: [Run; 6] = [
    Run { offload: true, tls: false, digests: true },
    Run { offload: true, tls: false, digests: false },
    Run { offload: true, tls: true, digests: true },
    Run { offload: false, tls: false, digests: true },
    Run { offload: false, tls: true, digests: true },
    Run { offload: false, tls: false, digests: false },
];

/// In-capsule data, and data on R2Ts; read back. The counts are those of software.
#[test]
fn device_and_host_find_the_same() {
    for run in RUNS {
        let mut rig = PatternRig::new(run);
        let mut expected = [0; 3];
        for blocks in [1, 2, 3, 16, 100] {
            let data = data(blocks);
            assert_eq!(rig.write(10, &data), Ok(0), "{run:?}");
            assert_eq!(rig.read(10, blocks).as_deref(), Ok(&data[..]), "{run:?}");
            let found = occurrences(&data);
            (0..3).for_each(|rule| expected[rule] += found[rule]);
        }
        // A pattern that lies in the data of two commands is in neither.
        let mut half = vec![b'.'; BLOCK];
        half[BLOCK - 2..].copy_from_slice(b"ev");
        assert_eq!(rig.write(500, &half), Ok(0));
        half[..2].copy_from_slice(b"il");
        assert_eq!(
            rig.write(501, &half),
            Ok(0),
            "the data of each command is inspected for itself"
        );
        let all = [0, expected[0], expected[1], expected[2], expected.iter().sum()];
        let (client, server) = (&rig.net.client, &rig.net.server);
        assert_eq!(COUNTERS.map(|name| server.count(name)), all, "{run:?}: written");
        assert_eq!(COUNTERS.map(|name| client.count(name)), all, "{run:?}: read");
        let written = 124 * BLOCK as u64;
        for (end, bytes) in [("target", written), ("initiator", written - 2 * BLOCK as u64)] {
            let count =
                |name| if end == "target" { server.count(name) } else { client.count(name) };
            let [device, host] = ["inspect_device_bytes", "inspect_host_bytes"].map(count);
            assert_eq!(device + host, bytes, "{run:?}: {end}");
            assert_eq!(count("inspect_claims_invalid"), 0);
            if run.offload {
                // Frames with too many matches for their claims are inspected by the host.
                assert!(device > 0 && count("inspect_found") > 0, "{run:?}: {end}");
            } else {
                assert_eq!(device, 0, "{run:?}: {end}");
            }
        }
    }
}

/// Few matches: the device inspects every byte, since nothing is lost.
#[test]
fn the_device_inspects_all_of_a_faultless_stream() {
    for run in RUNS.into_iter().filter(|run| run.offload) {
        let mut rig = PatternRig::new(run);
        let mut data = vec![b'.'; 64 * BLOCK];
        data[16_380..16_386].copy_from_slice(b"needle");
        for lba in [0, 64, 128] {
            assert_eq!(rig.write(lba, &data), Ok(0));
            assert_eq!(rig.read(lba, 64).as_deref(), Ok(&data[..]));
        }
        let names = ["inspect_device_bytes", "inspect_host_bytes", "pattern_line_2_matches"];
        let expected = [3 * 64 * BLOCK as u64, 0, 3];
        assert_eq!(names.map(|name| rig.net.server.count(name)), expected, "{run:?}: written");
        assert_eq!(names.map(|name| rig.net.client.count(name)), expected, "{run:?}: read");
    }
}

/// A write with a denied pattern fails before the disk is used; other writes are executed.
#[test]
fn denied_data_never_reaches_the_namespace() {
    for run in RUNS {
        for blocks in [1, 3, 100] {
            let mut rig = PatternRig::new(run);
            let before = rig.file();
            for at in [0, 1446, blocks * BLOCK - 4] {
                let mut bad = vec![b'.'; blocks * BLOCK];
                bad[at..at + 4].copy_from_slice(b"evil");
                let denied = NvmeRequestError::Status(NvmeStatus::ACCESS_DENIED.do_not_retry());
                assert_eq!(rig.write(10, &bad), Err(denied), "{run:?} {blocks} {at}");
                let data = Bytes::from(bad);
                let (compared, _) = rig.request(NvmeRequest::Compare { lba: 10, data }, None);
                assert_eq!(compared, Err(denied));
            }
            assert!(rig.file() == before, "{run:?}: nothing of the data is on the disk");
            let good = vec![b'.'; blocks * BLOCK];
            assert_eq!(rig.write(10, &good), Ok(0));
            let server = &rig.net.server;
            assert_eq!(server.count("nvmet_errors_denied"), 6);
            assert_eq!(server.count("nvmet_errors_disk"), 0, "no alarm");
            assert_eq!(server.count("pattern_line_1_matches"), 6);
            assert_eq!(server.count("nvmet_written_bytes"), (blocks * BLOCK) as u64);
        }
    }
}

/// A read whose data contains a denied pattern fails at the initiator.
#[test]
fn denied_data_is_not_returned() {
    for run in RUNS {
        let mut disk = vec![0xff; BLOCKS * BLOCK];
        disk[20 * BLOCK + 5..][..4].copy_from_slice(b"evil");
        let mut rig = PatternRig::with_disk(run, disk);
        assert_eq!(rig.read(10, 64), Err(NvmeRequestError::DeniedPattern), "{run:?}");
        assert!(rig.read(21, 64).is_ok(), "{run:?}");
        assert_eq!(rig.net.client.count("nvmei_denied"), 1);
        assert_eq!(rig.net.client.count("pattern_line_1_matches"), 1);
    }
}
