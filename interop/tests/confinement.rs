//! Programs that run with few privileges: an unprivileged user, a sandbox of files and system
//! calls, a device that a service manager starts when a program connects.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use interop::{
    DeviceFixture, Files, Netns, TestServer, ThirdPartyServer, expect_success, fetch_sha256,
    nvme_initiator, run, sha256,
};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
/// Number of the unprivileged user of the tests.
const UNPRIVILEGED_UID: &str = "1";
/// Starts a program as an unprivileged user that can gain no capability.
const UNPRIVILEGED: [&str; 6] = [
    "setpriv",
    "--reuid=1",
    "--regid=1",
    "--clear-groups",
    "--inh-caps=-all",
    "--bounding-set=-all",
];

/// Makes a folder readable for all users.
fn publish(folder: &Path) {
    std::fs::set_permissions(folder, Permissions::from_mode(0o755)).expect("the folder is ours");
}

/// Asserts that a process has no capabilities.
fn expect_unprivileged(server: &TestServer) {
    assert_eq!(server.status_field("Uid"), UNPRIVILEGED_UID);
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(server.status_field(set), "0000000000000000", "{set}");
    }
}

/// Asserts that a process has a filter of system calls.
fn expect_filtered(server: &TestServer) {
    assert_eq!((server.status_field("Seccomp"), server.status_field("NoNewPrivs")), two("2", "1"));
}

fn two(one: &str, other: &str) -> (String, String) {
    (one.to_owned(), other.to_owned())
}

fn fetch(netns: &Netns, url: &str) -> String {
    fetch_sha256(netns, TMP, url, &[])
}

/// The device is started by its first client, and gives up root; the program never had it.
#[test]
fn an_unprivileged_program_on_a_device_by_socket_activation() {
    let fixture = DeviceFixture::new(TMP);
    let want = sha256(&fixture.files.fill("a.bin", 3 << 20));
    publish(fixture.files.path());
    publish(fixture.scratch.path());
    let socket = fixture.socket("a");
    let path = socket.to_str().expect("UTF-8");
    let root = format!("site={}", fixture.files.path().display());
    let (device, program) = thread::scope(|scope| {
        let device = scope.spawn(|| {
            let activate = ["systemd-socket-activate", "-l", path];
            let args = ["nic", "--link", "packet:v0", "--root", &root, "--user", "daemon"];
            let netns = Arc::clone(&fixture.netns);
            TestServer::launched_by(netns, &activate, &[&args[..], &["--sandbox"]].concat())
        });
        // The first client starts the device.
        while UnixStream::connect(&socket).is_err() {}
        std::fs::set_permissions(&socket, Permissions::from_mode(0o666)).expect("the file is ours");
        let folder = fixture.files.path().to_str().expect("UTF-8");
        let nic = format!("unix:{path}");
        let args = ["serve", folder, "--nic", &nic, "--addr", "10.77.0.2/24", "--tls"];
        let netns = Arc::clone(&fixture.netns);
        let program =
            TestServer::launched_by(netns, &UNPRIVILEGED, &[&args[..], &["--sandbox"]].concat());
        (device.join().expect("it starts"), program)
    });
    for server in [&device, &program] {
        expect_unprivileged(server);
        expect_filtered(server);
    }
    assert_eq!(fetch(&fixture.netns, "https://10.77.0.2/a.bin"), want);
    device.stat().expect_nonzero(&["file_bytes", "tx_tls_encrypted_bytes", "setup_established"]);
    // The connection that started the device was none of a program.
    assert_eq!(device.stat().get("programs_refused"), 1);
    for server in [program, device] {
        let ended = server.stop();
        assert!(ended.status.success(), "{}", ended.stderr);
        assert!(!ended.stderr.contains("ermission") && !ended.stderr.contains("not permitted"));
    }
    assert!(socket.exists(), "it belongs to the manager");
}

/// Each program works in its sandbox, as root and as another user.
#[test]
fn programs_work_in_a_sandbox() {
    for user in [&[][..], &["--user", "daemon"]] {
        let netns = Arc::new(Netns::new());
        let files = Files::new(TMP);
        publish(files.path());
        let want = sha256(&files.fill("a.bin", 3 << 20));
        let folder = files.path().to_str().expect("UTF-8");
        let args = ["serve", folder, "--link", "tap:ob0", "--tls", "--http3", "--sandbox"];
        let server = TestServer::launched_by(Arc::clone(&netns), &["env"], &[&args, user].concat());
        expect_filtered(&server);
        if !user.is_empty() {
            expect_unprivileged(&server);
        }
        assert_eq!(fetch(&netns, "https://10.77.0.2/a.bin"), want);
        // A file that is new, and one that is replaced, are served too.
        let new = sha256(&files.fill("b.bin", 1 << 20));
        assert_eq!(fetch(&netns, "https://10.77.0.2/b.bin"), new);
        server.stat().expect_nonzero(&["file_bytes", "tx_tls_encrypted_bytes"]);
        server.expect_no_alarm();
        assert!(server.stop().status.success());
    }
}

#[test]
fn the_proxy_works_in_a_sandbox() {
    let netns = Arc::new(Netns::new());
    let (files, scratch) = (Files::new(TMP), Files::new(TMP));
    let want = sha256(&files.fill("a.bin", 3 << 20));
    let args = ["proxy", "--listen", ":80", "--backend", "10.77.0.1:8081", "--sandbox"];
    let args = [&args[..], &["--user", "daemon"]].concat();
    let server = TestServer::launched_by(Arc::clone(&netns), &["env"], &args);
    let _nginx = ThirdPartyServer::nginx(&netns, scratch.path(), files.path(), &[8081], "");
    expect_filtered(&server);
    expect_unprivileged(&server);
    assert_eq!(fetch(&netns, "http://10.77.0.2/a.bin"), want);
    server.stat().expect_nonzero(&["splice_begun"]);
}

#[test]
fn the_nvme_target_works_in_a_sandbox() {
    let netns = Arc::new(Netns::new());
    netns.enable_ipv4_forwarding();
    let (files, scratch) = (Files::new(TMP), Files::new(TMP));
    files.sparse("disk", 16 << 20);
    let disk = files.path().join("disk");
    let disk = disk.to_str().expect("UTF-8");
    let args = ["nvme", "target", "--gateway", "10.77.0.1", "--namespace", disk, "--sandbox"];
    let server = TestServer::launched_by(Arc::clone(&netns), &["env"], &args);
    expect_filtered(&server);
    let control = scratch.path().join("initiator");
    let mut fio = nvme_initiator(&netns, "fio", interop::ADDR, &control);
    fio.args(["--requests", "500", "--writes", "50", "--data-digest", "--json"]);
    let _ = expect_success(&run(&mut fio));
    server.stat().expect_nonzero(&["nvmet_reads", "nvmet_writes", "nvme_tx_digests_device"]);
    server.expect_no_alarm();
}

/// The service manager learns that the program is ready, that it works, and that it ends.
#[test]
fn the_service_manager_is_notified() {
    let (netns, files, scratch) = (Arc::new(Netns::new()), Files::new(TMP), Files::new("/tmp"));
    let path = scratch.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    let notify = format!("NOTIFY_SOCKET={}", path.display());
    let launcher = ["env", &notify, "WATCHDOG_USEC=200000"];
    let folder = files.path().to_str().expect("UTF-8");
    let args = ["serve", folder, "--link", "tap:ob0", "--sandbox"];
    let server = TestServer::launched_by(netns, &launcher, &args);
    let next = || {
        let mut bytes = [0; 256];
        let len = manager.recv(&mut bytes).expect("a message");
        String::from_utf8_lossy(&bytes[..len]).trim().to_owned()
    };
    assert_eq!([next(), next(), next()], ["READY=1", "WATCHDOG=1", "WATCHDOG=1"]);
    assert!(server.stop().status.success());
    while next() != "STOPPING=1" {}
}

/// Bad names and missing privileges are explained.
#[test]
fn refusals_are_explained() {
    let fixture = DeviceFixture::new(TMP);
    let listen = fixture.socket("a");
    let listen = listen.to_str().expect("UTF-8");
    let refused = |launcher: &[&str], args: &[&str]| {
        let mut command = fixture.netns.command(launcher[0]);
        command.args(&launcher[1..]).arg(interop::program()).args(args);
        let output = run(&mut command);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let nic = ["nic", "--link", "packet:v0"];
    let with = |more: &[&str]| refused(&["env"], &[&nic[..], more].concat());
    for (args, code, why) in [
        (&["--listen", listen, "--user", "nemo"][..], 2, "there is no user nemo"),
        (&["--listen", listen, "--user", "root"], 2, "the user root is the superuser"),
        (&["--listen", listen, "--root", "a=/none", "--sandbox"], 66, "/none"),
        (&[], 2, "give --listen PATH or --listen-ether IF, or start it by socket activation"),
        (&["--take-over", "/none"], 69, "cannot take over the device of /none"),
    ] {
        let (status, said) = with(args);
        assert!(said.contains(why), "{said}");
        assert_eq!(status, Some(code), "{said}");
    }
}
