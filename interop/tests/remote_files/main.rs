//! `outboard serve nvme://...`: files of an ext4 file system on our target, fetched by curl over
//! HTTP and HTTPS and by quinn over HTTP/3, with and without offload, with and without TLS to the
//! target; and a target that is killed and restarted. In `linux` the target is Linux's.

mod linux;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use interop::{
    ADDR, Files, Netns, TestServer, expect_success, namespace_server, nvme_target, outboard,
    output_text, run, run_for_output,
};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const H3_TREE: &str = env!("CARGO_BIN_EXE_h3tree");
const IMAGE_BYTES: u64 = 192 << 20;
const SERVER: &str = "10.78.0.2";
const HOST: &str = "nqn.2026-11.org.example:one";
/// A key for tests only.
const KEY: &str = "NVMeTLSkey-1:01:H0D8ktokFpR1CXnubPWC8tXX0o4YM13gWrxU0FYOD1PSgP0x:";
/// Files of the tree, from 0 bytes to 64 KiB.
const FILES: u64 = 1000;
/// Files that are fetched during the outage, of 128 KiB.
const LATE_FILES: u64 = 100;

/// Protocol of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Http,
    Https,
    Http3,
}

/// An image with the files, and a content server that reads it from a target.
struct RemoteFilesFixture {
    disk: Files,
    /// Hash and name of each file.
    hashes: BTreeSet<String>,
    netns: Arc<Netns>,
    tls: bool,
    server: TestServer,
}

/// Makes an image of this size with the files in a new folder. Also returns their hashes.
fn make_image(bytes: u64) -> (Files, BTreeSet<String>) {
    let (content, disk) = (Files::new(TMP), Files::new(TMP));
    for (index, name) in (0..FILES).zip(early_names()) {
        content.fill(&name, index * 131 % 65_537);
    }
    for (index, name) in (0..LATE_FILES).zip(late_names()) {
        content.fill(&name, 131_072 + index);
    }
    let image = disk.sparse("image", bytes);
    let mut mkfs = Command::new("mkfs.ext4");
    mkfs.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").args(["-q", "-F", "-d"]);
    run_for_output(mkfs.arg(content.path()).arg(&image));
    (disk, hashes(content.path()))
}

impl RemoteFilesFixture {
    /// Starts a target and a server.
    fn start(tls: bool, offload: &str) -> (Self, TestServer) {
        Self::start_with(tls, &["--offload", offload])
    }

    /// As [`Self::start`], with options of the server.
    fn start_with(tls: bool, options: &[&str]) -> (Self, TestServer) {
        let (disk, hashes) = make_image(IMAGE_BYTES);
        let netns = Netns::new();
        netns.enable_ipv4_forwarding();
        let netns = Arc::new(netns);
        let target = start_target(&netns, &disk, tls);
        let mut url = format!("nvme://{ADDR}/1?data-digest");
        if tls {
            let keys = disk.write("keys", format!("{HOST} {KEY}\n"));
            url.push_str(&format!("&hostnqn={HOST}&tls-psk-file={}", keys.display()));
        }
        let options = [&["--http", "--tls", "--http3"], options].concat();
        let server = namespace_server(Arc::clone(&netns), &url, &options);
        (Self { disk, hashes, netns, tls, server }, target)
    }

    /// Returns a command that fetches files to a folder.
    fn client(&self, over: Over, names: &[String], to: &Path) -> Command {
        let scheme = match over {
            Over::Http3 => {
                let mut command = self.server.command(H3_TREE);
                command.arg(format!("{SERVER}:443")).arg(to).arg("4");
                command.args(names.iter().map(|name| format!("/{name}")));
                return command;
            }
            Over::Http => "http",
            Over::Https => "https",
        };
        let mut list = String::new();
        for name in names {
            let to = to.join(name);
            list.push_str(&format!(
                "url = {scheme}://{SERVER}/{name}\noutput = {}\n",
                to.display()
            ));
        }
        let lists = self.disk.write("list", list);
        let mut command = self.server.command("curl");
        command.args(["-sSfk", "--parallel", "--parallel-max", "16", "--max-time", "120"]);
        command.args(["--create-dirs", "--config"]).arg(lists);
        command
    }

    /// Fetches files and compares their hashes with those of the files that the image has.
    fn fetch(&self, over: Over, names: &[String]) {
        let to = Files::new(TMP);
        let _printed = expect_success(&run(&mut self.client(over, names, to.path())));
        let fetched = hashes(to.path());
        assert_eq!(fetched.len(), names.len(), "{over:?}");
        assert!(fetched.is_subset(&self.hashes), "{over:?}: other bytes");
    }
}

fn early_names() -> Vec<String> {
    (0..FILES).map(|index| format!("d{}/{index}.bin", index % 7)).collect()
}

fn late_names() -> Vec<String> {
    (0..LATE_FILES).map(|index| format!("late/{index}.bin")).collect()
}

fn start_target(netns: &Arc<Netns>, disk: &Files, tls: bool) -> TestServer {
    let key = format!("{HOST}={KEY}");
    let options: &[&str] = if tls { &["--tls-psk", &key] } else { &[] };
    nvme_target(Arc::clone(netns), &disk.path().join("image"), options)
}

/// Returns a line with hash and name for each file below a folder.
fn hashes(folder: &Path) -> BTreeSet<String> {
    let mut command = Command::new("sh");
    command.args(["-c", "find . -type f -name '*.bin' -exec sha256sum {} +"]).current_dir(folder);
    expect_success(&run(&mut command)).lines().map(str::to_owned).collect()
}

/// Serves 1,000 files over all protocols. With offload, the device places the blocks of files of
/// 12 KiB and more and verifies their digests; without, the host copies them.
fn serve_tree(tls: bool, offload: &str) {
    let (fixture, _target) = RemoteFilesFixture::start(tls, offload);
    for over in [Over::Http, Over::Https, Over::Http3] {
        fixture.fetch(over, &early_names());
    }
    let counters = fixture.server.stat();
    counters.expect_zero(&["nvme_data_digest_errors", "remote_outages", "remote_corrupt"]);
    let device = ["nvme_rx_placed_bytes", "nvme_rx_digests_device"];
    if offload == "all" {
        counters.expect_nonzero(&device);
        counters.expect_nonzero(&["tls_tx_device"]);
        let (placed, copied) =
            (counters.get("nvme_rx_placed_bytes"), counters.get("nvme_rx_copied_bytes"));
        assert!(placed > 10 * copied, "{placed} bytes placed, {copied} copied");
    } else {
        counters.expect_zero(&device);
        counters.expect_nonzero(&["nvme_rx_copied_bytes", "nvme_rx_digests_host"]);
    }
}

#[test]
fn files_of_a_namespace() {
    for offload in ["all", "none"] {
        serve_tree(false, offload);
    }
}

#[test]
fn files_of_a_namespace_over_tls() {
    for offload in ["all", "none"] {
        serve_tree(true, offload);
    }
}

/// Requests that arrive while the target is away wait, and are answered when it is back.
#[test]
fn a_target_that_is_killed_and_restarted() {
    for tls in [false, true] {
        let (fixture, target) = RemoteFilesFixture::start(tls, "all");
        fixture.fetch(Over::Http, &early_names());
        let placed = || fixture.server.stat().get("nvme_rx_placed_bytes");
        let before = placed();
        let _netns = target.crash();
        let to = Files::new(TMP);
        let mut client = fixture.client(Over::Https, &late_names(), to.path());
        let client = client.spawn().expect("curl");
        let target = start_target(&fixture.netns, &fixture.disk, fixture.tls);
        let ended = client.wait_with_output().expect("curl");
        assert!(ended.status.success(), "{ended:?}");
        let fetched = hashes(to.path());
        assert_eq!(fetched.len() as u64, LATE_FILES);
        assert!(fetched.is_subset(&fixture.hashes), "other bytes");
        assert_eq!(fixture.server.stat().get("remote_outages"), 1);
        let least = LATE_FILES * 131_072 * 9 / 10;
        assert!(placed() - before >= least, "the device places after the outage as before");
        drop(target);
    }
}

/// The end of a drain is that of the last client, and the target's controllers are shut down: no
/// connection is reset.
#[test]
fn a_drain_ends_with_its_last_client() {
    let (fixture, target) = RemoteFilesFixture::start_with(true, &["--drain", "100"]);
    fixture.fetch(Over::Https, &early_names()[..50]);
    let ended = fixture.server.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(!ended.stderr.contains("resetting"), "{}", ended.stderr);
    let counters = target.stat();
    counters.expect_zero(&["nvmet_connections_lost", "nvmet_controllers_open"]);
}

/// Each queue has a controller, whose data its device places.
#[test]
fn every_queue_reads_by_its_own_controller() {
    let (fixture, target) = RemoteFilesFixture::start_with(false, &["--queues", "2"]);
    // With 16 connections, all use one queue once in 2^15 runs.
    fixture.fetch(Over::Http, &early_names());
    let stat = fixture.server.stat();
    for queue in 0..2 {
        assert_eq!(stat.get(&format!("host.q{queue}.nvmei_associations")), 1);
        for name in ["host.q{}.remote_fetched_bytes", "nic.q{}.rx_nvmeotcp_bytes"] {
            let name = name.replace("{}", &queue.to_string());
            assert!(stat.get(&name) > 0, "{name}");
        }
    }
    assert_eq!(target.stat().get("nvmet_controllers"), 2);
}

/// Options of namespaces have ranges, and are refused for a directory.
#[test]
fn options_are_checked() {
    let folder = Files::new(TMP);
    let folder = folder.path().to_str().expect("UTF-8");
    let url = format!("nvme://{ADDR}/1");
    for (source, options, line) in [
        (folder, &["--remote-cache", "9"][..], "--remote-cache is for files on namespaces"),
        (&url, &["--remote-cache", "0"], "0 is not in 1..=1048576"),
        (&url, &["--remote-patience", "51"], "51 is not in 1..=50"),
        (&url, &["--remote-validity", "1", "--strict-files"], "cannot be used with"),
    ] {
        let output = run(outboard(&Netns::new()).args(["serve", source]).args(options));
        assert_eq!(output.status.code(), Some(2), "{options:?}");
        let said = output_text(&output);
        assert!(said.contains(line), "{options:?}: {said}");
    }
}
