//! Runs of this program as child processes, and files of results that are whole or absent.
//!
//! Used by [`crate::sweep`] and [`crate::report`]: a run in a process of its own has a heap, caches
//! and counters of its own, and its failure ends nothing else. It ends with this process.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Result of a child process.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChildOutput {
    /// JSON on standard output. A benchmark prints it also if its figures are invalid.
    pub(crate) json: Option<Value>,
    /// Reason for which the run failed, in one line.
    pub(crate) failure: Option<String>,
}

/// Runs a program that prints JSON. The kernel ends it if this process is killed, so that no
/// benchmark outlives it.
pub(crate) fn run_json(program: &Path, arguments: &[String]) -> ChildOutput {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(program).args(arguments);
    let output = command.stdin(Stdio::null()).output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            let failure = Some(format!("cannot run setpriv: {error}"));
            return ChildOutput { json: None, failure };
        }
    };
    let parsed = serde_json::from_slice(&output.stdout);
    let failure = match &parsed {
        _ if !output.status.success() => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let last = stderr.lines().rev().find(|line| !line.trim().is_empty());
            Some(last.map_or_else(|| output.status.to_string(), |line| line.trim().to_owned()))
        }
        Err(error) => Some(format!("its output is not JSON: {error}")),
        Ok(_) => None,
    };
    ChildOutput { json: parsed.ok(), failure }
}

/// Writes a file under a temporary name and renames it, so that readers, and a process that
/// continues after this one was killed, find the whole file or none.
///
/// # Errors
/// Returns the error of the file system.
pub(crate) fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shell(script: &str) -> ChildOutput {
        run_json(Path::new("/bin/sh"), &["-c".to_owned(), script.to_owned()])
    }

    #[test]
    fn failures_have_a_reason() {
        let whole = shell("echo '{\"a\": 1}'; echo progress >&2");
        assert_eq!(whole, ChildOutput { json: Some(json!({ "a": 1 })), failure: None });
        let invalid = shell("echo '{}'; echo outboard-lab: wrong path >&2; echo >&2; exit 71");
        assert_eq!(invalid.json, Some(json!({})));
        assert_eq!(invalid.failure.as_deref(), Some("outboard-lab: wrong path"));
        assert_eq!(shell("kill -9 $$").failure.as_deref(), Some("signal: 9 (SIGKILL)"));
        assert!(shell("echo text").failure.is_some_and(|text| text.contains("not JSON")));
        let missing = run_json(Path::new("/no/such/program"), &[]).failure;
        let expected = "setpriv: failed to execute /no/such/program: No such file or directory";
        assert_eq!(missing.as_deref(), Some(expected));
    }
}
