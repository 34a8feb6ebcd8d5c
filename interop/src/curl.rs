//! curl as a client: whole responses, and downloads that are hashed as they arrive.

use crate::files::{Files, first_word, sha256};
use crate::netns::Netns;
use crate::server::{ADDR, TestServer};
use crate::tool::{self, expect_success, run};
use std::fmt;
use std::io::Read;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};

/// Time limit of curl in seconds, so that a broken server does not block a test forever.
const WATCHDOG_S: &str = "240";

/// A URL to fetch.
#[derive(Clone, Debug)]
pub struct Url(String);

impl Url {
    /// Returns the URL of a path over IPv4.
    #[must_use]
    pub fn v4(path: &str) -> Self {
        Self(format!("http://{ADDR}{path}"))
    }

    /// Returns the URL of a path over IPv6 at `addr`.
    #[must_use]
    pub fn v6(addr: &str, path: &str) -> Self {
        Self(format!("http://[{addr}]{path}"))
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A response as curl printed it.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Header fields in order, names in lower case.
    pub fields: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Response {
    /// Returns the value of the field `name` (lower case), or an empty string.
    #[must_use]
    pub fn field(&self, name: &str) -> &str {
        self.fields.iter().find(|(n, _)| n == name).map_or("", |(_, value)| value)
    }

    /// Parses the response in `bytes`; everything after its header section is body.
    ///
    /// # Panics
    /// If `bytes` contains no response.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let shown = || String::from_utf8_lossy(&bytes[..bytes.len().min(500)]).into_owned();
        let end = bytes.windows(4).position(|w| w == b"\r\n\r\n");
        let Some(end) = end else { panic!("no end of a header in: {}", shown()) };
        let header = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let mut lines = header.split("\r\n");
        let status = lines
            .next()
            .filter(|line| line.starts_with("HTTP/1.1 "))
            .and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let Some(status) = status else { panic!("no status line in: {}", shown()) };
        let fields = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        Self { status, fields, body: bytes[end + 4..].to_vec() }
    }
}

impl TestServer {
    /// Runs curl with `args` in the server's namespace.
    ///
    /// # Panics
    /// If curl cannot be run.
    pub fn curl(&self, args: &[&str]) -> Output {
        run(curl(self).args(args))
    }

    /// Fetches `path` over IPv4 with additional `args`.
    ///
    /// # Panics
    /// If curl fails, or does not print a response.
    #[must_use]
    pub fn get(&self, path: &str, args: &[&str]) -> Response {
        let url = Url::v4(path).to_string();
        let output = run(curl(self).arg("--include").args(args).arg(&url));
        assert!(
            output.status.success(),
            "curl {args:?} {url}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Response::parse(&output.stdout)
    }

    /// Sends `request` unchanged, and returns all bytes received until the server closes.
    ///
    /// # Panics
    /// If the connection cannot be opened, or is not closed within the time limit.
    #[must_use]
    pub fn raw(&self, request: &[u8]) -> Vec<u8> {
        let mut child = self
            .command("timeout")
            .args([WATCHDOG_S, "bash", "-c"])
            .arg(format!("exec 3<>/dev/tcp/{ADDR}/80 && cat >&3; cat <&3"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("cannot run bash: {e}"));
        if let Some(mut stdin) = child.stdin.take() {
            // The server may answer and close before it has read everything; only the answer
            // counts.
            let _ = std::io::Write::write_all(&mut stdin, request);
        }
        let output = child.wait_with_output().unwrap_or_else(|e| panic!("bash: {e}"));
        assert_ne!(output.status.code(), Some(124), "the server did not close the connection");
        output.stdout
    }

    /// Starts a download of `url` that is hashed as it arrives.
    ///
    /// # Panics
    /// If a program cannot be run.
    #[must_use]
    pub fn download(&self, url: &Url) -> Download {
        let mut curl = spawn(curl(self).args(["--fail", &url.to_string()]).stdout(Stdio::piped()));
        let Some(body) = curl.stdout.take() else { panic!("stdout is a pipe") };
        let sum = spawn(tool::command("sha256sum").stdin(Stdio::from(body)).stdout(Stdio::piped()));
        Download { url: url.clone(), curl, sum }
    }

    /// Starts a download of `path` whose body the caller reads. While the caller does not read, the
    /// transfer stalls.
    ///
    /// # Panics
    /// If curl cannot be run.
    #[must_use]
    pub fn paused_download(&self, path: &str) -> PausedDownload {
        let url = Url::v4(path).to_string();
        let mut curl = spawn(curl(self).args(["--no-buffer", &url]).stdout(Stdio::piped()));
        let Some(body) = curl.stdout.take() else { panic!("stdout is a pipe") };
        PausedDownload { curl, body, received: Vec::new() }
    }
}

/// A download whose body is hashed as it arrives.
#[derive(Debug)]
pub struct Download {
    url: Url,
    curl: Child,
    sum: Child,
}

impl Download {
    /// Waits for the end, and returns the body's SHA-256.
    ///
    /// # Panics
    /// If curl fails.
    #[must_use]
    pub fn sha256(mut self) -> String {
        let status = self.curl.wait().unwrap_or_else(|e| panic!("curl: {e}"));
        assert!(status.success(), "curl {}: {status}", self.url);
        let sum = self.sum.wait_with_output().unwrap_or_else(|e| panic!("sha256sum: {e}"));
        first_word(&sum.stdout)
    }
}

/// A download that stalls until its body is read.
#[derive(Debug)]
pub struct PausedDownload {
    curl: Child,
    body: ChildStdout,
    received: Vec<u8>,
}

impl PausedDownload {
    /// Reads until `bytes` bytes of the body have arrived in total.
    ///
    /// # Panics
    /// If the body ends earlier.
    pub fn read(&mut self, bytes: usize) {
        let mut part = vec![0; bytes - self.received.len()];
        self.body.read_exact(&mut part).unwrap_or_else(|e| panic!("the body ended: {e}"));
        self.received.extend(part);
    }

    /// Reads to the end. Returns everything that arrived, and curl's exit status.
    ///
    /// # Panics
    /// If reading from curl fails.
    #[must_use]
    pub fn finish(mut self) -> (Vec<u8>, ExitStatus) {
        self.body.read_to_end(&mut self.received).unwrap_or_else(|e| panic!("curl's pipe: {e}"));
        let status = self.curl.wait().unwrap_or_else(|e| panic!("curl: {e}"));
        (self.received, status)
    }

    /// Kills the client during the transfer, like a user who closes the window.
    ///
    /// # Panics
    /// If curl has already ended.
    pub fn kill_client(mut self) {
        self.curl.kill().unwrap_or_else(|e| panic!("curl: {e}"));
        let _ = self.curl.wait();
    }
}

fn curl(server: &TestServer) -> Command {
    let mut command = server.command("curl");
    // `--disable`: ignore the user's settings. `--globoff`: IPv6 brackets are not ranges.
    command.args(["--disable", "--silent", "--show-error", "--globoff", "--max-time", WATCHDOG_S]);
    command.env_remove("http_proxy").env_remove("all_proxy").stdin(Stdio::null());
    command
}

fn spawn(command: &mut Command) -> Child {
    command.spawn().unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"))
}

/// Fetches a URL with curl, with a limit of 120 seconds and further options. Returns the SHA-256 of
/// the content, for which a folder below `parent` is created.
///
/// # Panics
/// If curl fails.
#[must_use]
pub fn fetch_sha256(netns: &Netns, parent: &str, url: &str, options: &[&str]) -> String {
    let folder = Files::new(parent);
    let to = folder.path().join("got");
    let mut curl = netns.command("curl");
    curl.args(["-sSfk", "--max-time", "120"]).args(options).arg("-o").arg(&to).arg(url);
    let _ = expect_success(&run(&mut curl));
    sha256(&to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_read() {
        let response = Response::parse(b"HTTP/1.1 200 OK\r\nETag: \"a:b\"\r\n\r\nbody\r\n\r\n");
        assert_eq!((response.status, response.field("etag")), (200, "\"a:b\""));
        assert_eq!(response.body, b"body\r\n\r\n");
        assert_eq!(response.field("none"), "");
    }
}
