//! `--record`: the page of a live run has the operations, events and frames of a connection.

use std::path::Path;

use interop::{DeviceFixture, Files, TestServer, expect_success, run};
use serde_json::Value;

const TMP: &str = env!("CARGO_TARGET_TMPDIR");

/// Lanes and names of entries of a download over HTTPS.
const OPERATIONS_AND_EVENTS: [(&str, &str); 6] = [
    ("operation", "Listen"),
    ("operation", "L5oCreate"),
    ("operation", "Transmit"),
    ("operation", "Teardown"),
    ("event", "Received"),
    ("event", "FileOpened"),
];

/// Asserts that there is an entry for each lane and name.
fn expect_entries(entries: &[Value], expected: &[(&str, &str)]) {
    for (lane, name) in expected {
        let found = entries.iter().any(|entry| entry[2] == *lane && entry[4] == *name);
        assert!(found, "{lane} {name}");
    }
}

/// Returns the data of a page.
fn data_of(page: &Path) -> Value {
    let page = std::fs::read_to_string(page).expect("the page");
    let (_, rest) = page.split_once("type=\"application/json\">").expect("data");
    let (data, _) = rest.split_once("</script>").expect("the end of the data");
    serde_json::from_str(data).expect("JSON")
}

#[test]
fn a_live_run_is_drawn_when_it_ends() {
    let (files, scratch) = (Files::new(TMP), Files::new(TMP));
    files.fill("a.bin", 50_000);
    let page = scratch.path().join("ladder.html");
    let record = page.to_string_lossy();
    let server = TestServer::start(files.path(), &["--tls", "--queues", "2", "--record", &record]);
    let mut curl = server.command("curl");
    curl.args(["-sSfk", "-m", "60", "-o", "/dev/null", "https://10.77.0.2/a.bin"]);
    let _ = expect_success(&run(&mut curl));
    let connections = server.stat().get("tcp_passive_opens");
    assert!(server.stop().status.success());
    let data = data_of(&page);
    let all = data["connections"].as_array().expect("connections");
    let of_https = |connection: &&Value| {
        connection["name"].as_str().is_some_and(|name| name.ends_with(" - 10.77.0.2:443"))
    };
    let found: Vec<&Value> = all.iter().filter(of_https).collect();
    assert_eq!(found.len() as u64, connections);
    assert!(found[0]["client"].is_null() && found[0]["server"].is_number(), "{found:?}");
    let entries = data["entries"].as_array().expect("entries");
    expect_entries(entries, &OPERATIONS_AND_EVENTS);
    expect_entries(entries, &[("arrived", "TCP"), ("sent", "TCP")]);
    // The run of segments that the device encrypted is one frame.
    let payload = |entry: &Value| {
        let (_, len) = entry[5].as_str()?.split_once(" len ")?;
        len.split(' ').next()?.parse::<u64>().ok()
    };
    let sent = entries.iter().filter(|entry| entry[2] == "sent").filter_map(payload);
    assert!(sent.sum::<u64>() > 50_000, "the records of the file");
}

/// A program that is attached to a device process records what crosses the carrier.
#[test]
fn an_attached_program_records_operations_and_events() {
    let fixture = DeviceFixture::new(TMP);
    fixture.files.fill("a.bin", 50_000);
    let _nic = fixture.nic("a", &[]);
    let page = fixture.scratch.path().join("ladder.html");
    let program = fixture.serve(&["a"], &["--tls", "--record", &page.to_string_lossy()]);
    let mut curl = program.command("curl");
    curl.args(["-sSfk", "-m", "60", "-o", "/dev/null", "https://10.77.0.2/a.bin"]);
    let _ = expect_success(&run(&mut curl));
    assert!(program.stop().status.success());
    let data = data_of(&page);
    let entries = data["entries"].as_array().expect("entries");
    expect_entries(entries, &OPERATIONS_AND_EVENTS);
    assert!(entries.iter().all(|entry| entry[2] != "sent" && entry[2] != "arrived"));
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_at_the_start() {
    let files = Files::new(TMP);
    let server = TestServer::start(files.path(), &[]);
    let folder = files.path().to_string_lossy();
    let out = server.outboard(&["serve", &folder, "--record", "/nowhere/x.html"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(66), "{said}");
    assert!(said.contains("cannot write /nowhere/x.html: No such file"), "{said}");
}
