//! Files that change while they are served: metadata changes, appends and deployments end no
//! transfer; truncation and rewriting in place do; and the next request gets the new content. Over
//! TCP and QUIC, with and without offload.

use interop::{Counters, Files, TestServer, pattern, sha256};
use std::ffi::OsStr;
use std::fs::{self, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const H3GET: &str = env!("CARGO_BIN_EXE_h3get");

/// Changes the file at a path.
type FileChange = fn(&Path);
/// Replaces the content that is served at `/a`; the first argument is the root folder's parent.
type DeployFn = fn(&Path, &str);

/// File size in bytes: more than the device's memory, so that it reads until the end.
const BYTES: usize = 96 << 20;
const MEMORY: [&str; 2] = ["--file-memory", "8"];
/// Bytes that a transfer must have sent before the file is changed.
const STARTED_BYTES: u64 = 1 << 20;

/// Protocol by which a file is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FetchProtocol {
    Http,
    Https,
    Http3,
}

const CLIENTS: [FetchProtocol; 3] =
    [FetchProtocol::Http, FetchProtocol::Https, FetchProtocol::Http3];

impl FetchProtocol {
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Http => &[],
            Self::Https => &["--tls"],
            Self::Http3 => &["--tls", "--http3"],
        }
    }

    /// Starts a download of `/a.bin` to a file, slowly enough that it can be changed meanwhile.
    fn begin(self, server: &TestServer, to: &Path) -> Child {
        let mut command = match self {
            Self::Http | Self::Https => {
                let scheme = if self == Self::Http { "http" } else { "https" };
                let mut command = server.command("curl");
                command.args(["-skS", "--max-time", "120", "--limit-rate", "24M", "-o"]).arg(to);
                command.arg(format!("{scheme}://10.77.0.2/a.bin"));
                command
            }
            Self::Http3 => {
                let mut command = server.command(H3GET);
                command.args(["10.77.0.2:443", "/a.bin"]).arg(to);
                command
            }
        };
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the client")
    }
}

/// Returns the file bytes that the device has sent, and those that the host has read.
fn sent(client: FetchProtocol, stat: &Counters) -> [u64; 2] {
    let names = match client {
        FetchProtocol::Http | FetchProtocol::Https => ["file_offload_bytes", "file_fallback_bytes"],
        FetchProtocol::Http3 => ["quic_file_bytes_offloaded", "quic_file_bytes_software"],
    };
    names.map(|name| stat.get(name))
}

/// A transfer in progress.
struct Transfer {
    server: TestServer,
    child: Child,
    got: PathBuf,
    _folder: Files,
}

impl Transfer {
    fn begin(files: &Files, client: FetchProtocol, options: &[&str]) -> Self {
        let options = [client.options(), &MEMORY, options].concat();
        let server = TestServer::start(files.path(), &options);
        let folder = Files::new(TMP);
        let got = folder.path().join("got");
        let child = client.begin(&server, &got);
        let mut transfer = Self { server, child, got, _folder: folder };
        while sent(client, &transfer.server.stat()).iter().sum::<u64>() < STARTED_BYTES {
            assert!(!transfer.is_over(), "over before it was touched");
        }
        transfer
    }

    fn is_over(&mut self) -> bool {
        self.child.try_wait().expect("the client").is_some()
    }

    /// Sends the client a signal: STOP stalls the transfer once its windows are full, CONT lets it
    /// continue.
    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(sent.expect("kill").success());
    }

    /// Changes something while the transfer stalls.
    fn while_stalled(&self, change: impl FnOnce()) {
        self.signal("STOP");
        change();
        self.signal("CONT");
    }

    /// Waits for the end. Returns whether the client succeeded, its content, and the counters.
    fn end(mut self) -> (bool, Vec<u8>, Counters) {
        let good = self.child.wait().expect("the client").success();
        let stat = self.server.stat();
        (good, fs::read(&self.got).unwrap_or_default(), stat)
    }
}

fn append(path: &Path) {
    let mut file = OpenOptions::new().append(true).open(path).expect("the file");
    file.write_all(b"appended").expect("room");
}

/// Changes metadata and appends, neither of which affects the promised bytes.
fn touch_all(path: &Path) {
    let mode = |bits| fs::set_permissions(path, Permissions::from_mode(bits)).expect("chmod");
    mode(0o600);
    mode(0o644);
    assert!(Command::new("touch").arg("-a").arg(path).status().expect("touch").success());
    let link = path.with_extension("link");
    fs::hard_link(path, &link).expect("ln");
    fs::remove_file(link).expect("rm");
    append(path);
}

/// Replaces a file by a new one, like deployments do.
fn replace(path: &Path, content: impl AsRef<[u8]>) {
    let new = path.with_extension("new");
    fs::write(&new, content).expect("room");
    fs::rename(new, path).expect("mv");
}

fn survives(client: FetchProtocol, offload: &str) {
    let files = Files::new(TMP);
    let path = files.fill("a.bin", BYTES as u64);
    let mut transfer = Transfer::begin(&files, client, &["--offload", offload]);
    for _ in 0..3 {
        transfer.while_stalled(|| touch_all(&path));
    }
    transfer.while_stalled(|| replace(&path, "another release"));
    transfer.while_stalled(|| {
        fs::remove_file(&path).expect("rm");
        fs::write(&path, "and another").expect("room");
    });
    while !transfer.is_over() {
        touch_all(&path);
    }
    let (good, got, stat) = transfer.end();
    assert!(
        good && got == pattern(got.len().min(BYTES)),
        "{client:?} {offload}: {} bytes",
        got.len()
    );
    assert_eq!(got.len(), BYTES, "{client:?} {offload}: {} bytes", got.len());
    let [by_device, by_host] = sent(client, &stat);
    assert_eq!(by_device > by_host, offload == "all", "{client:?} {offload}: {by_device}");
    assert_eq!(stat.get("http_aborted_file"), 0, "{client:?} {offload}");
}

#[test]
fn touches_appends_and_deployments_end_no_transfer() {
    for client in CLIENTS {
        survives(client, "all");
        survives(client, "none");
    }
}

#[test]
fn rewriting_and_truncation_end_transfers() {
    let changes: [(&str, FileChange); 3] = [
        ("truncated", |path| {
            OpenOptions::new().write(true).open(path).unwrap().set_len(BYTES as u64 / 2).unwrap();
        }),
        ("rewritten", |path| fs::write(path, vec![7; BYTES]).unwrap()),
        ("rewritten to be longer", |path| fs::write(path, vec![7; BYTES + 9]).unwrap()),
    ];
    for (client, offload) in CLIENTS.into_iter().flat_map(|c| [(c, "all"), (c, "none")]) {
        for (what, change) in changes {
            let files = Files::new(TMP);
            let path = files.fill("a.bin", BYTES as u64);
            let transfer = Transfer::begin(&files, client, &["--offload", offload]);
            transfer.while_stalled(|| change(&path));
            let (good, got, stat) = transfer.end();
            let label = format!("{client:?} {offload} {what}");
            assert!(!good, "{label}: {} bytes", got.len());
            assert!(got.len() < BYTES, "{label}: {} bytes", got.len());
            assert!(got == pattern(BYTES)[..got.len()], "{label}: mixed");
            assert!(stat.get("http_requests") > 0, "{label}");
        }
    }
}

#[test]
fn strict_files_end_transfers_at_any_touch() {
    for (client, offload) in CLIENTS.into_iter().flat_map(|c| [(c, "all"), (c, "none")]) {
        let files = Files::new(TMP);
        let path = files.fill("a.bin", BYTES as u64);
        let options = ["--offload", offload, "--strict-files"];
        let transfer = Transfer::begin(&files, client, &options);
        transfer.while_stalled(|| {
            fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("chmod");
        });
        let (good, got, _) = transfer.end();
        assert!(!good && got.len() < BYTES, "{client:?} {offload}: {} bytes", got.len());
    }
}

/// Fetches `/a` again and again, each time directly after a change.
#[test]
fn new_content_is_served_at_the_next_request() {
    let changes: [(&str, DeployFn); 3] = [
        ("replaced", |root, text| replace(&root.join("one/a"), text)),
        ("rewritten in place", |root, text| fs::write(root.join("one/a"), text).unwrap()),
        ("the root leads elsewhere", |root, text| {
            let release = root.join(text);
            fs::create_dir(&release).unwrap();
            fs::write(release.join("a"), text).unwrap();
            symlink(text, root.join("next")).unwrap();
            fs::rename(root.join("next"), root.join("current")).unwrap();
        }),
    ];
    for options in [&[][..], &["--offload", "none"], &["--queues", "2", "--threads", "two"]] {
        for (what, change) in changes {
            let files = Files::new(TMP);
            files.write("one/a", "first");
            symlink("one", files.path().join("current")).expect("ln");
            let server = TestServer::start(&files.path().join("current"), options);
            assert_eq!(server.get("/a", &[]).body, b"first");
            for round in 0..20 {
                // All texts have the same length, so that only time stamps differ.
                let text = format!("r{round:04}");
                change(files.path(), &text);
                let body = server.get("/a", &[]).body;
                assert_eq!(String::from_utf8_lossy(&body), text, "{what} {options:?}");
            }
            let stat = server.stat();
            assert!(stat.get("http_files_expired") >= 20, "{what} {options:?}");
            assert_eq!(stat.get("watch_failures"), 0, "{what} {options:?}");
        }
    }
}

#[test]
fn names_are_bytes() {
    let files = Files::new(TMP);
    let folder = files.path().join(OsStr::from_bytes(b"d\xff"));
    fs::create_dir(&folder).expect("mkdir");
    let path = folder.join(OsStr::from_bytes(b"\xe9t\xe9.html"));
    fs::write(&path, "not UTF-8").expect("room");
    for options in [&["--offload", "all"], &["--offload", "none"]] {
        let server = TestServer::start(files.path(), options);
        let response = server.get("/d%ff/%e9t%E9.html", &[]);
        assert_eq!((response.status, &response.body[..]), (200, &b"not UTF-8"[..]));
        assert_eq!(response.field("content-type"), "text/html; charset=utf-8");
        // The redirect of a directory contains the same bytes.
        let moved = server.get("/d%ff", &[]);
        assert_eq!((moved.status, moved.field("location")), (301, "/d%FF/"));
        for (target, status) in [("/d%fe/x", 404), ("/%c0%ae%c0%ae/x", 404), ("/d%ff/%00", 400)] {
            assert_eq!(server.get(target, &[]).status, status, "{target}");
        }
    }
    let server = TestServer::start(files.path(), &["--tls", "--http3"]);
    let got = files.path().join("got");
    let mut command = server.command(H3GET);
    command.args(["10.77.0.2:443", "/d%ff/%e9t%E9.html"]).arg(&got);
    assert!(command.output().expect("the client").status.success());
    assert_eq!(sha256(&got), sha256(&path));
}
