//! NVMe over TLS with the Linux kernel at one end, by pre-shared keys: nvme-cli derives the keys,
//! tlshd performs the handshake, and kTLS is the record layer. All of them run in a virtual
//! machine.

use interop::{
    ADDR, Files, NVME_WORK, Netns, PEER, TestServer, VM_ADDR, Vm, fio_report, nvme_target,
    outboard, run_for_output, sha256,
};
use std::sync::Arc;

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const NQN: &str = "nqn.2026-11.io.outboard:storage";
const LINUX_NQN: &str = "nqn.2026-11.org.example:linux";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-4111-8111-111111111111";
const HOST_ID: &str = "11111111-1111-4111-8111-111111111111";
/// Made by `nvme gen-tls-key --hmac 1 --secret 0001..1f`. Keys with SHA-384 do not work: GnuTLS
/// 3.8.9 binds them with SHA-256, so that two Linux ends find no cipher suite that kTLS supports.
const KEY: &str = "NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const OTHER_KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

/// Starts the handshake daemon of the kernel, and adds a key.
fn keyed(subsystem: &str, key: &str, version: u8) -> String {
    format!(
        "set -e\n\
         tlshd -s >/tmp/tlshd.log 2>&1 &\n\
         nvme check-tls-key -i -n {HOST} -c {subsystem} -I {version} -d {key}\n"
    )
}

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
    let said = lab.run(&(keyed(NQN, KEY, 1) + &connect + WAIT + NVME_WORK));
    assert!(!said.contains("I/O error"), "{said}");
    lab.server.stat().expect_nonzero(&OFFLOADED);
    lab.server.stat().expect_nonzero(&["nvme_rx_digests_device", "nvme_tx_digests_device"]);
}

#[test]
fn linux_with_key_version_0_on_a_faulty_link() {
    let lab = LinuxNvmeTlsFixture::start(&["--drop", "0.01", "--reorder", "0.01"]);
    let said = lab.run(&(keyed(NQN, KEY, 0) + &connect(",nr_io_queues=2") + WAIT + NVME_WORK));
    assert!(!said.contains("I/O error"), "{said}");
    lab.server.stat().expect_nonzero(&OFFLOADED);
}

#[test]
fn linux_with_another_key() {
    let lab = LinuxNvmeTlsFixture::start(&[]);
    let script = keyed(NQN, OTHER_KEY, 0) + &connect("") + "ls /dev/nvme0 || echo refused\n";
    let said = lab.run(&script);
    assert!(said.contains("refused"), "{said}");
    lab.server.stat().expect_nonzero(&["nvmet_tls_handshakes_failed"]);
    assert_eq!(lab.server.stat().get("nvmet_controllers"), 0);
}

/// Returns a script that runs Linux's target on a loop device and accepts only connections with a
/// key.
fn linux_target() -> String {
    format!(
        "dd if=/dev/zero of=/tmp/disk bs=1M count=32 2>/dev/null\n\
         losetup /dev/loop0 /tmp/disk\n\
         cd /sys/kernel/config/nvmet\n\
         mkdir subsystems/{LINUX_NQN}\n\
         mkdir subsystems/{LINUX_NQN}/namespaces/1\n\
         echo 1 >subsystems/{LINUX_NQN}/attr_allow_any_host\n\
         echo -n /dev/loop0 >subsystems/{LINUX_NQN}/namespaces/1/device_path\n\
         echo 1 >subsystems/{LINUX_NQN}/namespaces/1/enable\n\
         mkdir ports/1\n\
         cd ports/1\n\
         echo tcp >addr_trtype\n\
         echo ipv4 >addr_adrfam\n\
         echo {VM_ADDR} >addr_traddr\n\
         echo 4420 >addr_trsvcid\n\
         echo tls1.3 >addr_tsas\n\
         echo required >addr_treq\n\
         ln -s /sys/kernel/config/nvmet/subsystems/{LINUX_NQN} subsystems/\n\
         until grep -q linked /tmp/tlshd.log; do sleep 0.1; done\n\
         echo target: ready\n\
         sleep 600\n"
    )
}

#[test]
fn linux_is_the_target() {
    for version in [0, 1] {
        let (netns, files) = (Netns::new(), Files::new(TMP));
        let script = keyed(LINUX_NQN, KEY, version) + &linux_target();
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
