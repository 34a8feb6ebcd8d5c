//! The same files on Linux's target, which runs in a virtual machine: plain and over TLS, and with
//! a target that goes away while files are fetched.
//!
//! The cache is small, so that each protocol reads the files from the target.

use std::path::Path;
use std::sync::Arc;

use interop::{
    Files, LINUX_NQN, LinuxTarget, Netns, PEER, VM_ADDR, Vm, namespace_server, outboard,
    run_for_output, tls_key_script,
};

use crate::{
    HOST, KEY, LATE_FILES, Over, RemoteFilesFixture, TMP, early_names, hashes, late_names,
    make_image,
};

/// Size of the namespace in MiB: the machine has little memory.
const MEBIBYTES: u32 = 80;
/// Bytes of the early files that the device places: those of reads of 12 KiB and more are nearly
/// all of 32 MiB.
const PLACED_MIN: u64 = 24 << 20;

/// Writes the image to the target's namespace.
fn write_image(netns: &Netns, scratch: &Files, image: &Path, keys: Option<&Path>) {
    let mut command = outboard(netns);
    command.args(["nvme", "write", VM_ADDR, "--gateway", PEER, "--nqn", LINUX_NQN, "--control"]);
    command.arg(scratch.path().join("control")).arg("--input").arg(image);
    if let Some(keys) = keys {
        command.args(["--hostnqn", HOST, "--tls-psk-derivation", "libnvme", "--tls-psk-file"]);
        command.arg(keys);
    }
    run_for_output(&mut command);
}

/// Starts Linux's target with the image, and a server.
fn start(tls: bool) -> (RemoteFilesFixture, Vm) {
    let (disk, hashes) = make_image(u64::from(MEBIBYTES) << 20);
    let (netns, scratch) = (Arc::new(Netns::new()), Files::new(TMP));
    let mut script = LinuxTarget { mebibytes: MEBIBYTES, tls }.with_outage();
    if tls {
        script.insert_str(0, &tls_key_script((HOST, LINUX_NQN), KEY, 1));
    }
    let mut vm = Vm::start(|program| netns.command(program), scratch.path(), &script);
    vm.wait_for("target: ready");
    let keys = tls.then(|| disk.write("keys", format!("{HOST} {KEY}\n")));
    write_image(&netns, &scratch, &disk.path().join("image"), keys.as_deref());
    let mut url = format!("nvme://{VM_ADDR}/1?nqn={LINUX_NQN}&data-digest&header-digest");
    if let Some(keys) = keys {
        let keys = keys.display();
        url.push_str(&format!("&hostnqn={HOST}&tls-psk-file={keys}&tls-psk-derivation=libnvme"));
    }
    let options = ["--http", "--tls", "--http3", "--remote-cache", "1", "--remote-patience", "50"];
    let server = namespace_server(Arc::clone(&netns), &url, &options);
    (RemoteFilesFixture { disk, hashes, netns, tls, server }, vm)
}

/// Tells the machine to continue its script.
fn signal(netns: &Netns) {
    run_for_output(netns.command("bash").args(["-c", &LinuxTarget::signal_script()]));
}

fn serve_from_linux(tls: bool) {
    let (fixture, mut vm) = start(tls);
    let placed = || fixture.server.stat().get("nvme_rx_placed_bytes");
    let mut before = placed();
    for over in [Over::Http, Over::Https, Over::Http3] {
        fixture.fetch(over, &early_names());
        let after = placed();
        assert!(after - before > PLACED_MIN, "{over:?}: {} bytes", after - before);
        before = after;
    }
    let counters = fixture.server.stat();
    counters.expect_zero(&["nvme_data_digest_errors", "remote_outages", "remote_corrupt"]);
    counters.expect_nonzero(&["nvme_rx_digests_device", "tx_tls_encrypted_bytes"]);
    let decrypted = counters.get("rx_tls_decrypted_bytes");
    assert_eq!(decrypted > PLACED_MIN, tls, "{decrypted} bytes decrypted");

    // Files that are requested while the target is away wait for it.
    signal(&fixture.netns);
    vm.wait_for("target: gone");
    let to = Files::new(TMP);
    let mut client = fixture.client(Over::Https, &late_names(), to.path());
    let client = client.spawn().expect("curl");
    signal(&fixture.netns);
    vm.wait_for("target: back");
    let ended = client.wait_with_output().expect("curl");
    assert!(ended.status.success(), "{ended:?}");
    let fetched = hashes(to.path());
    assert_eq!(fetched.len() as u64, LATE_FILES);
    assert!(fetched.is_subset(&fixture.hashes), "other bytes");
    assert_eq!(fixture.server.stat().get("remote_outages"), 1);
    assert!(placed() - before > LATE_FILES * 131_072 * 9 / 10, "placed after the outage as before");
}

#[test]
fn files_of_linux() {
    serve_from_linux(false);
}

#[test]
fn files_of_linux_over_tls() {
    serve_from_linux(true);
}
