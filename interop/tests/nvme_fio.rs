//! `outboard nvme fio` against `outboard nvme target`: sizes, depths, digests, bad links, offload
//! at either end, and targets that are killed. Every block that is read is compared with the one
//! that was written.

use interop::{
    ADDR, Counters, Files, Netns, TestServer, Watchdog, expect_success, fio_report, nvme_initiator,
    nvme_target, nvme_target_of_file, outboard, run, run_for_output, sha256, wait_with_time_limit,
};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
/// Size of the namespace in bytes, more than any cell of the matrix uses.
const DISK: u64 = 512 << 20;

/// A target on an empty file, in a namespace that has room for an initiator.
struct FioFixture {
    server: TestServer,
    files: Files,
}

impl FioFixture {
    fn start(options: &[&str]) -> Self {
        let (server, files) = nvme_target_of_file(TMP, DISK, options);
        Self { server, files }
    }

    fn target(netns: Arc<Netns>, files: &Files, options: &[&str]) -> TestServer {
        nvme_target(netns, &files.path().join("disk"), options)
    }

    /// Kills this target and starts another one in its place.
    fn restart_target(self, options: &[&str]) -> Self {
        let Self { server, files } = self;
        Self { server: Self::target(server.crash(), &files, options), files }
    }

    fn initiator(&self, verb: &str) -> Command {
        let control = self.path("initiator");
        let mut command = nvme_initiator(self.server.netns(), verb, ADDR, &control);
        if verb != "discover" {
            command.args(["--ctrl-loss-timeout", "30"]);
        }
        command
    }

    fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }
}

/// Requests above this size are placed by the device; smaller ones are in the command's capsule, or
/// are cheaper to copy than to register a buffer for.
const COPIED: u32 = 8 << 10;
/// Bytes of a request.
const SIZES: [u32; 5] = [512, 4 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Concurrent requests.
const DEPTHS: [u16; 5] = [1, 32, 256, 32, 1];
/// Digests of headers, and of data.
const DIGESTS: [(bool, bool); 5] =
    [(false, false), (true, true), (true, false), (false, true), (true, true)];
/// Faults of the link, and the counters that show them.
const FAULTS: [(&[&str], &[&str]); 5] = [
    (&[], &[]),
    (&["--drop", "0.01"], &["fault_tx_dropped", "fault_rx_dropped"]),
    (&["--reorder", "0.02"], &["fault_tx_reordered", "fault_rx_reordered"]),
    (&["--dup", "0.02"], &["fault_tx_duplicated", "fault_rx_duplicated"]),
    (&["--corrupt", "0.01"], &["fault_tx_corrupted", "fault_rx_corrupted"]),
];
/// For the link of the target and that of the initiator: true if it has faults.
const FAULTY_LINKS: [[bool; 2]; 5] =
    [[true, false], [false, true], [true, true], [false, true], [true, false]];
/// For the device of the target and that of the initiator: true if it has offloads.
const OFFLOADS: [[bool; 2]; 5] =
    [[true, true], [true, false], [false, true], [false, false], [true, true]];

/// A cell of the test matrix.
#[derive(Clone, Copy, Debug)]
struct FioMatrixCell {
    bs: u32,
    depth: u16,
    digests: (bool, bool),
    faults: usize,
    bad: [bool; 2],
    offload: [bool; 2],
}

impl FioMatrixCell {
    /// Returns the cells of a request size. All cells together are an orthogonal array of strength
    /// 2 (Bose, 1938: the Latin squares `row + k * column` of a prime order), so that any two
    /// values of any two factors meet in some cell.
    fn all(row: usize) -> [Self; 5] {
        [0, 1, 2, 3, 4].map(|column| {
            let square = |k: usize| (row + k * column) % 5;
            Self {
                bs: SIZES[row],
                faults: column,
                digests: DIGESTS[square(1)],
                offload: OFFLOADS[square(2)],
                depth: DEPTHS[square(3)],
                bad: FAULTY_LINKS[square(4)],
            }
        })
    }

    /// Returns stack options of an end: 0 is the target, 1 the initiator.
    fn stack(&self, end: usize) -> Vec<&'static str> {
        let mut all = vec!["--offload", if self.offload[end] { "all" } else { "none" }];
        if self.bad[end] {
            all.extend(FAULTS[self.faults].0);
        }
        all
    }

    /// Returns a number of requests that takes about a second. With a depth of one, every loss
    /// costs a timeout.
    fn requests(&self) -> u32 {
        let some = (64 << 20) / self.bs.max(64 << 10);
        let most = if self.depth == 1 { 300 } else { u32::MAX };
        some.clamp(u32::from(self.depth) + 99, most)
    }

    fn run(&self) {
        eprintln!("{self:?}");
        let lab = FioFixture::start(&[&self.stack(0)[..], &["--block-size", "512"]].concat());
        let mut fio = lab.initiator("fio");
        fio.args(self.stack(1)).args(["--seed", "2", "--writes", "50", "--json"]);
        fio.args(["--queue-size", "300", "--bs", &self.bs.to_string()]);
        fio.args(["--iodepth", &self.depth.to_string()]);
        fio.args(["--requests", &self.requests().to_string()]);
        // Few places, so that most reads return data that was written before.
        let places = u64::from(self.depth) + 16;
        fio.args(["--size", &(places * u64::from(self.bs)).to_string()]);
        fio.args(self.digests.0.then_some("--header-digest"));
        fio.args(self.digests.1.then_some("--data-digest"));
        let (verified, counters) = fio_report(&run_for_output(&mut fio));
        // Half of the requests write, and the data is read back.
        assert!(verified > 0, "{self:?}");
        for (end, counters) in [lab.server.stat(), counters].iter().enumerate() {
            self.check_end(end, counters);
        }
        lab.server.stop();
    }

    /// Checks the counters of an end. Both ends receive and send data, since there are reads and
    /// writes.
    fn check_end(&self, end: usize, counters: &Counters) {
        let (data_digest, device) = (self.digests.1, self.offload[end]);
        let placed = self.bs > COPIED;
        let moves = |name: &str, moves: bool| {
            let value = counters.get(name);
            assert_eq!(value > 0, moves, "{name} is {value} at end {end} of {self:?}");
        };
        moves("nvme_rx_placed_bytes", device && placed);
        moves("nvme_rx_digests_device", device && data_digest);
        moves("nvme_tx_digests_device", device && data_digest);
        if !device {
            moves("nvme_rx_copied_bytes", true);
            moves("nvme_rx_digests_host", data_digest);
            moves("nvme_tx_digests_host", data_digest);
            moves("nvme_rx_pdus_full", false);
        }
        if device && self.faults == 0 {
            moves("nvme_tx_digests_host", false);
        }
        if !data_digest {
            moves("nvme_rx_digests_host", false);
            moves("nvme_tx_digests_host", false);
        }
        // TCP's checksum detects corrupted packets.
        moves("nvme_data_digest_errors", false);
        moves("nvme_header_digest_errors", false);
        moves("nvme_terminations", false);
        // The initiator's report has no counters of a device in another process.
        if self.bad[end] && (end == 0 || !interop::has_device_process()) {
            FAULTS[self.faults].1.iter().for_each(|name| moves(name, true));
        }
    }
}

#[test]
fn requests_of_512_bytes() {
    FioMatrixCell::all(0).iter().for_each(FioMatrixCell::run);
}

#[test]
fn requests_of_4_kib() {
    FioMatrixCell::all(1).iter().for_each(FioMatrixCell::run);
}

#[test]
fn requests_of_64_kib() {
    FioMatrixCell::all(2).iter().for_each(FioMatrixCell::run);
}

#[test]
fn requests_of_256_kib() {
    FioMatrixCell::all(3).iter().for_each(FioMatrixCell::run);
}

#[test]
fn requests_of_1_mib() {
    FioMatrixCell::all(4).iter().for_each(FioMatrixCell::run);
}

/// Random reads of a cold namespace read only the requested pages, with and without the page cache.
#[test]
fn random_reads_read_only_their_pages() {
    for (options, direct) in [(&[][..], 0), (&["--direct-io"][..], 1)] {
        let lab = FioFixture::start(options);
        let mut fio = lab.initiator("fio");
        fio.args(["--requests", "4000", "--writes", "0", "--json", "--bs", "4096"]);
        fio.args(["--size", &DISK.to_string(), "--data-digest"]);
        run_for_output(&mut fio);
        let stat = lab.server.stat();
        let (read, sent) = (stat.get("file_disk_read_bytes"), stat.get("file_bytes"));
        assert!(sent >= 4000 * 4096, "the device sends from the file: {sent}");
        assert!(read <= sent + sent / 10, "{read} bytes read for {sent}");
        // A file system without direct I/O is used through the page cache.
        let opens = stat.get("disk_direct_opens") + stat.get("disk_direct_refused");
        assert!(opens >= direct && (direct == 1 || opens == 0), "{stat:?}");
        lab.server.stop();
    }
}

/// Kills the target twice; `fio` continues and finds all written data. Returns `fio`'s counters.
/// `controllers` is the number of its associations at a time.
fn run_with_target_kills(target: &[&str], initiator: &[&str], controllers: u64) -> Counters {
    let mut lab = FioFixture::start(target);
    let mut fio = lab.initiator("fio");
    fio.args(initiator).args(["--requests", "10000", "--writes", "50", "--json"]);
    fio.args(["--data-digest", "--bs", "16384", "--size", "4194304"]);
    let fio = fio.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    for _ in 0..2 {
        // Every call starts a process.
        let enough = || lab.server.stat().get("nvmet_writes") >= 500;
        assert!((0..2000).any(|_| enough()), "fio continues");
        lab = lab.restart_target(target);
    }
    let (verified, counters) = fio_report(&expect_success(&wait_with_time_limit(fio)));
    assert!(verified > 1000, "{verified}");
    assert_eq!(counters.get("nvmei_associations"), 3 * controllers);
    assert_eq!(counters.get("nvmei_associations_lost"), 2 * controllers);
    // Of 32 concurrent requests, some were open.
    assert!(counters.get("nvmei_replayed") > 0);
    counters.expect_zero(&["nvmei_not_replayed", "nvmei_failed", "nvme_data_digest_errors"]);
    counters
}

#[test]
fn the_target_is_killed_under_fio() {
    let counters = run_with_target_kills(&[], &[], 1);
    assert!(counters.get("nvme_rx_placed_bytes") > 0);
    assert!(counters.get("nvme_tx_digests_device") > 0);
}

/// Each controller of each queue recovers by itself.
#[test]
fn the_target_is_killed_under_fio_on_several_queues() {
    let queues = ["--queues", "2"];
    let initiator = ["--queues", "3", "--io-queues", "12"];
    let counters = run_with_target_kills(&queues, &initiator, 3);
    assert!(counters.get("nvme_rx_placed_bytes") > 0);
}

#[test]
fn the_target_is_killed_under_fio_without_offload() {
    let counters = run_with_target_kills(&["--offload", "none"], &["--offload", "none"], 1);
    assert_eq!(counters.get("nvme_rx_placed_bytes"), 0);
}

/// Every initiator ends its association in an orderly way.
#[test]
fn initiators_disconnect_in_order() {
    let lab = FioFixture::start(&[]);
    let fio = ["--requests", "100", "--io-queues", "2"];
    let wrong = ["--nsid", "7", "--output", "/dev/null"];
    let verbs: [(&str, &[&str], bool); 4] = [
        ("list", &[], true),
        ("discover", &[], true),
        ("fio", &fio, true),
        ("read", &wrong, false),
    ];
    for (number, (verb, more, good)) in (1..).zip(verbs) {
        let output = run(lab.initiator(verb).args(more));
        assert_eq!(output.status.success(), good, "{output:?}");
        assert_eq!(lab.server.stat().get("nvmet_controllers"), number);
        // The last acknowledgment may still be on its way.
        let gone = || lab.server.stat().get("connections") == 0;
        assert!((0..1000).any(|_| gone()), "{verb}: {:?}", lab.server.connections());
        let bad = ["nvmet_connections_lost", "nvmet_timeouts_keep_alive", "tcp_estab_resets"];
        lab.server.stat().expect_zero(&bad);
    }
}

/// Errors are reported in one line, and by the exit code.
#[test]
fn errors_are_one_line_and_an_exit_code() {
    let lab = FioFixture::start(&[]);
    std::fs::write(lab.path("short"), [1; 5000]).expect("a file");
    let (short, out) = (lab.path("short"), lab.path("out"));
    let (short, out) = (short.to_str().expect("UTF-8"), out.to_str().expect("UTF-8"));
    std::fs::write(out, "kept").expect("a file");
    let cases: [(&str, &[&str], i32, &str); 16] = [
        ("list", &["--nqn", "nqn.2026-11.org.example:other"], 69, "invalid parameters"),
        ("read", &["--output", "/dev/full"], 66, "No space left"),
        ("read", &["--output", "/"], 66, "Is a directory"),
        ("read", &["--offset", "5", "--output", out], 2, "multiples of the block size, 4096"),
        ("read", &["--offset", "1099511627776", "--output", out], 2, "range exceeds the namespace"),
        ("read", &["--nsid", "9", "--output", out], 69, "no such namespace: 9"),
        ("read", &["--nqn", "nqn.2026-11.org.example:no", "--output", out], 69, "invalid par"),
        ("read", &["--json"], 2, "--output"),
        ("write", &["--input", "/nothing"], 66, "No such file"),
        ("write", &["--input", "/"], 66, "not a regular file or block device"),
        ("write", &["--input", "/dev/zero"], 66, "not a regular file or block device"),
        ("write", &["--input", short, "--offset", "536866816"], 2, "range exceeds the namespace"),
        ("fio", &["--bs", "1000"], 2, "multiple of the block size, 4096"),
        ("fio", &["--size", "4096"], 2, "--iodepth"),
        ("nbd", &["--listen", "10.99.99.99:1"], 69, "--listen"),
        ("discover", &["--queues", "2"], 2, "--queues"),
    ];
    for (verb, more, code, said) in cases {
        fails(lab.initiator(verb).args(more), code, said);
    }
    let files: [(&str, i32, &str); 3] = [
        ("/nothing", 66, "No such file"),
        ("/", 66, "Is a directory"),
        ("/dev/null", 66, "not a regular file or block device"),
    ];
    // These fail before they need a device.
    for (file, code, said) in files {
        let mut command = lab.server.netns().command(interop::program());
        command.args([
            "nvme",
            "target",
            "--link",
            "tap:ob5",
            "--addr",
            "10.80.0.2/24",
            "--control",
        ]);
        fails(command.arg(lab.path("second")).args(["--namespace", file]), code, said);
    }
    // Another target serves the disk already.
    let mut command = lab.server.netns().command(interop::program());
    command.args(["nvme", "target", "--link", "tap:ob5", "--addr", "10.80.0.2/24", "--namespace"]);
    command.arg(lab.path("disk")).arg("--control").arg(lab.path("second"));
    fails(&mut command, 69, "already in use by a target");
    let none = "10.77.0.2:81";
    for verb in ["list", "discover"] {
        let control = lab.path("initiator");
        let mut command = nvme_initiator(lab.server.netns(), verb, none, &control);
        fails(&mut command, 69, "10.77.0.2:81: connection refused");
    }
    let kept = std::fs::read_to_string(out).expect("it is there");
    assert_eq!(kept, "kept", "what reads nothing writes nothing");
    // The last block is filled up.
    let wrote = run_for_output(lab.initiator("write").args(["--input", short, "--json"]));
    assert!(wrote.contains("\"bytes\": 5000"), "{wrote}");
    assert_eq!(lab.server.stat().get("nvmet_written_bytes"), 8192);
}

fn fails(command: &mut Command, code: i32, said: &str) {
    let output = run(command);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {stderr}");
    assert!(stderr.contains(said) && stderr.lines().count() == 1, "{command:?}: {stderr}");
}

/// `nbd` reports the loss of its target and the reconnection, and ends if the target is lost for
/// good.
#[test]
fn nbd_reports_loss_and_reconnection() {
    let files = Files::new(TMP);
    files.sparse("disk", DISK);
    let netns = Arc::new(Netns::new());
    netns.enable_ipv4_forwarding();
    let target = || FioFixture::target(Arc::clone(&netns), &files, &[]);
    let server = target();
    let control = files.path().join("initiator");
    let mut nbd = nvme_initiator(&netns, "nbd", ADDR, &control);
    nbd.args(["--listen", "127.0.0.1:0", "--ctrl-loss-timeout", "10"]);
    let mut nbd = nbd.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let _watchdog = Watchdog::of(&nbd);
    let line = |from: &mut dyn BufRead| {
        let mut line = String::new();
        from.read_line(&mut line).expect("a line");
        line
    };
    let (stdout, stderr) = (nbd.stdout.take(), nbd.stderr.take());
    let mut stdout = BufReader::new(stdout.expect("a pipe"));
    let mut stderr = BufReader::new(stderr.expect("a pipe"));
    let serving = line(&mut stdout);
    // With port 0, the message contains the real port.
    let at = serving.trim().strip_prefix("serving namespace 1 as nbd://127.0.0.1:");
    let port = at.and_then(|at| at.strip_suffix('/')).expect("an address");
    assert_ne!(port, "0");
    let uri = format!("nbd://127.0.0.1:{port}");
    let size = || run(server.command("nbdinfo").args(["--size", &uri]));
    assert_eq!(expect_success(&size()).trim(), DISK.to_string());
    // Without free descriptors a client waits, which one line reports; it is served when there are
    // descriptors again.
    let limit = |descriptors: &str| {
        let (pid, limit) = (nbd.id().to_string(), format!("--nofile={descriptors}:"));
        run_for_output(server.command("prlimit").args(["--pid", &pid, &limit]));
    };
    limit("3");
    let mut waits = server.command("nbdinfo");
    waits.args(["--size", &uri]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let waits = waits.spawn().expect("it runs");
    let refused = "outboard: cannot accept NBD clients: Too many open files";
    let said = line(&mut stderr);
    assert!(said.starts_with(refused), "{said}");
    limit("1024");
    assert_eq!(expect_success(&wait_with_time_limit(waits)).trim(), DISK.to_string());
    assert!(size().status.success());
    server.stop();
    let lost = "outboard: controller lost: ";
    let said = line(&mut stderr);
    assert!(said.starts_with(lost) && said.ends_with("; reconnecting\n"), "{said}");
    let server = target();
    assert_eq!(line(&mut stderr), "outboard: reconnected\n");
    run_for_output(server.command("nbdinfo").args(["--size", &uri]));
    server.stop();
    assert!(line(&mut stderr).ends_with("; reconnecting\n"));
    // Only one more line, however often it has tried.
    let said = line(&mut stderr);
    assert!(said.starts_with(lost) && !said.contains(';'), "{said}");
    assert_eq!(line(&mut stderr), "");
    assert_eq!(nbd.wait().expect("it was ours").code(), Some(69));
}

/// Open requests end with the target.
#[test]
fn fio_ends_with_its_target() {
    let lab = FioFixture::start(&[]);
    let control = lab.path("initiator");
    let mut fio = nvme_initiator(lab.server.netns(), "fio", ADDR, &control);
    fio.args(["--requests", "100000000", "--ctrl-loss-timeout", "0"]);
    let fio = fio.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    assert!((0..2000).any(|_| lab.server.stat().get("nvmet_reads") > 0), "it reads");
    lab.server.stop();
    let output = wait_with_time_limit(fio);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("outboard: controller lost: "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

/// A signal interrupts a write, and the target is notified. Before that, `ss` shows the offloads in
/// use.
#[test]
fn a_write_is_interrupted() {
    for offload in ["all", "none"] {
        let lab = FioFixture::start(&["--offload", offload]);
        let file = lab.files.sparse("file", DISK);
        let mut write = lab.initiator("write");
        // Lost packets make it slow enough to be interrupted.
        write.args(["--data-digest", "--drop", "0.02", "--input"]).arg(file);
        let write = write.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
        assert!((0..2000).any(|_| lab.server.stat().get("nvmet_writes") > 0), "it writes");
        let connections = lab.server.connections();
        assert!(connections.len() >= 2, "{connections:?}");
        for connection in &connections {
            for engine in ["nvme_rx", "nvme_tx"] {
                let said = &connection["offload"][engine];
                let why = said["reason"].as_str().unwrap_or("");
                assert_eq!(said["active"].as_bool(), Some(offload == "all"), "{connections:?}");
                assert_eq!(why.contains("--offload"), offload == "none", "{connections:?}");
            }
        }
        run_for_output(lab.server.command("kill").args(["-s", "INT", &write.id().to_string()]));
        let output = wait_with_time_limit(write);
        assert_eq!(output.status.code(), Some(130), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "outboard: interrupted\n");
        let counters = lab.server.stat();
        assert!(counters.get("nvmet_written_bytes") < DISK);
        assert_eq!(counters.get("nvmet_timeouts_keep_alive"), 0);
    }
}

/// A signal interrupts the reading of a discovery log, too.
#[test]
fn discovery_is_interrupted() {
    let lab = FioFixture::start(&[]);
    // The target does not answer.
    lab.server.signal("STOP");
    let mut discover = lab.initiator("discover");
    let discover = discover.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let control = lab.path("initiator");
    let asked = || run(outboard(lab.server.netns()).args(["stat", "--control"]).arg(&control));
    assert!((0..2000).any(|_| asked().status.success()), "it is there");
    run_for_output(lab.server.command("kill").args(["-s", "INT", &discover.id().to_string()]));
    let output = wait_with_time_limit(discover);
    lab.server.signal("CONT");
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "outboard: interrupted\n");
}

/// A file system that third-party programs create and check.
#[test]
fn a_file_system_is_written_and_read() {
    let lab = FioFixture::start(&["--block-size", "512"]);
    std::fs::create_dir(lab.path("tree")).expect("a folder");
    lab.files.fill("tree/file", 3 << 20);
    let (made, back) = (lab.path("made"), lab.path("back"));
    let shell = |script: &str| {
        run_for_output(lab.server.command("sh").args(["-c", script]).current_dir(lab.files.path()))
    };
    shell("mkfs.ext4 -q -F -d tree made 32M");
    let copy = |verb: &str, option: &str, file: &Path, more: &[&str]| {
        run_for_output(lab.initiator(verb).args(["--data-digest", option]).arg(file).args(more))
    };
    copy("write", "--input", &made, &["--offset", "4096"]);
    copy("read", "--output", &back, &["--offset", "4096", "--length", "33554432"]);
    assert_eq!(sha256(&back), sha256(&made));
    shell("e2fsck -fn back >said 2>&1 || { cat said; exit 1; }");
    let counters = lab.server.stat();
    let device = ["nvme_rx_placed_bytes", "nvme_rx_digests_device", "nvme_tx_digests_device"];
    counters.expect_nonzero(&device);
    // The bytes are in the right place.
    let whole = std::fs::read(lab.path("disk")).expect("the namespace can be read");
    let text = std::fs::read(&made).expect("it can be read");
    assert!(whole[4096..4096 + text.len()] == text[..], "the namespace has what was written");
    assert!(whole[..4096].iter().all(|byte| *byte == 0), "and nothing before it");
}
