//! `outboard nvme` over TLS with both ends ours, between two TAP devices: certificates and
//! pre-shared keys, with and without offload, bad links, refused peers; and Wireshark, which
//! decrypts a capture with the key log.

use interop::{
    ADDR, Files, Netns, TestServer, expect_success, fio_report, nvme_initiator, nvme_target,
    output_text, run, run_for_output,
};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const HOST: &str = "nqn.2026-11.org.example:one";
const OTHER: &str = "nqn.2026-11.org.example:two";
/// Size of the namespace in bytes.
const DISK: u64 = 16 << 20;
/// Keys for tests only: with SHA-256, with SHA-384, and another one with SHA-256.
const KEY: &str = "NVMeTLSkey-1:01:H0D8ktokFpR1CXnubPWC8tXX0o4YM13gWrxU0FYOD1PSgP0x:";
const LONG_KEY: &str =
    "NVMeTLSkey-1:02:Umd2iCLuYk1I/OFexcp5y9YCy39MIVelFlVpkfIu+Me173sY0f9BxZNw77CFhlHUMfrrXw==:";
const WRONG_KEY: &str = "NVMeTLSkey-1:01:rMKNsr63tCuqHLAkPUAcy04/zkTXsCh5pSeZqt/1QVLMNNKi:";

/// A target, and the namespace of its initiators.
struct NvmeTlsFixture {
    server: TestServer,
    files: Files,
}

impl NvmeTlsFixture {
    fn start(options: &[&str]) -> Self {
        let files = Files::new(TMP);
        let disk = files.sparse("disk", DISK);
        let netns = Netns::new();
        // The kernel forwards between the TAP devices.
        netns.enable_ipv4_forwarding();
        Self { server: nvme_target(Arc::new(netns), &disk, options), files }
    }

    /// Returns a command for an initiator's verb.
    fn command(&self, verb: &str, options: &[&str]) -> Command {
        let control = self.files.path().join("initiator");
        let mut command = nvme_initiator(self.server.netns(), verb, ADDR, &control);
        command.args(options);
        command
    }

    fn run(&self, verb: &str, options: &[&str]) -> Output {
        run(&mut self.command(verb, options))
    }

    fn printed(&self, verb: &str, options: &[&str]) -> String {
        expect_success(&self.run(verb, options))
    }

    /// Reads and writes, and verifies every byte.
    fn read_and_verify(&self, options: &[&str], requests: &str) {
        let all = ["--requests", requests, "--writes", "40", "--bs", "16384", "--iodepth", "16"];
        let rest = ["--io-queues", "2", "--header-digest", "--data-digest", "--size", "1048576"];
        let said = self.printed("fio", &[&all[..], &rest, &["--json"], options].concat());
        assert!(fio_report(&said).0 > 0, "{said}");
    }

    /// Asserts that `list` fails with this exit code and message, in one line, and that no key is
    /// printed.
    fn expect_refused(&self, options: &[&str], code: i32, words: &str) {
        let output = self.run("list", options);
        let said = output_text(&output);
        assert_eq!(output.status.code(), Some(code), "{options:?}: {said}");
        assert!(said.contains(words), "{options:?}: {said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
        for key in [KEY, LONG_KEY, WRONG_KEY] {
            assert!(!said.contains(&key[16..40]), "a key is told: {said}");
        }
    }

    fn path(&self, name: &str) -> String {
        self.files.path().join(name).to_string_lossy().into_owned()
    }
}

/// Creates a self-signed certificate for the target's address; returns its path and that of its
/// key.
fn certificate(folder: &Path) -> [String; 2] {
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| folder.join(name));
    let mut command = Command::new("openssl");
    command
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-days", "2", "-subj", "/CN=target", "-addext"])
        .arg(format!("subjectAltName=IP:{ADDR},DNS:disks.example.org"))
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&cert);
    run_for_output(&mut command);
    [cert, key].map(|path| path.to_string_lossy().into_owned())
}

/// Checks that the device of a target over TLS did all of the work, or none.
fn check_offload(lab: &NvmeTlsFixture, on: bool) {
    let counters = lab.server.stat();
    let device = ["tls_tx_device", "tls_rx_device", "nvme_rx_placed_bytes", "file_offload_bytes"];
    let digests = ["nvme_rx_digests_device", "nvme_tx_digests_device"];
    let host = ["tls_tx_sw", "tls_rx_sw", "nvme_rx_digests_host", "nvme_tx_digests_host"];
    let wrong = ["nvme_data_digest_errors", "tls_decrypt_error", "tls_alerts_sent"];
    counters.expect_zero(&wrong);
    if on {
        counters.expect_nonzero(&[&device[..], &digests].concat());
        counters.expect_zero(&["tls_tx_sw", "tls_rx_sw", "nvme_tx_digests_host"]);
    } else {
        counters.expect_nonzero(&[&host[..], &["file_fallback_bytes"]].concat());
        counters.expect_zero(&[&device[..], &digests].concat());
    }
}

#[test]
fn certificates() {
    let keys = Files::new(TMP);
    let [cert, key] = certificate(keys.path());
    for offload in ["all", "none"] {
        let lab = NvmeTlsFixture::start(&[
            "--tls",
            "--tls-cert",
            &cert,
            "--tls-key",
            &key,
            "--offload",
            offload,
        ]);
        let ca = ["--tls", "--tls-ca", &cert, "--offload", offload];
        let found = lab.printed("discover", &ca);
        assert!(found.contains("tls13 required"), "{found}");
        lab.read_and_verify(&ca, "1000");
        check_offload(&lab, offload == "all");
        let named = [&ca[..], &["--tls-name", "disks.example.org"]].concat();
        lab.printed("list", &named);
        lab.expect_refused(&["--tls"], 2, "--tls-ca FILE");
        lab.expect_refused(
            &[&ca[..], &["--tls-name", "example.org"]].concat(),
            69,
            "not valid for name",
        );
        let discovery = lab.run("discover", &["--tls", "--tls-ca", &cert, "--tls-name", "x.org"]);
        assert_eq!(discovery.status.code(), Some(69), "{}", output_text(&discovery));
        lab.expect_refused(&["--tls", "--tls-ca", &key], 66, "no certificate found");
        lab.expect_refused(&["--tls-psk", KEY, "--hostnqn", HOST], 69, "the same key for this");
        lab.expect_refused(&[], 69, "the peer requires TLS; see --tls");
        let counters = lab.server.stat();
        assert_eq!(counters.get("nvmet_tls_plain"), 1);
        counters.expect_nonzero(&["nvmet_tls_handshakes_failed"]);
        lab.read_and_verify(&ca, "200");
    }
}

#[test]
fn untrusted_certificate_is_refused() {
    let keys = Files::new(TMP);
    let [cert, _] = certificate(keys.path());
    let lab = NvmeTlsFixture::start(&["--tls"]);
    lab.expect_refused(&["--tls", "--tls-ca", &cert], 69, "UnknownIssuer; check --tls-ca");
    lab.read_and_verify(&["--tls", "--insecure"], "200");
}

/// Each version, each derivation, each hash.
#[test]
fn pre_shared_keys() {
    for derivation in ["rfc8446", "libnvme"] {
        for offload in ["all", "none"] {
            let both = ["--tls-psk-derivation", derivation, "--offload", offload];
            let keys = Files::new(TMP);
            let file = keys.write("keys", format!("# of a test\n{OTHER} {LONG_KEY}\n").as_bytes());
            let file = file.to_string_lossy().into_owned();
            let one = format!("{HOST}={KEY}");
            let given = ["--tls-psk", &one, "--tls-psk-file", &file];
            let lab = NvmeTlsFixture::start(&[&given[..], &both].concat());
            for version in ["0", "1"] {
                let short = ["--hostnqn", HOST, "--tls-psk", KEY, "--tls-psk-version", version];
                let long = ["--hostnqn", OTHER, "--tls-psk-file", &file];
                let long = [&long[..], &["--tls-psk-version", version]].concat();
                for options in [&short[..], &long] {
                    lab.read_and_verify(&[options, &both].concat(), "300");
                }
                let found = lab.printed("discover", &[&short[..], &both].concat());
                assert!(found.contains("tls13 required"), "{found}");
            }
            check_offload(&lab, offload == "all");
            let counters = lab.server.stat();
            // Four runs with three queues each, and two discovery logs.
            assert_eq!(counters.get("nvmet_tls_handshakes"), 14);
            counters.expect_zero(&["nvmet_tls_handshakes_failed", "nvmet_refused_connect"]);
        }
    }
}

#[test]
fn faulty_links() {
    let faults = ["--drop", "0.01", "--reorder", "0.01", "--dup", "0.01"];
    let one = format!("{HOST}={KEY}");
    for (target, initiator) in [
        (vec!["--tls"], vec!["--tls", "--insecure"]),
        (vec!["--tls-psk", &one], vec!["--tls-psk", KEY, "--hostnqn", HOST]),
    ] {
        for offload in ["all", "none"] {
            let lab =
                NvmeTlsFixture::start(&[&target[..], &faults, &["--offload", offload]].concat());
            lab.read_and_verify(&[&initiator[..], &["--offload", offload]].concat(), "1000");
            let counters = lab.server.stat();
            counters.expect_zero(&["nvme_data_digest_errors", "tls_decrypt_error"]);
            let placed = counters.get("nvme_rx_placed_bytes");
            assert_eq!(placed > 0, offload == "all", "{placed}");
        }
    }
}

#[test]
fn peers_without_the_key_are_refused() {
    let one = format!("{HOST}={KEY}");
    let lab = NvmeTlsFixture::start(&["--tls-psk", &one]);
    let host = ["--hostnqn", HOST];
    let with = |more: &[&'static str]| [&host[..], more].concat();
    // Version 1 contains a hash of the key in its identity, so that a wrong key is unknown. With
    // version 0 the identity is the same, and the secrets differ.
    lab.expect_refused(&with(&["--tls-psk", WRONG_KEY]), 69, "it may not know the key");
    let old = with(&["--tls-psk", WRONG_KEY, "--tls-psk-version", "0"]);
    lab.expect_refused(&old, 69, "it has a different key");
    let other = with(&["--tls-psk", KEY, "--tls-psk-derivation", "libnvme"]);
    lab.expect_refused(&other, 69, "it may not know the key");
    lab.expect_refused(&["--hostnqn", OTHER, "--tls-psk", KEY], 69, "it may not know the key");
    lab.expect_refused(&with(&[]), 69, "the peer requires TLS; see --tls");
    lab.expect_refused(
        &with(&["--tls", "--insecure"]),
        69,
        "the target may require a pre-shared key",
    );
    let counters = lab.server.stat();
    assert_eq!(counters.get("nvmet_tls_handshakes_failed"), 6);
    assert_eq!(counters.get("nvmet_tls_plain"), 1);
    counters.expect_zero(&["nvmet_controllers", "nvmet_tls_handshakes"]);
    lab.read_and_verify(&with(&["--tls-psk", KEY]), "200");
}

/// SIGHUP reloads a file of keys: a host that is new in the file is accepted, and one that was
/// removed is refused. The key of the command line remains, and all keys remain if the file is
/// invalid.
#[test]
fn key_file_is_reloaded() {
    const THIRD: &str = "nqn.2026-11.org.example:three";
    let keys = Files::new(TMP);
    let file = keys.write("keys", format!("{HOST} {KEY}\n").as_bytes());
    let given = format!("{THIRD}={KEY}");
    let path = file.to_string_lossy().into_owned();
    let lab = NvmeTlsFixture::start(&["--tls-psk-file", &path, "--tls-psk", &given]);
    let one = ["--hostnqn", HOST, "--tls-psk", KEY];
    let two = ["--hostnqn", OTHER, "--tls-psk", LONG_KEY];
    let three = ["--hostnqn", THIRD, "--tls-psk", KEY];
    lab.printed("list", &one);
    lab.expect_refused(&two, 69, "it may not know the key");
    std::fs::write(&file, format!("{OTHER} {LONG_KEY}\n")).expect("it can be written");
    lab.server.signal("HUP");
    // The signal and the connection race: only a connection with the new key shows that the file
    // was read.
    let again = || lab.run("list", &two).status.success();
    assert!((0..1000).any(|_| again()), "the new host never gets in");
    lab.expect_refused(&one, 69, "it may not know the key");
    lab.printed("list", &three);
    std::fs::write(&file, format!("{KEY} {HOST}\n")).expect("it can be written");
    lab.server.signal("HUP");
    lab.read_and_verify(&two, "200");
    let ended = lab.server.stop();
    assert!(ended.status.success(), "{ended:?}");
    let wrong = format!("{path}, line 1: invalid host NQN; keeping the old keys");
    assert!(ended.stderr.contains(&wrong), "{}", ended.stderr);
    assert!(!ended.stderr.contains(&KEY[16..40]), "{}", ended.stderr);
}

#[test]
fn tls_at_a_plain_target() {
    let lab = NvmeTlsFixture::start(&[]);
    let secure = ["--tls-psk", KEY, "--hostnqn", HOST];
    lab.expect_refused(&secure, 69, "target does not use TLS");
    lab.expect_refused(&["--tls", "--insecure"], 69, "target does not use TLS");
    let found = lab.printed("discover", &[]);
    assert!(found.contains(" none "), "{found}");
    lab.read_and_verify(&[], "200");
}

#[test]
fn invalid_keys_are_reported() {
    let lab = NvmeTlsFixture::start(&[]);
    let empty = lab.files.write("empty", b"# nothing\n");
    let (empty, gone) = (empty.to_string_lossy().into_owned(), lab.path("gone"));
    let host = ["--hostnqn", HOST];
    for (options, code, words) in [
        (vec!["--tls-psk", KEY], 2, "--hostnqn"),
        (vec!["--hostnqn", HOST, "--tls-psk", "secret"], 2, "must start with `NVMeTLSkey-1:`"),
        (vec!["--hostnqn", HOST, "--tls-psk", &KEY[..40]], 2, "must end with `:`"),
        (vec!["--hostnqn", HOST, "--tls-psk-file", &empty], 66, "no keys found"),
        (vec!["--hostnqn", HOST, "--tls-psk-file", &gone], 66, "No such file"),
    ] {
        lab.expect_refused(&options, code, words);
    }
    let none = |verb: &str, options: &[&str], words: &str| {
        let output = lab.run(verb, options);
        let said = output_text(&output);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {said}");
        assert!(said.contains(words), "{options:?}: {said}");
    };
    let with = |more: &[&'static str]| [&host[..], &["--tls-psk", KEY], more].concat();
    none("list", &with(&["--tls-ca", "file"]), "cannot be used with");
    // Options that would have no effect.
    none("list", &with(&["--tls", "--tls-name", "name"]), "cannot be used with");
    none("list", &["--tls-psk-version", "0"], "required arguments were not provided");
    none("list", &["--tls-psk-derivation", "libnvme"], "required arguments were not provided");
    for option in ["--nqn", "--io-queues", "--queue-size", "--ctrl-loss-timeout"] {
        none("discover", &[option, "2"], "unexpected argument");
    }
}

/// A capture of the link is opaque. Wireshark decrypts it with the keys in `SSLKEYLOGFILE`, and
/// finds valid PDUs with correct digests in it.
#[test]
fn wireshark_decrypts_nvme_capture() {
    let folder = Files::new(TMP);
    let (capture, log) = (folder.path().join("wire.pcapng"), folder.path().join("keys"));
    // With faults, however rare, packets have the sizes of a physical link: tshark cannot read
    // larger ones.
    let rare = ["--dup", "0.000001"];
    let pcap = capture.to_string_lossy().into_owned();
    let lab = NvmeTlsFixture::start(&[&["--tls", "--pcap", &pcap][..], &rare].concat());
    let work = ["--tls", "--insecure", "--header-digest", "--data-digest", "--requests", "300"];
    let mut command = lab.command("fio", &[&work[..], &["--writes", "40"], &rare].concat());
    run_for_output(command.env("SSLKEYLOGFILE", &log));
    let ended = lab.server.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    // Wireshark 4.0 recognizes NVMe/TCP inside TLS only by its list of servers' keys.
    let key = folder.path().join("rsa.pem");
    run_for_output(Command::new("openssl").args(["genrsa", "-out"]).arg(&key));
    let servers = format!("tls.keys_list:{ADDR},4420,nvme-tcp,{}", key.display());
    let tshark = |keys: bool, filter: &str| {
        let mut command = Command::new("tshark");
        command.arg("-r").arg(&capture).args(["-d", "tcp.port==4420,tls", "-o", &servers]);
        command.args(["-o", "nvme-tcp.check_hdgst:TRUE", "-o", "nvme-tcp.check_ddgst:TRUE"]);
        if keys {
            command.args(["-o", &format!("tls.keylog_file:{}", log.display())]);
        }
        run_for_output(command.args(["-Y", filter]))
    };
    assert_eq!(tshark(false, "nvme-tcp"), "");
    let pdus = tshark(true, "nvme-tcp").lines().count();
    assert!(pdus > 300, "{pdus} packets");
    let wrong = "_ws.malformed or nvme-tcp.hdgst.status == 0 or nvme-tcp.ddgst.status == 0";
    assert_eq!(tshark(true, wrong), "", "tshark finds nothing wrong");
    let right = tshark(true, "nvme-tcp.ddgst.status == 1").lines().count();
    assert!(right > 100, "{right} data digests");
}
