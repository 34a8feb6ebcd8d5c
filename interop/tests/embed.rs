//! A program that embeds a stack with its own application (`crates/stack/examples/echo.rs`): kernel
//! clients, `outboard stat` and `ss`, and a drain at SIGTERM.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use interop::{TestServer, wait_with_time_limit};

/// Bytes of a message of `clients/echo.py`.
const MESSAGE_BYTES: u64 = 251_000;

#[test]
fn an_embedded_stack_serves_and_drains() {
    let server = TestServer::echo_example();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/echo.py");
    let mut client = server
        .command("/usr/bin/python3")
        .args([script, interop::ADDR, "7"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut line = String::new();
    let mut said = BufReader::new(client.stdout.take().expect("a pipe"));
    said.read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    assert_eq!(server.stat().get("echo_bytes"), MESSAGE_BYTES);
    let connections = server.connections();
    assert_eq!(connections.len(), 1, "{connections:?}");
    assert_eq!(connections[0]["state"], "ESTABLISHED");

    // The connection outlives the signal, new connections are refused, and the program ends with
    // the last one.
    server.signal("TERM");
    let mut tell = client.stdin.take().expect("a pipe");
    writeln!(tell).expect("it reads");
    assert!(wait_with_time_limit(client).status.success());
    let ended = server.wait();
    assert!(ended.status.success(), "{}: {}", ended.status, ended.stderr);
}
