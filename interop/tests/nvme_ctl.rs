//! `outboard nvme ctl` changes the namespaces of a running target, and Linux's initiator, which
//! runs in a virtual machine, sees the changes without reconnecting.

use interop::{ADDR, Files, Netns, Vm, nvme_initiator, nvme_target, run_for_output};
use std::path::Path;
use std::sync::Arc;

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const NQN: &str = "nqn.2026-11.io.outboard:storage";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-4111-8111-111111111111";
const HOST_ID: &str = "11111111-1111-4111-8111-111111111111";
/// Size of a namespace in bytes.
const DISK: u64 = 48 << 20;
/// Size to which it grows.
const GROWN: u64 = 64 << 20;

/// Script for Linux: connects, and reports each change that it sees.
const SCRIPT: &str = "echo connected\n\
    until [ -b /dev/nvme0n2 ]; do sleep 0.1; done\n\
    echo added, ro $(cat /sys/block/nvme0n2/ro)\n\
    dd if=/dev/nvme0n2 of=/tmp/read bs=1M count=1 iflag=direct 2>/dev/null\n\
    until [ $(cat /sys/block/nvme0n1/size) = 131072 ]; do sleep 0.1; done\n\
    echo grown\n\
    dd if=/tmp/read of=/dev/nvme0n1 bs=1M count=1 seek=63 oflag=direct 2>/dev/null\n\
    until [ ! -b /dev/nvme0n2 ]; do sleep 0.1; done\n\
    echo removed\n\
    echo 1 >/sys/class/nvme/nvme0/delete_controller\n";

#[test]
fn linux_sees_namespaces_come_grow_and_go() {
    namespaces_come_grow_and_go("1");
}

/// The operator's orders and Linux's queues reach different queues of the target.
#[test]
fn linux_sees_the_changes_of_a_target_on_three_queues() {
    namespaces_come_grow_and_go("3");
}

fn namespaces_come_grow_and_go(queues: &str) {
    let (files, scratch) = (Files::new(TMP), Files::new(TMP));
    let (disk, more) = (files.sparse("disk", DISK), files.fill("more", 2 << 20));
    let (log, more) = (scratch.path().join("log"), more.to_str().expect("UTF-8"));
    let options = ["--access-log", log.to_str().expect("UTF-8"), "--queues", queues];
    let server = nvme_target(Arc::new(Netns::new()), &disk, &options);
    let script = format!(
        "set -e\n\
         echo 'transport=tcp,traddr={ADDR},trsvcid=4420,nqn={NQN},hostnqn={HOST},\
         hostid={HOST_ID},hdr_digest' >/dev/nvme-fabrics\n\
         until [ -b /dev/nvme0n1 ]; do sleep 0.1; done\n{SCRIPT}"
    );
    let mut vm = Vm::start(|program| server.command(program), scratch.path(), &script);
    vm.wait_for("connected");
    let said = server.nvme_ctl(&["connections"]).expect("an answer");
    let queues = said["connections"].as_array().expect("a list");
    assert!(queues.len() >= 2, "an admin queue, and one for each core: {said}");
    for queue in queues {
        let of = (&queue["host"], &queue["host_id"], &queue["header_digest"]);
        assert_eq!(of, (&HOST.into(), &HOST_ID.into(), &true.into()), "{said}");
    }

    let added = server.nvme_ctl(&["add", more, "--read-only"]).expect("it is added");
    let seen = (&added["nsid"], &added["state"], &added["bytes"], &added["read_only"]);
    assert_eq!(seen, (&2.into(), &"ready".into(), &(2 << 20).into(), &true.into()), "{added}");
    assert!(vm.wait_for("added").ends_with("ro 1"));
    let twice = server.nvme_ctl(&["add", more]).expect_err("it is served");
    assert!(twice.contains("already in use by a target"), "{twice}");
    let resized = server.nvme_ctl(&["resize", "1", "--size", &GROWN.to_string()]);
    assert_eq!(resized.expect("it has grown")["bytes"], GROWN);
    vm.wait_for("grown");
    // Linux writes to the new part before it checks whether the other namespace is gone.
    assert_eq!(server.nvme_ctl(&["remove", "2"]), Ok(serde_json::json!({ "removed": 2 })));
    let said = vm.finish();
    assert!(said.contains("removed") && !said.contains("I/O error"), "{said}");
    assert!(server.nvme_ctl(&["remove", "2"]).expect_err("it is gone").contains("no such"));
    server.stat().expect_nonzero(&["nvmet_events", "nvmet_writes"]);
    let listed = server.nvme_ctl(&["list"]).expect("a list");
    assert_eq!(listed["namespaces"].as_array().map(Vec::len), Some(1), "{listed}");
    assert!(server.stop().status.success());
    let written = std::fs::read(&disk).expect("the namespace");
    let read = std::fs::read(more).expect("what was read");
    assert!(written[63 << 20..] == read[..1 << 20], "the new part has what Linux wrote");

    let log = read_logs(&log);
    let came =
        format!("connected host=\"{HOST}\" hostid={HOST_ID} subsystem=\"{NQN}\" controller=1");
    for wanted in [
        format!("{came} queue=0 entries=32 digests=header"),
        "namespace=2 added path=".to_owned(),
        "namespace=1 resized blocks=16384".to_owned(),
        "namespace=2 removed".to_owned(),
        "closed host=".to_owned(),
    ] {
        assert!(log.contains(&wanted), "{wanted}: {log}");
    }
}

/// Returns the access logs of all queues.
fn read_logs(first: &Path) -> String {
    let log = |queue: usize| match queue {
        0 => std::fs::read_to_string(first),
        _ => std::fs::read_to_string(format!("{}.{queue}", first.display())),
    };
    log(0).expect("a log") + &(1..3).flat_map(log).collect::<String>()
}

/// Our initiator gets a reason for a refused write, and for a refused connection.
#[test]
fn read_only_and_refused() {
    let (files, scratch) = (Files::new(TMP), Files::new(TMP));
    let disk = files.fill("disk", 8 << 20);
    let log = scratch.path().join("log");
    let netns = Arc::new(Netns::new());
    let options = ["--read-only", "--allow", HOST, "--access-log", log.to_str().expect("UTF-8")];
    let server = nvme_target(netns, &disk, &options);
    server.netns().enable_ipv4_forwarding();
    let control = scratch.path().join("control");
    let verb = |verb: &str, host: &str| {
        let mut command = nvme_initiator(server.netns(), verb, ADDR, &control);
        command.args(["--hostnqn", host, "--header-digest=off", "--data-digest"]);
        command
    };
    let list = run_for_output(verb("list", HOST).arg("--json"));
    assert!(list.contains("\"write_protected\": true"), "{list}");
    let mut write = verb("write", HOST);
    let output = write.arg("--input").arg(&disk).output().expect("it runs");
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && why.contains("write protected"), "{why}");
    server.stat().expect_zero(&["nvmet_written_bytes"]);
    let other = verb("list", "nqn.2026-11.org.example:other").output().expect("it runs");
    assert!(!other.status.success());
    assert!(server.stop().status.success());
    let log = std::fs::read_to_string(log).expect("the log");
    let refused = "refused host=\"nqn.2026-11.org.example:other\" hostid=";
    assert!(
        log.contains(refused) && log.contains(": host is not in the list of allowed hosts ("),
        "{log}"
    );
    assert!(log.contains("digests=data"), "{log}");
}
