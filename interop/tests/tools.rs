//! Other programs that people use: a browser on a page, and Wireshark on a capture.

use interop::{Files, TestServer, Url};
use std::process::Command;

const TMP: &str = env!("CARGO_TARGET_TMPDIR");

/// A page into which a script writes what the browser made of its parts.
const PAGE: &str = r#"<!doctype html><html><head><meta charset="utf-8">
<link rel="stylesheet" href="look.css"></head><body><p id="p">text</p><img id="i" src="red.svg">
<script src="check.js"></script></body></html>"#;
const CSS: &str = "p { text-indent: 77px }";
const SVG: &str = r#"<svg xmlns="http://www.w3.org/2000/svg" width="31" height="17"/>"#;
const JS: &str = "addEventListener('load', () => {
  const indent = getComputedStyle(document.getElementById('p')).textIndent;
  const image = document.getElementById('i');
  document.body.setAttribute('data-seen', indent + ' ' + image.naturalWidth);
});";

#[test]
fn browser_shows_a_page_with_its_parts() {
    let files = Files::new(TMP);
    files.write("index.html", PAGE);
    files.write("look.css", CSS);
    files.write("red.svg", SVG);
    files.write("check.js", JS);
    let server = TestServer::start(files.path(), &[]);
    let profile = Files::new(TMP);
    let output = server
        .command("timeout")
        .args(["120", "chromium", "--headless", "--no-sandbox", "--disable-gpu"])
        .args(["--disable-dev-shm-usage", "--no-first-run", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(Url::v4("/").to_string())
        .output()
        .expect("chromium: `make setup` installs it");
    let dom = String::from_utf8_lossy(&output.stdout);
    assert!(
        dom.contains(r#"data-seen="77px 31""#),
        "{}: {dom}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn capture_is_what_wireshark_expects() {
    let files = Files::new(TMP);
    files.fill("a.bin", 300_000);
    let folder = Files::new(TMP);
    let capture = folder.path().join("wire.pcapng");
    let server = TestServer::start(files.path(), &["--pcap", &capture.to_string_lossy()]);
    assert_eq!(server.get("/a.bin", &[]).body.len(), 300_000);
    // The capture is complete once the server has ended.
    let ended = server.stop();
    assert!(ended.status.success(), "{ended:?}");
    let read = |filter: &str, field: &str| {
        let mut command = Command::new("tshark");
        command.arg("-r").arg(&capture).args(["-Y", filter, "-T", "fields", "-e", field]);
        let output = command.output().expect("tshark: `make setup` installs it");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    assert_eq!(read("http.request", "http.request.uri"), "/a.bin");
    assert_eq!(read("http.response", "http.content_length_header"), "300000");
    assert_eq!(read("_ws.malformed || tcp.analysis.lost_segment", "frame.number"), "");
}
