//! Uploads to `outboard serve` by curl over HTTP and HTTPS, and by quinn and h3 over HTTP/3: many
//! files, refusals, and clients and servers that end early.

use interop::{Counters, Files, TestServer, expect_success, run, sha256};
use std::path::Path;
use std::process::{Command, Stdio};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const H3_CLIENT: &str = env!("CARGO_BIN_EXE_h3put");
/// Number of files.
const FILES: u64 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Http,
    Https,
    Http3,
}

/// A server that stores uploads in a folder below the one that it serves.
struct UploadFixture {
    /// Files of the client.
    files: Files,
    served: Files,
    server: TestServer,
}

impl UploadFixture {
    fn start(over: Over, options: &[&str]) -> Self {
        let (files, served) = (Files::new(TMP), Files::new(TMP));
        served.write("in/old", "old");
        let folder = served.path().join("in");
        let folder = folder.to_string_lossy();
        let secure: &[&str] = match over {
            Over::Http => &[],
            Over::Https => &["--tls"],
            Over::Http3 => &["--tls", "--http3"],
        };
        let all = [secure, &["--upload-dir", &folder], options].concat();
        let server = TestServer::start(served.path(), &all);
        Self { files, served, server }
    }

    /// Returns curl, which uploads files to the URL of their names.
    fn curl(&self, over: Over, names: &[String], options: &[&str]) -> Command {
        let scheme = if over == Over::Http { "http" } else { "https" };
        let mut command = self.server.command("curl");
        command.args(["--silent", "--show-error", "--insecure", "--max-time", "120"]).args(options);
        for name in names {
            command.arg("--upload-file").arg(self.files.path().join(name));
            command.arg(format!("{scheme}://10.77.0.2/{name}"));
        }
        command
    }

    /// Uploads files with a client of the transport.
    fn put(&self, over: Over, names: &[String], options: &[&str]) {
        let output = if over == Over::Http3 {
            let mut command = self.server.command("timeout");
            command.args(["120", H3_CLIENT, "10.77.0.2:443"]).arg(self.files.path()).args(names);
            run(&mut command)
        } else {
            run(&mut self.curl(over, names, &[&["--fail-with-body"], options].concat()))
        };
        let _statuses = expect_success(&output);
    }

    /// Returns the names in the folder for uploads, in order.
    fn stored(&self) -> Vec<String> {
        names(&self.served.path().join("in"))
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    let mut all: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into()).collect();
    all.sort();
    all
}

/// Asserts that the device decrypted most of what arrived, or nothing without offload.
fn check_offload(over: Over, offload: &str, counters: &Counters, bytes: u64) {
    // A device without an engine does not have its counters.
    let [by_device, full] = match over {
        Over::Http => return,
        Over::Https => ["rx_tls_decrypted_bytes", "tls_rx_records_full"],
        Over::Http3 => ["quic_rx_opened_bytes", "quic_in_opened"],
    };
    if offload == "none" {
        return assert_eq!(counters.get(full), 0, "{over:?}");
    }
    let moved = counters.get(by_device);
    assert!(moved * 2 > bytes, "{over:?}: {moved} of {bytes}: {counters:?}");
}

#[test]
fn a_hundred_files_arrive_whole() {
    for (over, offload) in [Over::Http, Over::Https, Over::Http3]
        .into_iter()
        .flat_map(|over| [(over, "all"), (over, "none")])
    {
        let lab = UploadFixture::start(over, &["--offload", offload]);
        // From 0 bytes to 5 MB, most of them small.
        let size = |nth: u64| if nth == 99 { 5_000_000 } else { nth * nth * nth / 2 };
        let names: Vec<String> = (0..FILES).map(|nth| format!("{nth:02}.bin")).collect();
        let bytes: u64 = (0..FILES).map(size).sum();
        for (nth, name) in (0..FILES).zip(&names) {
            lab.files.fill(name, size(nth));
        }
        let (half, rest) = names.split_at(50);
        lab.put(over, half, &[]);
        lab.put(over, rest, &["--header", "Transfer-Encoding: chunked"]);
        for name in &names {
            let stored = lab.served.path().join("in").join(name);
            assert_eq!(sha256(&stored), sha256(&lab.files.path().join(name)), "{over:?} {name}");
        }
        assert_eq!(lab.stored(), [&names[..], &["old".to_owned()]].concat(), "{over:?}");
        let counters = lab.server.stat();
        for name in ["uploads_begun", "uploads_completed", "http_201"] {
            assert_eq!(counters.get(name), FILES, "{over:?}: {name}");
        }
        assert_eq!(counters.get("upload_bytes"), bytes);
        assert_eq!(counters.get("upload_quota_used_bytes"), bytes + 3);
        counters.expect_zero(&["uploads_open", "upload_buffer_bytes", "uploads_failed"]);
        check_offload(over, offload, &counters, bytes);
        lab.server.expect_no_alarm();
    }
}

/// Files that the programs gzip and zstd have compressed arrive as they were before.
#[test]
fn compressed_files_arrive_decompressed() {
    for (over, offload) in [Over::Http, Over::Https, Over::Http3]
        .into_iter()
        .flat_map(|over| [(over, "all"), (over, "none")])
    {
        let lab = UploadFixture::start(over, &["--offload", offload]);
        // Text that compresses to a half or less.
        let text = "seq 1 700000 > text && head -c 100000 /dev/urandom > random && : > empty";
        let pack = "for f in text random empty; do gzip -k $f; zstd -q -k --check $f; done; \
                    zstd -q -k -19 text -o large.zst; \
                    gzip -c text > two.gz; gzip -c random >> two.gz; cat text random > two";
        for script in [text, pack] {
            let mut command = Command::new("sh");
            let _ =
                expect_success(&run(command.args(["-ec", script]).current_dir(lab.files.path())));
        }
        for (coding, suffix) in [("gzip", "gz"), ("zstd", "zst")] {
            let files = ["text", "random", "empty", if coding == "gzip" { "two" } else { "large" }];
            let names = files.map(|name| match over {
                Over::Http3 => format!("{name}.{suffix}={coding}"),
                _ => format!("{name}.{suffix}"),
            });
            lab.put(over, &names, &["--header", &format!("Content-Encoding: {coding}")]);
            for name in files {
                let stored = lab.served.path().join("in").join(format!("{name}.{suffix}"));
                let original = if name == "large" { "text" } else { name };
                let original = lab.files.path().join(original);
                assert_eq!(
                    sha256(&stored),
                    sha256(&original),
                    "{over:?} {offload} {name}.{suffix}"
                );
            }
        }
        let counters = lab.server.stat();
        assert_eq!(counters.get("uploads_encoded"), 8);
        let bytes = counters.get("upload_bytes");
        // Decoders do not cross to a device process.
        let by_program = offload == "none" || lab.server.has_device_process();
        let (by_host, by_device) = if by_program { (bytes, 0) } else { (0, bytes) };
        assert_eq!(counters.get("decompress_sw_bytes"), by_host, "{over:?} {offload}");
        if !by_program {
            assert_eq!(counters.get("decompress_bytes"), by_device, "{over:?}");
        }
        counters.expect_zero(&["uploads_open", "upload_decoders", "uploads_failed"]);
        lab.server.expect_no_alarm();
    }
}

/// Damaged files and a bomb are refused, and leave nothing.
#[test]
fn damaged_files_and_bombs_are_refused() {
    let lab = UploadFixture::start(Over::Https, &["--upload-max-size", "20000000"]);
    let script = "seq 1 100000 > text && gzip -k text && zstd -q -k text; \
                  head -c -1 text.gz > cut.gz; (cat text.zst; echo more) > more.zst; \
                  head -c 15000000 /dev/zero | gzip > bomb.gz; \
                  head -c 8000000 /dev/urandom | od -An -tx1 -v > hex; \
                  head -c 20000001 hex | zstd -q > long.zst; \
                  head -c 200000 /dev/urandom | zstd -q --long=27 > wide.zst";
    let mut command = Command::new("sh");
    let _ = expect_success(&run(command.args(["-ec", script]).current_dir(lab.files.path())));
    for (name, coding, status) in [
        ("cut.gz", "gzip", "400"),
        ("more.zst", "zstd", "400"),
        ("text.gz", "zstd", "400"),
        ("bomb.gz", "gzip", "413"),
        ("long.zst", "zstd", "413"),
        ("wide.zst", "zstd", "400"),
        ("text.gz", "br", "415"),
    ] {
        let field = format!("Content-Encoding: {coding}");
        let mut command = lab.curl(Over::Https, &[name.to_owned()], &["--header", &field]);
        let text = expect_success(&run(command.args(["--write-out", "%{http_code}"])));
        assert!(text.ends_with(&format!("\n{status}")), "{name}: {text}");
    }
    assert_eq!(lab.stored(), ["old"]);
    lab.server.stat().expect_zero(&["uploads_open", "upload_decoders", "upload_buffer_bytes"]);
    lab.server.expect_no_alarm();
}

#[test]
fn refusals_are_explained() {
    let options = ["--upload-quota", "1100", "--upload-max-size", "600"];
    let lab = UploadFixture::start(Over::Http, &options);
    lab.files.fill("small", 500);
    lab.files.fill("large", 601);
    lab.files.fill("tiny", 90);
    let put = |name: &str, path: &str, options: &[&str]| {
        let mut command = lab.curl(Over::Http, &[], options);
        command.arg("--path-as-is").args(["--write-out", "%{http_code}"]);
        command.arg("--upload-file").arg(lab.files.path().join(name));
        command.arg(format!("http://10.77.0.2{path}"));
        expect_success(&run(&mut command))
    };
    // A chunked file that is too large, while there is room in the quota.
    let chunked = ["--header", "Transfer-Encoding: chunked"];
    assert!(put("large", "/large", &chunked).starts_with("413"));
    assert_eq!(put("small", "/old", &[]), "204");
    assert_eq!(put("small", "/new", &[]), "201 Created\n201");
    for (name, path, options, status) in [
        ("small", "/third", &[][..], "507"),
        ("large", "/large", &[], "413"),
        ("tiny", "/new", &["--header", "If-None-Match: *"], "412"),
        ("small", "/../x", &[], "400"),
        ("small", "/a/../x", &[], "400"),
        ("small", "/.x", &[], "403"),
        ("tiny", "/none/x", &[], "404"),
        ("small", "/x", &["--header", "Content-Encoding: gzip"], "400"),
        ("small", "/x", &["--header", "Content-Encoding: br"], "415"),
    ] {
        let text = put(name, path, options);
        assert!(text.starts_with(status) && text.ends_with(&format!("\n{status}")), "{text}");
        assert!(text.contains(": "), "{path}: no reason in {text}");
    }
    assert_eq!(lab.stored(), ["new", "old"]);
    // An upload can be fetched, also at once after it was replaced.
    for (name, bytes) in [("tiny", 90_u16), ("tinier", 80)] {
        lab.files.fill(name, bytes.into());
        assert_eq!(put(name, "/old", &[]), "204");
        let got = lab.server.get("/in/old", &[]);
        assert_eq!((got.status, got.body), (200, interop::pattern(bytes.into())));
    }
    lab.server.expect_no_alarm();
}

/// Waits until the folder has a temporary file, or none. A file raises no event to wait for: a
/// shell polls the folder.
fn wait_until(folder: &Path, has_temporary: bool) {
    let test = if has_temporary { "" } else { "!" };
    let script =
        format!("until {test} ls -A \"$0\" | grep -q outboard-upload; do sleep 0.05; done");
    let polled = run(Command::new("timeout").args(["30", "sh", "-c", &script]).arg(folder));
    assert!(polled.status.success(), "{:?}", names(folder));
}

#[test]
fn a_killed_client_and_a_killed_server_leave_no_temporary_file() {
    for over in [Over::Http, Over::Https] {
        let lab = UploadFixture::start(over, &[]);
        lab.files.fill("big", 5_000_000);
        let begin = || {
            let name = "big".to_owned();
            let mut command = lab.curl(over, &[name], &["--limit-rate", "500k"]);
            let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            let child = child.expect("curl");
            wait_until(&lab.served.path().join("in"), true);
            child
        };
        let mut child = begin();
        child.kill().expect("it runs");
        child.wait().expect("it has ended");
        wait_until(&lab.served.path().join("in"), false);
        assert_eq!(lab.server.stat().get("uploads_failed"), 1);
        lab.server.stat().expect_zero(&["uploads_open", "upload_buffer_bytes"]);
        assert_eq!(lab.stored(), ["old"]);
        // A server that was killed has no time to remove it; the next one does.
        let mut child = begin();
        let UploadFixture { served, server, .. } = lab;
        let netns = server.crash();
        child.kill().expect("it runs");
        child.wait().expect("it has ended");
        drop(netns);
        let folder = served.path().join("in");
        assert_eq!(names(&folder).len(), 2, "the temporary file and the old one");
        let options = ["--upload-dir", &folder.to_string_lossy()];
        let _next = TestServer::start(served.path(), &options);
        assert_eq!(names(&folder), ["old"]);
    }
}
