//! The servers in their network namespaces, the relay and the client.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::TestPath;
use crate::bench::live::LoadRow;
use crate::bench::live::environment::{
    LiveServer, LiveTestbed, Process, command_in_namespace, spawn, start_third_party,
};
use crate::bench::live::outboard::{
    LiveLink, OUTBOARD, outboard_path, program_of_interop, start_http3,
};
use crate::bench::live::tools::{output, program};
use cli::Failure;

/// Names of the servers; the first is ours.
pub(super) const SERVERS: [&str; 3] = ["outboard", "quic-go", "ngtcp2"];
/// Programs that the benchmark needs, and the Debian packages that contain them.
pub(super) const PROGRAMS: [(&str, &str); 6] = [
    ("gtlsserver", "ngtcp2-server"),
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
    ("setpriv", "util-linux"),
    ("taskset", "util-linux"),
    ("unshare", "util-linux"),
];

/// Name of our server's control socket.
const NAME: &str = "relay";
const FILES: [LoadRow; 2] =
    [LoadRow::over_tls("large", 200_000_000, 1), LoadRow::over_tls("small", 300_000, 1)];
/// Folder with the sources of quic-go's programs.
const GO_SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../interop/clients/h3go");

/// Result of a client's run.
pub(super) struct PullResult {
    us: f64,
    bytes: f64,
    /// Infinite if the download was not complete at the end.
    small_us: f64,
}

impl PullResult {
    /// Returns the rate of the large downloads.
    pub(super) fn bytes_per_s(&self) -> f64 {
        self.bytes / self.us * 1e6
    }

    /// Returns the duration of the small download.
    pub(super) fn small_ms(&self) -> f64 {
        self.small_us / 1000.0
    }
}

/// All processes, and the folder.
pub(super) struct QuicRelayServers {
    // Dropped in this order: the servers before their folder.
    servers: [LiveServer; SERVERS.len()],
    bed: LiveTestbed,
    relay: PathBuf,
    client: PathBuf,
}

impl QuicRelayServers {
    /// Writes the files, starts the servers and waits until they listen.
    pub(super) fn start(options: &[String]) -> Result<Self, Failure> {
        let (relay, client) = (program_of_interop("udprelay")?, quic_go_program()?);
        let bed = LiveTestbed::new(&FILES)?;
        let (outboard, [cert, key]) = start_http3(&bed, NAME, options, (LiveLink::Tap, OUTBOARD))?;
        let site = bed.site().to_string_lossy().into_owned();
        let quic_go = start_udp(&bed, &client, &["serve", "0.0.0.0:443", &site, &cert, &key])?;
        let words = ["--quiet", "--htdocs", &site, "0.0.0.0", "443", &key, &cert];
        let ngtcp2 = start_udp(&bed, Path::new("gtlsserver"), &words)?;
        let lab = Self { servers: [outboard, quic_go, ngtcp2], bed, relay, client };
        for server in &lab.servers {
            output(command_in_namespace(server.pid(), "ip").args(["link", "set", "lo", "up"]))?;
        }
        Ok(lab)
    }

    pub(super) const fn bed(&self) -> &LiveTestbed {
        &self.bed
    }

    /// Returns a command that runs a program in a server's namespace, on the client's core, and is
    /// killed if we die.
    fn inside(&self, server: &LiveServer, program: &Path) -> std::process::Command {
        let mut command = command_in_namespace(server.pid(), "setpriv");
        command.args(["--pdeathsig", "KILL", "taskset", "--cpu-list"]);
        command.arg(self.bed.client_cores.to_string()).arg(program);
        command
    }

    /// Runs relay and client for a number of seconds.
    pub(super) fn run(
        &self,
        server: usize,
        path: &TestPath,
        seconds: u32,
        seed: u32,
    ) -> Result<PullResult, Failure> {
        let server = &self.servers[server];
        let mut command = self.inside(server, &self.relay);
        command.arg(format!("{}:443", server.addr)).args(path.relay).arg(format!("seed={seed}"));
        // The relay exits at the end of its input.
        let relay = spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let (port, _relay) = first_line(relay)?;
        let mut command = self.inside(server, &self.client);
        command.args(["pull", &format!("127.0.0.1:{port}")]);
        command.arg((seconds * 1000).to_string()).arg("/large").arg(path.downloads.to_string());
        if path.small {
            command.arg("/small");
        }
        let said = output(&mut command)?;
        parse(&said)
            .ok_or_else(|| Failure::System(format!("cannot parse the client's output: {said:?}")))
    }
}

/// Returns the first line that a process prints, and the process.
fn first_line(mut process: Process) -> Result<(String, Process), Failure> {
    let mut line = String::new();
    let read = process.0.stdout.as_mut().map(|out| BufReader::new(out).read_line(&mut line));
    match read {
        Some(Ok(1..)) => Ok((line.trim().to_owned(), process)),
        _ => Err(Failure::System("the relay did not start".to_owned())),
    }
}

fn parse(said: &str) -> Option<PullResult> {
    let line = said.lines().find_map(|line| line.strip_prefix("numbers "))?;
    let numbers: Vec<f64> = line.split(' ').filter_map(|n| n.parse().ok()).collect();
    let &[us, bytes, small_us] = &numbers[..] else { return None };
    let small_us = if small_us > 0.0 { small_us } else { f64::INFINITY };
    Some(PullResult { us, bytes, small_us })
}

/// Starts a server over kernel UDP; its client runs in the same namespace.
fn start_udp(bed: &LiveTestbed, name: &Path, words: &[&str]) -> Result<LiveServer, Failure> {
    let process = start_third_party(bed, name, words, has_udp_port)?;
    Ok(LiveServer { process, others: Vec::new(), addr: Ipv4Addr::LOCALHOST, client: None })
}

/// Returns whether UDP port 443 is in use in the namespace of a process.
fn has_udp_port(pid: u32) -> bool {
    let sockets = fs::read_to_string(format!("/proc/{pid}/net/udp")).unwrap_or_default();
    let both = sockets + &fs::read_to_string(format!("/proc/{pid}/net/udp6")).unwrap_or_default();
    both.contains(":01BB ")
}

/// Returns the path of quic-go's client and server, which Go builds there if it is missing;
/// `go.sum` pins the versions.
fn quic_go_program() -> Result<PathBuf, Failure> {
    let path = outboard_path()?.with_file_name("h3go");
    if !path.is_file() {
        eprintln!("building {}", path.display());
        let mut go = program("go");
        go.current_dir(GO_SOURCES).args(["build", "-o"]).arg(&path).arg(".");
        output(&mut go).map_err(|failure| {
            Failure::Unavailable(format!(
                "cannot build quic-go's programs, Go 1.24 is required: {failure}"
            ))
        })?;
    }
    Ok(path)
}
