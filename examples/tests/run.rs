//! Runs every example: each asserts what it shows, and prints something.

use std::process::Command;

fn printed(program: &str) -> String {
    let output = Command::new(program).output().expect("the example runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn echo() {
    let text = printed(env!("CARGO_BIN_EXE_echo"));
    assert!(text.contains("echoed 1048576 bytes"), "{text}");
}

#[test]
fn loss() {
    let text = printed(env!("CARGO_BIN_EXE_loss"));
    assert!(text.contains("no violation"), "{text}");
}

#[test]
fn count() {
    let text = printed(env!("CARGO_BIN_EXE_count"));
    assert!(text.contains("FlowCounted"), "{text}");
}

#[test]
fn device() {
    let text = printed(env!("CARGO_BIN_EXE_device"));
    assert!(text.contains("echoed 262144 bytes"), "{text}");
}

#[test]
fn site() {
    let text = printed(env!("CARGO_BIN_EXE_site"));
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
}
