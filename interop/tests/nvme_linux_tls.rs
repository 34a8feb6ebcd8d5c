//! NVMe over TLS with the Linux kernel at one end, by pre-shared keys: nvme-cli derives the keys,
//! tlshd performs the handshake, and kTLS is the record layer. All of them run in a virtual
//! machine.

use interop::{
    ADDR, Files, LINUX_NQN, LinuxTarget, NVME_WORK, Netns, PEER, TestServer, VM_ADDR, Vm,
    fio_report, nvme_target, outboard, run_for_output, sha256, tls_key_script,
};
use std::sync::Arc;

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const NQN: &str = "nqn.2026-11.io.outboard:storage";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-4111-8111-111111111111";
const HOST_ID: &str = "11111111-1111-4111-8111-111111111111";
/// Made by `nvme gen-tls-key --hmac 1 --secret 0001..1f`. Keys with SHA-384 do not work: GnuTLS
/// 3.8.9 binds them with SHA-256, so that two Linux ends find no cipher suite that kTLS supports.
const KEY: &str = "NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const OTHER_KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

/// Returns a script by which Linux's initiator connects, repeatedly if tlshd is not ready.
fn connect(options: &str) -> String {
    format!(
        "for try in 1 2 3 4 5; do\n\
           echo 'transport=tcp,traddr={ADDR},trsvcid=4420,nqn={NQN},hostnqn={HOST},\
             hostid={HOST_ID},tls{options}' >/dev/nvme-fabrics && break\n\
           sleep 1\n\
         done\n"
    )
}

/// Waits for the namespace; prints the logs if the connection failed.
const WAIT: &str = "\
    [ -e /dev/nvme0 ] || { cat /tmp/tlshd.log; dmesg | tail; exit 1; }\n\
    until [ -b /dev/nvme0n1 ]; do sleep 0.1; done\n";

struct LinuxNvmeTlsFixture {
    server: TestServer,
    files: Files,
}

impl LinuxNvmeTlsFixture {
    /// Starts a target that accepts only connections with a key.
    fn start(options: &[&str]) -> Self {
        let files = Files::new(TMP);
        let disk = files.sparse("disk", 48 << 20);
        let key = format!("{HOST}={KEY}");
        let all = ["--tls-psk", &key, "--tls-psk-derivation", "libnvme"];
        let options = [&all[..], options].concat();
        Self { server: nvme_target(Arc::new(Netns::new()), &disk, &options), files }
    }

    fn run(&self, script: &str) -> String {
        let vm = Vm::start(|program| self.server.command(program), self.files.path(), script);
        vm.finish()
    }
}

/// Counters of the device's work, in both directions, for TLS and for NVMe/TCP inside it.
const OFFLOADED: [&str; 6] = [
    "tls_rx_records_full",
    "tls_tx_device",
    "nvme_rx_placed_bytes",
    "nvmet_reads",
    "nvmet_writes",
    "nvmet_flushes",
];

#[test]
fn linux_with_a_key_of_version_1() {
    let lab = LinuxNvmeTlsFixture::start(&[]);
    let connect = connect(",hdr_digest,data_digest");
    let said = lab.run(&(tls_key_script((HOST, NQN), KEY, 1) + &connect + WAIT + NVME_WORK));
    assert!(!said.contains("I/O error"), "{said}");
    lab.server.stat().expect_nonzero(&OFFLOADED);
    lab.server.stat().expect_nonzero(&["nvme_rx_digests_device", "nvme_tx_digests_device"]);
}

#[test]
fn linux_with_key_version_0_on_a_faulty_link() {
    let lab = LinuxNvmeTlsFixture::start(&["--drop", "0.01", "--reorder", "0.01"]);
    let said = lab.run(
        &(tls_key_script((HOST, NQN), KEY, 0) + &connect(",nr_io_queues=2") + WAIT + NVME_WORK),
    );
    assert!(!said.contains("I/O error"), "{said}");
    lab.server.stat().expect_nonzero(&OFFLOADED);
}

#[test]
fn linux_with_another_key() {
    let lab = LinuxNvmeTlsFixture::start(&[]);
    let script = tls_key_script((HOST, NQN), OTHER_KEY, 0)
        + &connect("")
        + "ls /dev/nvme0 || echo refused\n";
    let said = lab.run(&script);
    assert!(said.contains("refused"), "{said}");
    lab.server.stat().expect_nonzero(&["nvmet_tls_handshakes_failed"]);
    assert_eq!(lab.server.stat().get("nvmet_controllers"), 0);
}

#[test]
fn linux_is_the_target() {
    for version in [0, 1] {
        let (netns, files) = (Netns::new(), Files::new(TMP));
        let script = tls_key_script((HOST, LINUX_NQN), KEY, version)
            + &LinuxTarget { mebibytes: 32, tls: true }.script();
        let mut vm = Vm::start(|program| netns.command(program), files.path(), &script);
        vm.wait_for("target: ready");
        let run = |verb: &str, more: &[&str]| {
            let mut command = outboard(&netns);
            command.args(["nvme", verb, VM_ADDR, "--gateway", PEER, "--control"]);
            command.arg(files.path().join("control")).args(["--nqn", LINUX_NQN]);
            command.args(["--hostnqn", HOST, "--ctrl-loss-timeout", "30", "--tls-psk", KEY]);
            command.args(["--tls-psk-derivation", "libnvme", "--tls-psk-version"]);
            run_for_output(command.arg(version.to_string()).args(["--header-digest"]).args(more))
        };
        let list = run("list", &["--json"]);
        assert!(list.contains("\"bytes\": 33554432"), "{list}");
        let data = files.fill("data", 5 << 20);
        let (input, back) = (data.to_str().expect("UTF-8"), files.path().join("back"));
        run("write", &["--input", input, "--data-digest"]);
        let output = back.to_str().expect("UTF-8");
        run("read", &["--length", "5242880", "--output", output, "--data-digest"]);
        assert_eq!(sha256(&back), sha256(&data));
        let said = run("fio", &["--requests", "2000", "--writes", "40", "--json"]);
        assert!(fio_report(&said).0 > 0, "{said}");
    }
}
