//! Passes the versions of compiler and tree to `outboard-lab report`, which prints them.

use std::process::Command;

/// Returns the first line that a program prints.
fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.lines().next().unwrap_or_default().to_owned())
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    if let Some(version) = first_line(&rustc, &["--version"]) {
        println!("cargo::rustc-env=OUTBOARD_RUSTC={version}");
    }
    // Absent in a source archive.
    if let Some(commit) = first_line("git", &["rev-parse", "--short", "HEAD"]) {
        println!("cargo::rustc-env=OUTBOARD_COMMIT={commit}");
        if let Some(log) = first_line("git", &["rev-parse", "--git-path", "logs/HEAD"]) {
            println!("cargo::rerun-if-changed={log}");
        }
    }
}
