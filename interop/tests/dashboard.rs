//! `--dashboard`: events that follow the counters, and the page in a browser.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use interop::{Files, TestServer, run_for_output};
use serde_json::Value;

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const ADDR: &str = "127.0.0.1:9478";

/// Starts a client that receives events.
fn listen(server: &TestServer) -> Child {
    let mut curl = server.command("curl");
    curl.args(["-s", "-N", "-m", "60", &format!("http://{ADDR}/events")]);
    curl.stdout(Stdio::piped()).spawn().expect("curl: `make setup` installs it")
}

/// Returns the events of a client, as they arrive.
fn events(client: &mut Child) -> impl Iterator<Item = Value> {
    let lines = BufReader::new(client.stdout.take().expect("a pipe")).lines();
    lines.filter_map(|line| {
        let line = line.expect("text");
        Some(serde_json::from_str(line.strip_prefix("data: ")?).expect("JSON"))
    })
}

fn offload<'a>(event: &'a Value, name: &str) -> &'a Value {
    let mut all = event["offloads"].as_array().expect("a list").iter();
    all.find(|one| one["name"] == name).expect("it is in the list")
}

#[test]
fn events_follow_the_offloads() {
    let files = Files::new(TMP);
    files.fill("a.bin", 3_000_000);
    let server = TestServer::start(files.path(), &["--tls", "--dashboard", ADDR]);
    let mut client = listen(&server);
    let mut events = events(&mut client);
    let before = events.next().expect("an event");
    assert_eq!(offload(&before, "files")["share"], Value::Null);
    let mut curl = server.command("curl");
    curl.args(["-s", "-k", "-o", "/dev/null", "-w", "%{size_download}", "https://10.77.0.2/a.bin"]);
    assert_eq!(run_for_output(&mut curl), "3000000");
    let is_done = |event: &Value| offload(event, "files")["device"] == 3_000_000;
    let mut rates = Vec::new();
    let after = events
        .inspect(|event| rates.push(event["sent_bytes_per_s"].as_f64()))
        .find(is_done)
        .expect("an event with the transfer");
    assert_eq!(offload(&after, "files")["share"], 1.0);
    assert_eq!(offload(&after, "TLS transmit")["share"], 1.0);
    assert_eq!(offload(&after, "TLS transmit")["device"], 1);
    let threads = after["load"].as_array().expect("a list");
    let has_thread = |name| threads.iter().any(|one| one["thread"] == name);
    assert!(has_thread("host0"), "{threads:?}");
    // A device in another process has the link, and shows its throughput itself.
    if interop::has_device_process() {
        assert!(rates.iter().all(Option::is_none), "{rates:?}");
    } else {
        assert!(rates.iter().all(Option::is_some), "{rates:?}");
        assert!(rates.iter().flatten().any(|&rate| rate > 1e6), "{rates:?}");
        assert!(has_thread("nic0"), "{threads:?}");
    }
    assert_eq!(after["alarms"], serde_json::json!({}));
    client.kill().expect("it is killed");
    client.wait().expect("it ends");
}

/// The DOM that Chromium has when the page is loaded: the content security policy admits the
/// script, which has made the heads of the table, and the style sheet.
#[test]
fn the_page_runs_in_a_browser() {
    let files = Files::new(TMP);
    let server = TestServer::start(files.path(), &["--dashboard", ADDR]);
    let profile = Files::new(TMP);
    let mut chromium = server.command("timeout");
    chromium.args(["60", "chromium", "--headless", "--no-sandbox", "--disable-gpu"]);
    chromium.args(["--disable-dev-shm-usage", "--no-first-run", "--enable-logging=stderr"]);
    chromium.arg("--dump-dom");
    chromium.arg(format!("--user-data-dir={}", profile.path().display()));
    let output = chromium.arg(format!("http://{ADDR}/")).output().expect("chromium");
    let (dom, log) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(dom.contains("<button>round trip (us)</button>"), "{dom}{log}");
    assert!(!log.contains("CONSOLE"), "{log}");
    let name = format!("http://evil.example:{}/", ADDR.rsplit_once(':').expect("a port").1);
    let mut curl = server.command("curl");
    curl.args([
        "-s",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        "--connect-to",
        "::127.0.0.1:",
        &name,
    ]);
    assert_eq!(run_for_output(&mut curl), "403");
}
