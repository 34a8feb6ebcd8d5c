//! `--deny-patterns` of `outboard nvme target` and `outboard nvme read`: data of many commands,
//! plain and over TLS, with inspection by devices and by hosts.

use interop::{
    ADDR, Files, Netns, TestServer, expect_success, nvme_initiator, nvme_target, output_text, run,
};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::Output;
use std::sync::Arc;

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const HOST: &str = "nqn.2026-11.org.example:one";
/// A key for tests only.
const KEY: &str = "NVMeTLSkey-1:01:H0D8ktokFpR1CXnubPWC8tXX0o4YM13gWrxU0FYOD1PSgP0x:";
const DISK: u64 = 16 << 20;
/// Offset of a command's data with a denied pattern.
const OLD_DATA: u64 = 8 << 20;
/// Bytes of a command of `nvme read` and `nvme write`.
const COMMAND: usize = 256 << 10;
const RULES: &str = "evil\ncount: needle\n";

struct PatternFixture {
    server: TestServer,
    files: Files,
    tls: bool,
    offload: &'static str,
}

impl PatternFixture {
    fn start(tls: bool, offload: &'static str) -> Self {
        let files = Files::new(TMP);
        let disk = files.sparse("disk", DISK);
        let file = File::options().write(true).open(&disk).expect("the disk");
        file.write_all_at(b"evil", OLD_DATA + 200_000).expect("room");
        let rules = files.write("rules", RULES).display().to_string();
        let netns = Netns::new();
        netns.enable_ipv4_forwarding();
        let key = format!("{HOST}={KEY}");
        let mut options = vec!["--deny-patterns", &rules, "--offload", offload];
        options.extend(tls.then_some(["--tls-psk", &key]).into_iter().flatten());
        Self { server: nvme_target(Arc::new(netns), &disk, &options), files, tls, offload }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    fn run(&self, verb: &str, options: &[&str]) -> Output {
        let control = self.path("initiator");
        let mut command = nvme_initiator(self.server.netns(), verb, ADDR, &control);
        command.args(["--hostnqn", HOST, "--data-digest", "--offload", self.offload]).args(options);
        if self.tls {
            command.args(["--tls-psk", KEY]);
        }
        run(&mut command)
    }

    fn write(&self, name: &str, data: &[u8]) -> Output {
        let input = self.files.write(name, data).display().to_string();
        self.run("write", &["--input", &input])
    }

    /// Reads bytes of the namespace to the file `output`, with rules.
    fn read(&self, offset: u64, bytes: usize) -> Output {
        let (output, rules) = (self.path("output"), self.path("rules"));
        let [output, rules] = [output, rules].map(|path| path.display().to_string());
        let (offset, length) = (offset.to_string(), bytes.to_string());
        let place = ["--offset", &offset, "--length", &length, "--output", &output];
        self.run("read", &[&place[..], &["--deny-patterns", &rules]].concat())
    }
}

/// Returns data with a pattern in each command, and one across two commands, which is in neither.
fn data(commands: usize) -> Vec<u8> {
    let mut data = vec![b'.'; commands * COMMAND];
    for command in 0..commands {
        data[command * COMMAND + 70_001..][..6].copy_from_slice(b"needle");
    }
    data[COMMAND - 2..COMMAND + 2].copy_from_slice(b"evil");
    data
}

#[test]
fn denied_data_is_neither_written_nor_read() {
    for (tls, offload) in [(false, "all"), (true, "all"), (false, "none"), (true, "none")] {
        let lab = PatternFixture::start(tls, offload);
        let good = data(8);
        let _ = expect_success(&lab.write("good", &good));
        let read = lab.read(0, good.len());
        let _ = expect_success(&read);
        let printed = output_text(&read);
        assert!(printed.contains("--deny-patterns line 1: 0 matches\n"), "{printed}");
        assert!(printed.contains("--deny-patterns line 2: 8 matches\n"), "{printed}");
        assert!(std::fs::read(lab.path("output")).expect("a file") == good, "{tls} {offload}");
        let before = lab.server.stat();
        assert_eq!(before.get("pattern_line_2_matches"), 8, "{tls} {offload}");
        assert_eq!(before.get("inspect_matches"), 8);
        let [device, host] = ["inspect_device_bytes", "inspect_host_bytes"].map(|n| before.get(n));
        assert_eq!(device + host, good.len() as u64, "{tls} {offload}");
        if offload == "all" {
            assert!(device > host, "{tls}: the host inspected {host}");
        } else {
            assert_eq!(device, 0, "{tls}");
        }

        let mut bad = vec![b'x'; COMMAND];
        bad[200_000..][..4].copy_from_slice(b"evil");
        let denied = lab.write("bad", &bad);
        let printed = output_text(&denied);
        assert!(!denied.status.success() && printed.contains("access denied"), "{printed}");
        let disk = std::fs::read(lab.path("disk")).expect("a file");
        assert!(disk[..good.len()] == good, "{tls} {offload}: nothing of it is in the namespace");
        let counters = lab.server.stat();
        assert_eq!(counters.get("nvmet_errors_denied"), 1);
        assert_eq!(counters.get("pattern_line_1_matches"), 1);
        counters.expect_zero(&["inspect_claims_invalid", "nvmet_errors_disk"]);

        // Denied data that was in the namespace before.
        let denied = lab.read(OLD_DATA, COMMAND);
        let printed = output_text(&denied);
        assert!(!denied.status.success(), "{printed}");
        assert!(printed.contains("data contains a denied pattern"), "{printed}");
        assert!(printed.contains("--deny-patterns line 1: 1 match\n"), "{printed}");
    }
}
