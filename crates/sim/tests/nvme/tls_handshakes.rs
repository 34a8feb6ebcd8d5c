//! TLS between target and initiator: with certificates, and with pre-shared keys by a scripted
//! handshake; and peers without TLS, with wrong keys, or that send garbage.

use std::sync::Arc;

use apps::nvme::SecureChannelError;
use apps::nvme::handshake::{
    NvmeHandshakeProgress, NvmeHandshakeResult, NvmeTlsHandshake, NvmeTlsHandshakeFactory,
};
use apps::nvme::initiator::{AssociationLoss, Initiator, InitiatorEvent, InitiatorState};
use base::{Duration, Instant};
use bytes::Bytes;
use crypto::Provider;
use host::nvme::NvmeTransportEnd;
use host::{
    Application, Host, Notice, SocketError, SocketId, TlsAlert, TlsDirection, TlsKeys, TlsVersion,
};
use outboard_sim::storage::user::UserLoad;
use testkit::NetworkNode;
use wire::nvme::status::NvmeStatus;
use wire::tls::fatal_alert;

use crate::machines::LinkFaultRates;
use crate::storage::{HOST, LONG, REMOTE, SUBSYSTEM, StorageRun, StorageRunParams, tls};

/// One end of a fake handshake with the shape of TLS: the client's hello, two records of the
/// server, of which the second is marked as encrypted, and the client's last record. Alerts are
/// those of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FakePsk {
    /// The key. Both ends must have the same.
    pub(crate) key: u8,
    /// NQN of the host to which the target believes the key belongs.
    pub(crate) host: &'static str,
    /// Content length of each record: longer than a segment, or shorter.
    pub(crate) bulk: usize,
    /// True if no handshake can be created.
    pub(crate) unavailable: bool,
}

impl FakePsk {
    pub(crate) const RIGHT: Self = Self { key: 7, host: HOST, bulk: 200, unavailable: false };

    pub(crate) fn shared(self) -> Arc<dyn NvmeTlsHandshakeFactory> {
        Arc::new(self)
    }

    fn make(self, client: bool) -> Option<Box<dyn NvmeTlsHandshake>> {
        let end: Box<dyn NvmeTlsHandshake> =
            Box::new(FakeHandshake { script: self, client, spoke: false });
        Some(end).filter(|_| !self.unavailable)
    }

    fn record(self, kind: u8, word: u8) -> Vec<u8> {
        let len = u16::try_from(self.bulk).unwrap().to_be_bytes();
        let mut record = vec![kind, 3, 3, len[0], len[1]];
        record.resize(5 + self.bulk, word);
        record
    }
}

impl NvmeTlsHandshakeFactory for FakePsk {
    fn server(&self) -> Option<Box<dyn NvmeTlsHandshake>> {
        self.make(false)
    }

    fn client(&self) -> Option<Box<dyn NvmeTlsHandshake>> {
        self.make(true)
    }
}

/// The state of one end of the fake handshake.
struct FakeHandshake {
    script: FakePsk,
    client: bool,
    spoke: bool,
}

/// Content type of ChangeCipherSpec, which is ignored, as in TLS 1.3.
const CHANGE_CIPHER_SPEC: u8 = 20;
const HELLO: u8 = 22;
const ENCRYPTED: u8 = 23;
/// The fatal alert `decrypt_error`: the binder was made with another key.
const DECRYPT_ERROR: [u8; 7] = fatal_alert(51);

impl FakeHandshake {
    fn agreed(&self) -> Box<NvmeHandshakeResult> {
        let direction = |text: u8| TlsDirection::new(&[text; 32], [self.script.key; 12], 0);
        let (a, b) = (direction(1), direction(2));
        let (tx, rx) = if self.client { (a, b) } else { (b, a) };
        let (version, suite) = (TlsVersion::Tls13, abi::crypto::Suite::Aes128Gcm);
        let keys = TlsKeys { version, suite, tx, rx, crypto: Arc::new(Provider) };
        let identity = format!("NVMe1R01 {} {SUBSYSTEM} digest", self.script.host).into_bytes();
        Box::new(NvmeHandshakeResult { keys, identity })
    }
}

impl NvmeTlsHandshake for FakeHandshake {
    fn advance(&mut self, received: &[u8], out: &mut Vec<u8>) -> NvmeHandshakeProgress {
        if received.first() == Some(&CHANGE_CIPHER_SPEC) {
            return NvmeHandshakeProgress::More { used: 6 };
        }
        let FakePsk { key, bulk, .. } = self.script;
        let whole = 5 + bulk;
        let is = |at: usize, kind: u8| {
            let record = received.get(at * whole..(at + 1) * whole);
            record.is_some_and(|record| record[0] == kind && record[5] == key)
        };
        let spoke = core::mem::replace(&mut self.spoke, true);
        let count = received.len() / whole;
        if self.client && !spoke {
            out.extend(self.script.record(HELLO, key));
            return NvmeHandshakeProgress::More { used: 0 };
        }
        if received.first() == Some(&21) {
            return NvmeHandshakeProgress::Failed { used: 7 };
        }
        match (self.client, spoke, count) {
            // Unused bytes are passed again, with more appended.
            (_, _, 0) | (true, _, 1) => {
                self.spoke = self.client;
                NvmeHandshakeProgress::More { used: 0 }
            }
            (true, ..) if is(0, HELLO) && is(1, ENCRYPTED) => {
                out.extend(self.script.record(ENCRYPTED, key));
                NvmeHandshakeProgress::Done { used: 2 * whole, result: self.agreed() }
            }
            (false, false, _) if is(0, HELLO) => {
                out.extend(self.script.record(HELLO, key));
                out.extend(self.script.record(ENCRYPTED, key));
                NvmeHandshakeProgress::More { used: whole }
            }
            (false, true, _) if is(0, ENCRYPTED) => {
                NvmeHandshakeProgress::Done { used: whole, result: self.agreed() }
            }
            _ => {
                out.extend(DECRYPT_ERROR);
                NvmeHandshakeProgress::Failed { used: received.len() }
            }
        }
    }
}

/// Returns a run in which both ends have the same key.
fn keyed() -> StorageRunParams {
    StorageRunParams {
        psk: (Some(FakePsk::RIGHT), Some(FakePsk::RIGHT)),
        requests: 60,
        ..StorageRunParams::default()
    }
}

fn counts<const N: usize>(stage: &StorageRun, names: [&str; N]) -> [u64; N] {
    names.map(|name| stage.net.server.count(name))
}

/// Checks that the devices encrypted and decrypted all connections, or the hosts without offload.
fn check_tls(stage: &StorageRun, connections: u64) {
    let StorageRunParams { offload, .. } = stage.run;
    for machine in stage.net.both() {
        let names = ["tls_tx_device", "tls_rx_device", "tls_tx_sw", "tls_rx_sw"];
        let [device, host] = if offload { [connections, 0] } else { [0, connections] };
        assert_eq!(names.map(|name| machine.sum_counters(name)), [device, device, host, host]);
        for name in ["tls_decrypt_error", "tls_alerts_sent", "tls_alerts_received"] {
            assert_eq!(machine.sum_counters(name), 0, "{name}");
        }
    }
}

#[test]
fn keys_that_both_have() {
    for (offload, bulk) in [(true, 200), (false, 200), (true, 5000), (true, 1)] {
        let script = FakePsk { bulk, ..FakePsk::RIGHT };
        let stage = StorageRunParams { psk: (Some(script), Some(script)), offload, ..keyed() }
            .run_checked();
        stage.check_counters();
        // The admin queue and two I/O queues.
        check_tls(&stage, 3);
        assert_eq!(stage.user().count("nvmei_tls_handshakes"), 3);
        let names = ["nvmet_tls_handshakes", "nvmet_tls_handshakes_failed", "nvmet_refused_host"];
        assert_eq!(counts(&stage, names), [3, 0, 0]);
    }
}

#[test]
fn keys_on_a_faulty_link() {
    for seed in 1..=4 {
        let faults = LinkFaultRates { loss: 0.05, reorder: 0.05, duplicate: 0.02 };
        let bulk = if seed % 2 == 0 { 4000 } else { 200 };
        let script = FakePsk { bulk, ..FakePsk::RIGHT };
        let psk = (Some(script), Some(script));
        let stage =
            StorageRunParams { seed, faults, psk, offload: seed < 4, ..keyed() }.run_checked();
        assert!(stage.net.dropped() > 0);
        assert_eq!(stage.net.server.count("nvmet_tls_handshakes"), 3);
    }
}

#[test]
fn certificates() {
    for offload in [true, false] {
        let stage =
            StorageRunParams { tls: true, offload, requests: 60, ..StorageRunParams::default() }
                .run_checked();
        stage.check_counters();
        check_tls(&stage, 3);
        assert_eq!(stage.net.server.count("tls_handshakes"), 3);
        // The host did the handshakes. These counters are for pre-shared keys.
        assert_eq!(stage.net.server.count("nvmet_tls_handshakes"), 0);
        assert_eq!(stage.user().count("nvmei_tls_handshakes"), 0);
    }
}

/// Every new connection has a handshake of its own.
#[test]
fn a_target_with_keys_that_dies() {
    let load = UserLoad { depth: 64, bytes_max: 32_768, changes: 5 };
    let mut stage = StorageRunParams { load, requests: 600, ..keyed() }.start();
    for round in 1..=3 {
        stage.until_busy(round * 120, 40);
        stage.restart_target(round == 2);
    }
    stage.finish();
    assert_eq!(stage.user().failures(), []);
    assert_eq!(stage.user().count("nvmei_associations"), 4);
    // The last target counts only its own handshakes; the initiator counts all.
    assert_eq!(stage.net.server.count("nvmet_tls_handshakes"), 3);
    assert_eq!(stage.user().count("nvmei_tls_handshakes"), 12);
}

#[test]
fn a_certificate_that_is_not_trusted() {
    let mut stage =
        StorageRunParams { tls: true, requests: 0, ..StorageRunParams::default() }.start();
    stage.until(|user| user.events == [InitiatorEvent::Connected]);
    // The initiator trusts another certificate.
    let stranger = stage.run.initiator(Some(&tls()));
    stage.net.client.app.initiator = Initiator::new(stranger, REMOTE);
    stage.connect();
    stage.until(|user| user.events.len() > 1);
    let lost = NvmeTransportEnd::Lost(SocketError::TlsHandshake);
    assert_eq!(stage.user().events[1], InitiatorEvent::Lost(AssociationLoss::Connection(lost)));
    assert!(stage.net.run_until(LONG, |net| net.server.count("nvmet_tls_handshakes_failed") > 0));
    assert_eq!(stage.net.server.count("nvmet_tls_plain"), 0);
    assert_eq!(stage.net.server.count("tls_handshake_failures"), 1);
}

/// Runs an attempt to connect that fails. Returns the reason for which it failed, and the run with
/// its target, to which others may still connect.
fn run_refused(run: StorageRunParams) -> (AssociationLoss, StorageRun) {
    let mut stage = StorageRunParams { requests: 0, ..run }.start();
    stage.until(|user| !user.events.is_empty());
    let (InitiatorEvent::Lost(loss) | InitiatorEvent::Failed(loss)) = stage.user().events[0] else {
        panic!("it did connect: {run:?}");
    };
    // Wait until the target has closed the connection, too.
    assert!(stage.net.run_until(LONG, |net| net.server.count("nvmet_connections_open") == 0));
    (loss, stage)
}

/// Connects an initiator with the target's own keys, and checks that it succeeds.
fn connect_with_right_keys(stage: &mut StorageRun) {
    let run = StorageRunParams { psk: (stage.run.psk.1, stage.run.psk.1), ..stage.run };
    let now = stage.net.now;
    let NetworkNode { machine, app: user } = &mut stage.net.client;
    user.initiator.close(now, machine.host());
    user.events.clear();
    user.restart(run.initiator(stage.tls.as_ref()), REMOTE);
    stage.connect();
    stage.finish();
    assert_eq!(stage.user().events, [InitiatorEvent::Connected]);
}

const FAILED: [&str; 4] =
    ["nvmet_tls_handshakes", "nvmet_tls_handshakes_failed", "nvmet_tls_plain", "nvmet_controllers"];

#[test]
fn another_key() {
    let wrong = FakePsk { key: 8, ..FakePsk::RIGHT };
    let (loss, mut stage) =
        run_refused(StorageRunParams { psk: (Some(wrong), Some(FakePsk::RIGHT)), ..keyed() });
    assert_eq!(loss, AssociationLoss::Insecure(SecureChannelError::Handshake(Some(51))));
    assert!(loss.to_string().contains("it has a different key"), "{loss}");
    assert_eq!(counts(&stage, FAILED), [0, 1, 0, 0]);
    assert_eq!(stage.user().count("nvmei_tls_handshakes_failed"), 1);
    connect_with_right_keys(&mut stage);
}

#[test]
fn no_handshake_available() {
    let broken = FakePsk { unavailable: true, ..FakePsk::RIGHT };
    let (loss, stage) =
        run_refused(StorageRunParams { psk: (Some(FakePsk::RIGHT), Some(broken)), ..keyed() });
    assert_eq!(loss, AssociationLoss::Connection(NvmeTransportEnd::Closed));
    assert_eq!(counts(&stage, FAILED), [0, 1, 0, 0]);
    let (loss, stage) =
        run_refused(StorageRunParams { psk: (Some(broken), Some(FakePsk::RIGHT)), ..keyed() });
    assert_eq!(loss, AssociationLoss::Insecure(SecureChannelError::Handshake(None)));
    assert_eq!(stage.user().count("nvmei_tls_handshakes_failed"), 1);
}

#[test]
fn a_key_of_another_host() {
    let other = FakePsk { host: "nqn.2026-11.example:other", ..FakePsk::RIGHT };
    let mut stage =
        StorageRunParams { psk: (Some(other), Some(other)), requests: 0, ..keyed() }.start();
    stage.until(|user| !user.events.is_empty());
    let InitiatorState::Failed(loss) = stage.user().initiator.state() else { panic!("it may not") };
    let step = "connect of the admin queue";
    let status = NvmeStatus::INVALID_HOST.do_not_retry();
    assert_eq!(loss, AssociationLoss::Refused { step, status });
    let names = ["nvmet_tls_handshakes", "nvmet_refused_identity", "nvmet_refused_host"];
    assert_eq!(counts(&stage, names), [1, 1, 1]);
    assert_eq!(stage.net.server.count("nvmet_controllers"), 0);
}

#[test]
fn a_plain_host_at_a_target_with_keys() {
    let (loss, mut stage) =
        run_refused(StorageRunParams { psk: (None, Some(FakePsk::RIGHT)), ..keyed() });
    assert_eq!(loss, AssociationLoss::Insecure(SecureChannelError::Tls));
    assert_eq!(counts(&stage, FAILED), [0, 1, 1, 0]);
    connect_with_right_keys(&mut stage);
}

#[test]
fn a_plain_host_at_a_target_with_certificates() {
    let mut stage =
        StorageRunParams { tls: true, requests: 0, ..StorageRunParams::default() }.start();
    let plain = stage.run.initiator(None);
    stage.until(|user| user.events == [InitiatorEvent::Connected]);
    stage.net.client.app.initiator = Initiator::new(plain, REMOTE);
    stage.connect();
    stage.until(|user| user.events.len() > 1);
    assert_eq!(
        stage.user().events[1],
        InitiatorEvent::Lost(AssociationLoss::Insecure(SecureChannelError::Tls))
    );
    assert!(stage.net.run_until(LONG, |net| net.server.count("nvmet_tls_plain") > 0));
    assert_eq!(counts(&stage, FAILED), [0, 1, 1, 1]);
}

#[test]
fn a_host_with_keys_at_a_plain_target() {
    let (loss, mut stage) =
        run_refused(StorageRunParams { psk: (Some(FakePsk::RIGHT), None), ..keyed() });
    assert_eq!(loss, AssociationLoss::Insecure(SecureChannelError::Plain));
    assert_eq!(stage.net.server.count("nvmet_connections_terminated"), 1);
    connect_with_right_keys(&mut stage);
}

#[test]
fn a_host_with_certificates_at_a_plain_target() {
    let mut stage =
        StorageRunParams { tls: true, requests: 0, ..StorageRunParams::default() }.start();
    let secure = stage.run.initiator(stage.tls.as_ref());
    let plain = StorageRunParams { requests: 0, ..StorageRunParams::default() }.start();
    stage.net = plain.net;
    stage.net.client.app.initiator = Initiator::new(secure, REMOTE);
    stage.connect();
    stage.until(|user| !user.events.is_empty());
    let why = SocketError::Tls(TlsAlert::UnexpectedMessage);
    assert_eq!(
        stage.user().events,
        [InitiatorEvent::Lost(AssociationLoss::Connection(NvmeTransportEnd::Lost(why)))]
    );
}

/// A peer of the target that sends each piece in a packet of its own, and keeps what it receives.
struct RawTlsPeer {
    socket: SocketId,
    pieces: Vec<Vec<u8>>,
    got: Vec<u8>,
    ended: bool,
}

impl Application for RawTlsPeer {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, _: Notice) {
        let ready = host.readiness(self.socket);
        if ready.writable && !self.pieces.is_empty() {
            for piece in self.pieces.drain(..) {
                host.send(now, self.socket, Bytes::from(piece)).unwrap();
            }
        }
        while !host.peek(self.socket).is_empty() {
            self.got.extend_from_slice(host.peek(self.socket));
            let len = host.peek(self.socket).len();
            host.consume(self.socket, len);
        }
        let ready = host.readiness(self.socket);
        if !self.ended && (ready.peer_closed || ready.error.is_some()) {
            self.ended = true;
            host.close(now, self.socket);
        }
    }
}

/// Sends `pieces` to a target with keys, and checks its counters [`FAILED`] against `counted`.
/// Returns its answer, and the time until it ended the connection. Other connections are not
/// disturbed.
fn answer(pieces: Vec<Vec<u8>>, counted: [u64; 4]) -> (Vec<u8>, Duration) {
    let mut stage = StorageRunParams { requests: 20, ..keyed() }.start();
    stage.until(|user| user.events == [InitiatorEvent::Connected]);
    let StorageRun { run, mut net, tls } = stage;
    let began = net.now;
    let socket = net.client.host().connect(began, REMOTE).unwrap();
    // The user does not run meanwhile: its connections wait.
    let (mut net, user) =
        net.with_client(RawTlsPeer { socket, pieces, got: Vec::new(), ended: false });
    assert!(net.run_until(LONG, |net| net.client.app.ended), "it was ended");
    let took = net.now.since(began);
    let (net, raw) = net.with_client(user);
    let mut stage = StorageRun { run, net, tls };
    stage.pump();
    assert_eq!(counts(&stage, FAILED), counted);
    stage.finish();
    (raw.got, took)
}

const UNEXPECTED_MESSAGE: [u8; 7] = fatal_alert(10);
const RECORD_OVERFLOW: [u8; 7] = fatal_alert(22);
const SHORT: Duration = Duration::from_secs(1);

#[test]
fn garbage_is_answered_by_an_alert() {
    let right = FakePsk::RIGHT;
    let with = |failed, plain| [3, failed, plain, 1];
    // An ICReq and other bytes that are no TLS record, also if only one byte of them has come.
    for piece in [vec![0; 128], vec![b'G'], b"GET / HTTP/1.1\r\n\r\n".to_vec()] {
        let (got, took) = answer(vec![piece], with(1, 1));
        assert_eq!(got, UNEXPECTED_MESSAGE);
        assert!(took < SHORT);
    }
    // A record above the maximum length.
    let (got, took) = answer(vec![vec![22, 3, 3, 0xff, 0xff], vec![0; 2000]], with(1, 0));
    assert_eq!(got, RECORD_OVERFLOW);
    assert!(took < SHORT);
    // More records than any handshake has. The handshake itself ignores them.
    let (got, took) = answer(vec![[CHANGE_CIPHER_SPEC, 3, 3, 0, 1, 1].repeat(6000)], with(1, 0));
    assert_eq!(got, RECORD_OVERFLOW);
    assert!(took < SHORT);
    // A hello with another key, and a last record with another key.
    let wrong = FakePsk { key: 9, ..right };
    let (got, _) = answer(vec![wrong.record(HELLO, 9)], with(1, 0));
    assert_eq!(got, DECRYPT_ERROR);
    let (got, _) = answer(vec![right.record(HELLO, 7), right.record(ENCRYPTED, 9)], with(1, 0));
    assert_eq!(
        got,
        [right.record(HELLO, 7), right.record(ENCRYPTED, 7), DECRYPT_ERROR.into()].concat()
    );
    // Plain bytes in the middle of the handshake.
    let (got, _) = answer(vec![right.record(HELLO, 7), vec![4; 64]], with(1, 1));
    assert!(got.ends_with(&UNEXPECTED_MESSAGE));
}

#[test]
fn silent_peers_are_disconnected() {
    let right = FakePsk::RIGHT;
    let half = right.record(HELLO, 7)[..100].to_vec();
    for pieces in [vec![], vec![vec![22]], vec![half], vec![right.record(HELLO, 7)]] {
        // The time limit of the Connect command applies. No handshake is counted as failed.
        let (got, took) = answer(pieces, [3, 0, 0, 1]);
        assert!(!got.starts_with(&[21]));
        assert!((10..12).contains(&took.as_secs()), "{took:?}");
    }
}

/// The handshake works with its records cut into segments of any length, also with two records in
/// one.
#[test]
fn records_in_any_pieces() {
    for step in [1, 2, 5, 6, 199, 204, 205, 206, 409] {
        let right = FakePsk::RIGHT;
        let bytes = [right.record(HELLO, 7), right.record(ENCRYPTED, 7)].concat();
        let pieces = bytes.chunks(step).map(<[u8]>::to_vec).collect();
        // The handshake succeeds, and then the peer is silent.
        let (got, took) = answer(pieces, [3, 0, 0, 1]);
        assert_eq!(got.len(), 2 * 205);
        assert!((10..12).contains(&took.as_secs()), "{took:?}");
    }
}
