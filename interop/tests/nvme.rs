//! `outboard nvme` against the Linux kernel's NVMe/TCP, which runs in a virtual machine.

use interop::{
    ADDR, Files, LINUX_NQN, LinuxTarget, NVME_WORK, Netns, PEER, TestServer, VM_ADDR, Vm, Watchdog,
    fio_report, nvme_initiator, nvme_target, outboard, run_for_output, sha256,
};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const NQN: &str = "nqn.2026-11.io.outboard:storage";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-4111-8111-111111111111";
const HOST_ID: &str = "11111111-1111-4111-8111-111111111111";
/// Size of the namespace in bytes.
const DISK: u64 = 48 << 20;

/// A target on an empty file.
struct LinuxNvmeFixture {
    server: TestServer,
    files: Files,
    scratch: Files,
}

impl LinuxNvmeFixture {
    fn start(options: &[&str]) -> Self {
        let (files, scratch) = (Files::new(TMP), Files::new(TMP));
        files.sparse("disk", DISK);
        let server = Self::target(Arc::new(Netns::new()), &files, options);
        Self { server, files, scratch }
    }

    fn target(netns: Arc<Netns>, files: &Files, options: &[&str]) -> TestServer {
        nvme_target(netns, &files.path().join("disk"), options)
    }

    fn vm(&self, script: &str) -> Vm {
        Vm::start(|program| self.server.command(program), self.scratch.path(), script)
    }

    /// Checks that the file system on the namespace is consistent.
    fn check_file_system(&self) {
        let mut command = self.server.command("e2fsck");
        run_for_output(command.arg("-fn").arg(self.files.path().join("disk")));
    }
}

/// Returns a script by which Linux's initiator connects.
fn connect(options: &str) -> String {
    format!(
        "set -e\n\
         echo 'transport=tcp,traddr={ADDR},trsvcid=4420,nqn={NQN},hostnqn={HOST},\
         hostid={HOST_ID}{options}' \
         >/dev/nvme-fabrics\n\
         until [ -b /dev/nvme0n1 ]; do sleep 0.1; done\n"
    )
}

/// Returns tshark's list of errors in a capture, and the number of PDUs in it.
fn dissect(capture: &Path) -> (String, usize) {
    let tshark = |filter: &str| {
        let mut command = Command::new("tshark");
        command.arg("-r").arg(capture).args(["-o", "nvme-tcp.check_hdgst:TRUE"]);
        command.args(["-o", "nvme-tcp.check_ddgst:TRUE", "-Y", filter]);
        run_for_output(&mut command)
    };
    let wrong = "_ws.malformed or nvme-tcp.hdgst.status == 0 or nvme-tcp.ddgst.status == 0";
    (tshark(wrong), tshark("nvme-tcp").lines().count())
}

#[test]
fn linux_reads_and_writes_with_digests() {
    let scratch = Files::new(TMP);
    let capture = scratch.path().join("wire.pcapng");
    let lab = LinuxNvmeFixture::start(&["--pcap", capture.to_str().expect("UTF-8")]);
    let said = lab.vm(&(connect(",hdr_digest,data_digest") + NVME_WORK)).finish();
    assert!(!said.contains("I/O error"), "{said}");
    let counters = lab.server.stat();
    let device = ["nvme_rx_placed_bytes", "nvme_rx_digests_device", "nvme_tx_digests_device"];
    counters.expect_nonzero(&device);
    counters.expect_nonzero(&["nvmet_reads", "nvmet_writes", "nvmet_flushes"]);
    counters.expect_nonzero(&["rx_nvmeotcp_bytes", "tx_nvmeotcp_digests"]);
    // Packets that a TAP device dropped are retransmitted, and the host may have to compute digests
    // of their data.
    counters.expect_zero(&["nvme_tx_digests_host", "nvme_rx_sw"]);
    lab.check_file_system();
    let ended = lab.server.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    let (wrong, pdus) = dissect(&capture);
    // A digest that our target finds wrong is wrong on the link too.
    let errors = counters.get("nvme_data_digest_errors");
    assert_eq!(wrong.lines().count() as u64, errors, "tshark finds nothing else wrong: {wrong}");
    assert!(pdus > 100, "{pdus} PDUs");
}

#[test]
fn linux_reads_and_writes_without_offload() {
    let lab = LinuxNvmeFixture::start(&["--offload", "none", "--block-size", "512"]);
    let said = lab.vm(&(connect(",data_digest") + NVME_WORK)).finish();
    assert!(!said.contains("I/O error"), "{said}");
    let counters = lab.server.stat();
    counters.expect_nonzero(&[
        "nvme_rx_digests_host",
        "nvme_tx_digests_host",
        "nvme_rx_copied_bytes",
        "nvmet_deallocations",
    ]);
    counters.expect_zero(&["nvme_rx_placed_bytes", "nvme_tx_digests_device"]);
    counters.expect_zero(&["nvmet_errors_command"]);
    lab.check_file_system();
}

/// Reads and writes of Linux have queues of their own, and those of the target see each other's.
#[test]
fn linux_reads_and_writes_a_target_on_three_queues() {
    let lab = LinuxNvmeFixture::start(&["--queues", "3"]);
    let queues = ",data_digest,nr_io_queues=2,nr_write_queues=2";
    let said = lab.vm(&(connect(queues) + NVME_WORK)).finish();
    assert!(!said.contains("I/O error"), "{said}");
    let counters = lab.server.stat();
    counters.expect_nonzero(&["nvmet_reads", "nvmet_writes", "nvme_tx_digests_device"]);
    counters.expect_zero(&[
        "nvmet_errors_command",
        "nvmet_internal_errors",
        "nvme_tx_digests_host",
    ]);
    assert_eq!(counters.get("nvmet_controllers"), 1);
    lab.check_file_system();
}

#[test]
fn linux_on_a_faulty_link() {
    let lab = LinuxNvmeFixture::start(&["--drop", "0.01", "--reorder", "0.01", "--dup", "0.01"]);
    let said = lab.vm(&(connect(",hdr_digest,data_digest,nr_io_queues=2") + NVME_WORK)).finish();
    assert!(!said.contains("I/O error"), "{said}");
    lab.server.stat().expect_nonzero(&["nvme_rx_placed_bytes", "nvme_tx_digests_device"]);
    lab.check_file_system();
}

#[test]
fn host_outside_the_allow_list_is_refused() {
    let lab = LinuxNvmeFixture::start(&["--allow", "nqn.2026-11.org.example:other"]);
    let script = connect("").replace("set -e\n", "").replace("until", "false && until");
    let said = lab.vm(&(script + "ls /dev/nvme0n1 || echo refused\n")).finish();
    assert!(said.contains("refused"), "{said}");
    assert_eq!(lab.server.stat().get("nvmet_controllers"), 0);
}

/// Data that was written and flushed before the target was killed is still there afterwards.
#[test]
fn the_target_is_killed_and_comes_back() {
    let lab = LinuxNvmeFixture::start(&[]);
    let script = connect(",reconnect_delay=1,data_digest")
        + "dd if=/dev/urandom of=/tmp/data bs=1M count=8 2>/dev/null\n\
           dd if=/tmp/data of=/dev/nvme0n1 bs=1M count=4 oflag=direct 2>/dev/null\n\
           sync\n\
           echo half\n\
           dd if=/tmp/data of=/dev/nvme0n1 bs=16k skip=256 seek=256 oflag=direct 2>/dev/null\n\
           sync\n\
           dd if=/dev/nvme0n1 of=/tmp/back bs=1M count=8 iflag=direct 2>/dev/null\n\
           cmp /tmp/data /tmp/back\n";
    let LinuxNvmeFixture { mut server, files, scratch } = lab;
    let mut vm = Vm::start(|program| server.command(program), scratch.path(), &script);
    vm.wait_for("half");
    let netns = server.crash();
    server = LinuxNvmeFixture::target(netns, &files, &[]);
    let said = vm.finish();
    assert!(!said.contains("I/O error"), "{said}");
    server.stat().expect_nonzero(&["nvmet_writes", "nvme_rx_placed_bytes"]);
}

/// Our initiator reads, writes and verifies data on Linux's target.
#[test]
fn linux_is_the_target() {
    let (netns, scratch) = (Netns::new(), Files::new(TMP));
    let script = LinuxTarget { mebibytes: 32, tls: false }.script();
    let mut vm = Vm::start(|program| netns.command(program), scratch.path(), &script);
    vm.wait_for("target: ready");
    let verb = |verb: &str, more: &[&str]| {
        let control = scratch.path().join("control");
        let mut command = outboard(&netns);
        command.args(["nvme", verb, VM_ADDR, "--gateway", PEER, "--control"]).arg(control);
        if verb != "discover" {
            command.args(["--ctrl-loss-timeout", "30", "--nqn", LINUX_NQN]);
        }
        run_for_output(command.args(more))
    };
    let found = verb("discover", &[]);
    assert!(found.contains(LINUX_NQN), "{found}");
    let data = scratch.fill("data", 5 << 20);
    let (input, back) = (data.to_str().expect("UTF-8"), scratch.path().join("back"));
    let output = back.to_str().expect("UTF-8");
    for digests in [&[][..], &["--header-digest", "--data-digest"]] {
        let list = verb("list", &[digests, &["--json"]].concat());
        assert!(list.contains("\"bytes\": 33554432"), "{list}");
        verb("write", &[digests, &["--input", input, "--offset", "1048576"]].concat());
        let range = ["--offset", "1048576", "--length", "5242880", "--output", output];
        verb("read", &[digests, &range].concat());
        assert_eq!(sha256(&back), sha256(&data));
        let work = ["--requests", "2000", "--writes", "40", "--iodepth", "16", "--json"];
        let said = verb("fio", &[digests, &work, &["--io-queues", "2"]].concat());
        assert!(fio_report(&said).0 > 0, "{said}");
    }
}

/// Both ends are ours; third-party programs copy and check a file system through NBD.
#[test]
fn a_file_system_through_nbd() {
    let lab = LinuxNvmeFixture::start(&["--block-size", "512"]);
    lab.server.netns().enable_ipv4_forwarding();
    let control = lab.scratch.path().join("initiator");
    let mut command = nvme_initiator(lab.server.netns(), "nbd", ADDR, &control);
    command.args(["--data-digest", "--ctrl-loss-timeout", "30", "--json"]);
    command.stdout(std::process::Stdio::piped());
    let mut nbd = command.spawn().expect("it runs");
    let _watchdog = Watchdog::of(&nbd);
    let mut line = String::new();
    let stdout = nbd.stdout.take().expect("a pipe");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).expect("a line");
    let serving: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    let at = serde_json::json!({ "nsid": 1, "uri": "nbd://127.0.0.1:10809/", "read_only": false });
    assert_eq!(serving, at);
    let script = "mke2fs -q -F -t ext4 -d tree made 32M && nbdcopy made nbd://127.0.0.1:10809 && \
                  nbdcopy nbd://127.0.0.1:10809 back && cmp -n 33554432 made back && \
                  e2fsck -fn back >/dev/null 2>&1";
    std::fs::create_dir(lab.scratch.path().join("tree")).expect("a folder");
    lab.scratch.fill("tree/file", 3 << 20);
    run_for_output(lab.server.command("sh").args(["-c", script]).current_dir(lab.scratch.path()));
    let counters = lab.server.stat();
    counters.expect_nonzero(&[
        "nvme_rx_placed_bytes",
        "nvme_rx_digests_device",
        "nvme_tx_digests_device",
    ]);
    let pid = nbd.id().to_string();
    run_for_output(lab.server.command("kill").args(["-s", "TERM", &pid]));
    assert!(nbd.wait().expect("it was ours").success());
}
