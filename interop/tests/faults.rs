//! Faults from outside: files that change during a transfer, clients that vanish, a second
//! instance, and an end during a transfer.

use interop::{Files, TestServer, counters, pattern};
use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom, Write};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");

/// File size in bytes: more than all buffers hold, so that the transfer stalls if the client does
/// not read.
const BYTES: usize = 256 << 20;
/// Bytes that show that the transfer is in progress.
const STARTED_BYTES: usize = 1 << 20;

/// curl's exit codes for a body that ended early, and for a connection that was reset.
const CURL_BROKEN: [i32; 2] = [18, 56];

/// Starts a transfer, changes its file meanwhile, and asserts that the transfer is aborted and
/// counted, without a wrong byte.
fn breaks_when(change: impl FnOnce(&Files)) {
    let files = Files::new(TMP);
    files.fill("a.bin", BYTES as u64);
    let server = TestServer::start(files.path(), &[]);
    let before = server.stat();
    let mut download = server.paused_download("/a.bin");
    download.read(STARTED_BYTES);
    change(&files);
    let (received, status) = download.finish();
    assert!(received.len() < BYTES, "all of it arrived");
    assert!(pattern(BYTES).starts_with(&received), "wrong bytes arrived");
    assert!(status.code().is_some_and(|code| CURL_BROKEN.contains(&code)), "curl: {status}");
    let after = server.stat();
    assert!(after.moved(&before, counters::FILE_CHANGED) > 0, "{after:?}");
    assert_eq!(after.moved(&before, counters::FILE_ABORTS), 1, "{after:?}");
    // Other requests are served as before.
    files.write("b.txt", "b");
    assert_eq!(server.get("/b.txt", &[]).body, b"b");
}

#[test]
fn file_truncated_in_the_middle_breaks_the_connection() {
    breaks_when(|files| {
        let file = OpenOptions::new().write(true).open(files.path().join("a.bin"));
        file.and_then(|file| file.set_len(STARTED_BYTES as u64)).expect("truncate");
    });
}

#[test]
fn file_rewritten_in_the_middle_breaks_the_connection() {
    breaks_when(|files| {
        let file = OpenOptions::new().write(true).open(files.path().join("a.bin"));
        let mut file = file.expect("open");
        file.seek(SeekFrom::Start(BYTES as u64 / 2)).expect("seek");
        file.write_all(&vec![0xee; BYTES / 2]).expect("write");
    });
}

#[test]
fn file_replaced_in_the_middle_is_never_mixed() {
    let files = Files::new(TMP);
    files.fill("a.bin", BYTES as u64);
    let server = TestServer::start(files.path(), &[]);
    let mut download = server.paused_download("/a.bin");
    download.read(STARTED_BYTES);
    files.write("new.bin", vec![0xee; BYTES]);
    fs::rename(files.path().join("new.bin"), files.path().join("a.bin")).expect("rename");
    let (received, status) = download.finish();
    // The old file to its end, or an aborted transfer; never bytes of the new file.
    let old = pattern(BYTES);
    assert!(old.starts_with(&received), "wrong bytes arrived");
    assert!(!status.success() || received.len() == old.len());
    // The next request gets the new file.
    let part = server.get("/a.bin", &["--range", "0-99"]);
    assert_eq!(part.body, [0xee; 100]);
}

#[test]
fn connection_of_a_killed_client_is_removed() {
    let files = Files::new(TMP);
    files.fill("a.bin", BYTES as u64);
    let server = TestServer::start(files.path(), &[]);
    let mut download = server.paused_download("/a.bin");
    download.read(STARTED_BYTES);
    let connections = server.connections();
    assert_eq!(connections.len(), 1, "{connections:?}");
    assert!(connections[0].is_object(), "{connections:?}");
    download.kill_client();
    // The kernel resets a connection whose owner ended with unread bytes. Each request of the list
    // starts a process, which leaves the reset time to arrive.
    let gone = (0..1000).any(|_| server.connections().is_empty());
    assert!(gone, "{:?}", server.connections());
}

#[test]
fn second_instance_on_a_device_is_refused() {
    let files = Files::new(TMP);
    files.write("a.txt", "a");
    let server = TestServer::start(files.path(), &[]);
    let output = server.second_instance(files.path());
    assert!(!output.status.success(), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
    assert!(stderr.contains("ob0"), "{stderr}");
    // The first instance continues to serve.
    assert_eq!(server.get("/a.txt", &[]).body, b"a");
}

#[test]
fn missing_instance_is_reported() {
    let files = Files::new(TMP);
    files.write("a.txt", "a");
    let server = TestServer::start(files.path(), &[]);
    for verb in ["stat", "ss"] {
        let output = server.outboard(&[verb, "--control", "/nowhere/control"]);
        assert!(!output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr).trim_end().lines().count(), 1);
    }
}

#[test]
fn ends_in_the_middle_of_a_transfer_with_exit_code_zero() {
    let files = Files::new(TMP);
    files.fill("a.bin", BYTES as u64);
    let server = TestServer::start(files.path(), &[]);
    let mut download = server.paused_download("/a.bin");
    download.read(STARTED_BYTES);
    let ended = server.stop();
    assert!(ended.status.success(), "{ended:?}");
    download.kill_client();
}

#[test]
fn missing_folder_is_reported() {
    let files = Files::new(TMP);
    files.write("a.txt", "a");
    let server = TestServer::start(files.path(), &[]);
    let output = server.second_instance(&files.path().join("none"));
    assert!(!output.status.success(), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
    assert!(stderr.contains("none"), "{stderr}");
}
