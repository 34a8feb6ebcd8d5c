//! `outboard nvme target` on several device queues: the connections of one controller are on all of
//! them, every queue's device does its work, and commands for the same blocks exclude each other on
//! whichever queues they arrive.

use interop::{
    ADDR, Counters, Files, Netns, TestServer, fio_report, has_device_process, nvme_initiator,
    nvme_target_of_file, outboard, run_for_output, sha256,
};
use std::process::{Command, Stdio};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
/// Size of the namespace in bytes.
const DISK: u64 = 64 << 20;
/// Bytes of each read and write.
const BLOCK: u64 = 16 << 10;
const QUEUES: [usize; 2] = [0, 1];
/// I/O queues of a controller. Their ports are in sequence, which [`FlowSteering::new`] spreads.
///
/// [`FlowSteering::new`]: outboard_abi::steering::FlowSteering::new
const IO_QUEUES: &str = "32";

/// A target on two queues, in a namespace that has room for an initiator.
struct QueuesFixture {
    server: TestServer,
    files: Files,
}

impl QueuesFixture {
    fn start(options: &[&str]) -> Self {
        let options = [&["--queues", "2"][..], options].concat();
        let (server, files) = nvme_target_of_file(TMP, DISK, &options);
        Self { server, files }
    }

    /// Returns a command that verifies random reads and writes of few blocks, so that many wait for
    /// each other.
    fn fio(&self, more: &[&str]) -> Command {
        let control = self.files.path().join("initiator");
        let mut fio = nvme_initiator(self.server.netns(), "fio", ADDR, &control);
        fio.args(["--ctrl-loss-timeout", "30", "--io-queues", IO_QUEUES, "--data-digest"]);
        fio.args(["--writes", "50", "--bs", &BLOCK.to_string()]);
        fio.args(["--iodepth", "64", "--json"]).args(more);
        fio
    }

    /// Asserts that a counter has moved on both queues; returns their sum.
    #[track_caller]
    fn on_both(stat: &Counters, part: &str, name: &str) -> u64 {
        let values = QUEUES.map(|queue| stat.get(&format!("{part}.q{queue}.{name}")));
        assert!(values.iter().all(|&value| value > 0), "{name}: {values:?}");
        values.iter().sum()
    }

    /// Asserts that both queues have served commands, with digests by their devices.
    #[track_caller]
    fn expect_work_on_both_queues(&self) {
        let stat = self.expect_work();
        stat.expect_zero(&["nvme_tx_digests_host", "nvmet_errors_command"]);
    }

    /// Asserts that both queues have served commands, some of them with digests by their devices.
    /// Returns the counters.
    #[track_caller]
    fn expect_work(&self) -> Counters {
        let stat = self.server.stat();
        for name in ["nvmet_reads", "nvmet_writes", "nvmet_queues"] {
            Self::on_both(&stat, "host", name);
        }
        for name in ["rx_nvmeotcp_bytes", "tx_nvmeotcp_digests", "file_bytes"] {
            Self::on_both(&stat, "nic", name);
        }
        assert!(stat.get("nvme_rx_placed_bytes") > 0);
        stat.expect_zero(&["nvmet_internal_errors", "nvme_data_digest_errors"]);
        stat
    }
}

/// `fio` compares each block that it reads with the last one that was written to its place, by any
/// I/O queue: a device that keeps a block which another queue has overwritten would be found.
#[test]
fn one_controller_uses_both_queues_and_reads_what_either_wrote() {
    for threads in ["two", "one"] {
        let lab = QueuesFixture::start(&["--threads", threads]);
        let more = ["--requests", "20000", "--size", "2097152", "--seed", "3"];
        let (verified, counters) = fio_report(&run_for_output(&mut lab.fio(&more)));
        assert!(verified > 5000, "{verified}");
        counters.expect_zero(&["nvme_data_digest_errors", "nvmei_associations_lost"]);
        lab.expect_work_on_both_queues();
        let stat = lab.server.stat();
        // What one queue has written, the device of the other has read anew.
        QueuesFixture::on_both(&stat, "host", "nvmet_invalidations");
        assert_eq!(stat.get("nvmet_controllers"), 1);
        // The association ended on both queues.
        let gone = || lab.server.stat().get("nvmet_connections_open") == 0;
        assert!((0..1000).any(|_| gone()), "{:?}", lab.server.connections());
        lab.server.stat().expect_zero(&["nvmet_locks_held", "nvmet_locks_waiting"]);
        assert!(lab.server.stop().status.success());
    }
}

#[test]
fn the_links_of_both_ends_are_faulty() {
    let faults = ["--drop", "0.01", "--reorder", "0.02"];
    let lab = QueuesFixture::start(&faults);
    let more = ["--requests", "3000", "--size", "4194304", "--seed", "4"];
    let (verified, _) = fio_report(&run_for_output(lab.fio(&more).args(faults)));
    assert!(verified > 500, "{verified}");
    lab.expect_work_on_both_queues();
    lab.server.stop();
}

/// Every connection performs its own handshake with the pre-shared key, on the host of its queue.
#[test]
fn records_are_encrypted_and_decrypted_on_both_queues() {
    let host = "nqn.2026-11.org.example:one";
    let key = run_for_output(outboard(&Netns::new()).args(["nvme", "key", "generate"]));
    let key = key.trim();
    let lab = QueuesFixture::start(&["--tls-psk", &format!("{host}={key}")]);
    let more = ["--requests", "5000", "--size", "4194304", "--seed", "7", "--queues", "2"];
    let mut fio = lab.fio(&more);
    fio.args(["--hostnqn", host, "--tls-psk", key]);
    let (verified, counters) = fio_report(&run_for_output(&mut fio));
    assert!(verified > 1000, "{verified}");
    // The report of the initiator lacks the counters of a device process.
    let of_initiator = (!has_device_process()).then_some(counters);
    for stat in [Some(lab.server.stat()), of_initiator].into_iter().flatten() {
        for name in ["tx_tls_encrypted_bytes", "rx_tls_decrypted_bytes", "rx_nvmeotcp_bytes"] {
            QueuesFixture::on_both(&stat, "nic", name);
        }
    }
    assert_eq!(lab.server.stat().get("nvmet_tls_handshakes"), 34, "two admin queues, 32 others");
    lab.expect_work_on_both_queues();
    lab.server.stop();
}

/// At both ends each device has its part: the initiator has an association for each of its queues,
/// whose connections it opens from ports that lead there.
#[test]
fn an_initiator_has_several_queues_too() {
    let lab = QueuesFixture::start(&[]);
    let more = ["--queues", "3", "--requests", "20000", "--size", "4194304", "--seed", "6"];
    let (verified, counters) = fio_report(&run_for_output(&mut lab.fio(&more)));
    assert!(verified > 5000, "{verified}");
    for queue in 0..3 {
        for name in ["host.q{}.nvmei_associations", "nic.q{}.rx_nvmeotcp_bytes"] {
            let name = name.replace("{}", &queue.to_string());
            let is_elsewhere = has_device_process() && name.starts_with("nic.");
            assert!(is_elsewhere || counters.get(&name) > 0, "{name}");
        }
        // 32 I/O queues, and an admin queue each.
        let opened = counters.get(&format!("host.q{queue}.tcp_active_opens"));
        assert!((11..=12).contains(&opened), "{opened} connections of queue {queue}");
    }
    counters.expect_zero(&["nvme_tx_digests_host", "nvme_data_digest_errors"]);
    assert_eq!(lab.server.stat().get("nvmet_controllers"), 3);
    assert_eq!(lab.server.stat().get("nvmet_queues"), 32);
    lab.expect_work_on_both_queues();

    // A file is written, flushed by all controllers, and read back.
    let (data, back) = (lab.files.fill("data", 5 << 20), lab.files.path().join("back"));
    let control = lab.files.path().join("initiator");
    let verb = |verb: &str, option: &str, file: &std::path::Path, more: &[&str]| {
        let mut command = nvme_initiator(lab.server.netns(), verb, ADDR, &control);
        run_for_output(command.args(["--queues", "2", option]).arg(file).args(more))
    };
    let before = lab.server.stat().get("nvmet_flushes");
    verb("write", "--input", &data, &[]);
    assert_eq!(lab.server.stat().get("nvmet_flushes"), before + 2);
    verb("read", "--output", &back, &["--length", "5242880"]);
    assert_eq!(sha256(&back), sha256(&data));
    let listed = nvme_initiator(lab.server.netns(), "list", ADDR, &control);
    assert!(run_for_output({ listed }.args(["--queues", "2", "--json"])).contains("67108864"));
    assert!(lab.server.stop().status.success());
}

/// The operator's orders reach one queue and hold on both.
#[test]
fn namespaces_change_while_both_queues_serve() {
    let lab = QueuesFixture::start(&[]);
    let more = ["--requests", "30000", "--size", "8388608", "--seed", "5"];
    let fio = lab.fio(&more).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let fio = fio.expect("it runs");
    assert!((0..2000).any(|_| lab.server.stat().get("nvmet_writes") >= 500), "fio works");
    let listed = lab.server.nvme_ctl(&["connections"]).expect("a list");
    let connections = listed["connections"].as_array().expect("a list");
    assert_eq!(connections.len(), 33, "an admin queue and 32 others: {listed}");
    for queue in QUEUES {
        let on = |one: &&serde_json::Value| one["device_queue"] == queue;
        assert!(connections.iter().filter(on).count() > 0, "{listed}");
    }
    let second = lab.files.sparse("second", DISK);
    let second = second.to_str().expect("UTF-8");
    let admin_commands = || lab.server.stat().get("nvmet_admin_commands");
    let before = admin_commands();
    let added = lab.server.nvme_ctl(&["add", second]).expect("it is added");
    assert_eq!((&added["nsid"], &added["state"]), (&2.into(), &"ready".into()), "{added}");
    let grown = lab.server.nvme_ctl(&["resize", "1", "--size", &(2 * DISK).to_string()]);
    assert_eq!(grown.expect("it has grown")["bytes"], 2 * DISK);
    let cut = lab.server.nvme_ctl(&["resize", "1", "--size", &(DISK / 2).to_string()]);
    assert_eq!(cut.expect("it is shorter")["bytes"], DISK / 2);
    // The initiator has asked for the changed and the active namespaces and for the pages of each,
    // which must still be there, and asks no more.
    let is_quiet = |seen| (0..4).all(|_| admin_commands() == seen);
    let has_asked = |_| admin_commands() >= before + 4 && is_quiet(admin_commands());
    assert!((0..1000).any(has_asked), "{} admin commands", admin_commands() - before);
    assert_eq!(lab.server.nvme_ctl(&["remove", "2"]), Ok(serde_json::json!({ "removed": 2 })));
    // Its file is closed on both queues, so it can be added again.
    lab.server.nvme_ctl(&["add", second]).expect("it is added again");
    let output = fio.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (verified, _) = fio_report(&String::from_utf8_lossy(&output.stdout));
    assert!(verified > 5000, "{verified}");
    let stat = lab.expect_work();
    // While a file is opened anew, the host reads the blocks, and computes the digests of these.
    let by_host = stat.get("nvme_tx_digests_host");
    assert_eq!(by_host * BLOCK, stat.get("file_fallback_bytes"));
    assert!(by_host * 20 < stat.get("nvme_tx_digests_device"), "{by_host}");
    stat.expect_zero(&["nvmet_errors_command"]);
    assert!(lab.server.stop().status.success());
}
