//! The two servers in their network namespaces, and the files they serve.
//!
//! Outboard's namespace holds the TAP, its kernel's end and the client. nginx's namespace is joined
//! to its client's by a pair of virtual Ethernet interfaces, with whatever offloads and MTU the
//! kernel gives them. A namespace lives as long as a process in it; every process here is killed
//! when this object goes, and by the kernel (PR_SET_PDEATHSIG) should this program be killed.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use base::Duration;
use io::clock::Clock;
use io::notify::Poller;

use super::Row;
use super::tools::{output, program};
use crate::error::Failure;

/// How long a server may take until it is ready.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// How often we look.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Files in the folder.
const CERT: &str = "cert.pem";
const KEY: &str = "key.pem";
const OUTBOARD_ADDR: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const NGINX_ADDR: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
const NGINX_CLIENT_ADDR: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
/// A Lua script for wrk that does nothing while it runs, and prints numbers instead of prose.
const WRK_SCRIPT: &str = r#"done = function(s, l)
  local e = s.errors
  io.write(string.format("numbers %d %d %d %d %d %d %d %d %d %d\n", s.duration, s.requests, s.bytes,
    e.connect, e.read, e.write, e.status, e.timeout, l:percentile(50), l:percentile(99)))
end
"#;

/// A process that ends with this object.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The folder of the files and of everything else that the benchmark writes.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server under load.
pub(super) struct Server {
    process: Process,
    pub(super) addr: Ipv4Addr,
    /// A process in the namespace that the client runs in.
    pub(super) client_namespace: u32,
}

impl Server {
    pub(super) fn pid(&self) -> u32 {
        self.process.0.id()
    }
}

/// nginx, and the end of its link.
pub(super) struct Nginx {
    server: Server,
    /// Congestion control of the system.
    congestion: String,
    /// Holds the client's namespace.
    _client: Process,
}

impl Nginx {
    pub(super) const fn server(&self) -> &Server {
        &self.server
    }

    /// The system's congestion control.
    pub(super) fn congestion(&self) -> &str {
        &self.congestion
    }

    /// Sets the congestion control of connections to come.
    pub(super) fn set_congestion(&self, name: &str) -> Result<(), Failure> {
        let net = "10.78.0.0/24";
        let route = ["route", "replace", net, "dev", "server", "proto", "kernel", "scope", "link"];
        let source = NGINX_ADDR.to_string();
        let rest = ["src", &source, "congctl", name];
        output(inside(self.server.pid(), "ip").args(route).args(rest)).map(drop)
    }
}

/// Everything that is set up.
pub(super) struct Lab {
    // In this order they end: the servers before their folder.
    plain: Server,
    /// A second instance, in a namespace of its own, that speaks HTTPS.
    secure: Server,
    pub(super) nginx: Nginx,
    folder: Folder,
    pub(super) server_core: usize,
    pub(super) client_core: usize,
}

impl Lab {
    /// Makes the files, starts both servers and waits until they listen.
    pub(super) fn start(rows: &[Row], serve_options: &[String]) -> Result<Self, Failure> {
        let (client_core, server_core) = cores()?;
        let folder = make_folder()?;
        let site = folder.0.join("site");
        write_files(&site, rows).map_err(|e| cannot_write(&site, &e))?;
        let script = folder.0.join("wrk.lua");
        fs::write(&script, WRK_SCRIPT).map_err(|e| cannot_write(&script, &e))?;
        let (cert, key) = write_certificate(&folder.0)?;
        let plain = start_outboard(&folder.0, "http", &site, server_core, serve_options)?;
        let tls = ["--tls", "--tls-cert", &cert, "--tls-key", &key].map(str::to_owned);
        let options = [&tls[..], serve_options].concat();
        let secure = start_outboard(&folder.0, "https", &site, server_core, &options)?;
        let nginx = start_nginx(&folder.0, &site, server_core)?;
        Ok(Self { plain, secure, nginx, folder, server_core, client_core })
    }

    /// Our server for a row.
    pub(super) const fn outboard(&self, row: Row) -> &Server {
        if row.tls { &self.secure } else { &self.plain }
    }

    /// The script for wrk.
    pub(super) fn script(&self) -> PathBuf {
        self.folder.0.join("wrk.lua")
    }
}

/// The program, in the network namespace of the process.
pub(super) fn inside(pid: u32, name: &str) -> Command {
    let mut command = program("nsenter");
    command.arg(format!("--net=/proc/{pid}/ns/net")).arg(name);
    command
}

/// A program in a new network namespace, on one core, that dies with us. All of these replace
/// themselves by the next one, so that the process that we start is the program itself.
fn in_new_namespace(core: usize, name: &Path) -> Command {
    let mut command = program("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare", "--net", "taskset", "--cpu-list"]);
    command.arg(core.to_string()).arg(name);
    command
}

fn spawn(command: &mut Command) -> Result<Process, Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command.spawn();
    child.map(Process).map_err(|e| Failure::System(format!("cannot run {name}: {e}")))
}

/// A core for the client and one for the server: the first and the last that we may use.
fn cores() -> Result<(usize, usize), Failure> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap_or("");
    let mut ends = list.trim().split([',', '-']).filter_map(|n| n.parse().ok());
    match (ends.next(), ends.next_back()) {
        (Some(first), Some(last)) => Ok((first, last)),
        _ => Err(Failure::Unavailable(
            "two cores are needed, one for the server and one for the client".to_owned(),
        )),
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::System(format!("cannot write {}: {error}", path.display()))
}

fn make_folder() -> Result<Folder, Failure> {
    use std::os::unix::fs::DirBuilderExt;
    let path = std::env::temp_dir().join(format!("outboard-live-{}", std::process::id()));
    // Fails where it is there already, so nobody can have prepared it.
    fs::DirBuilder::new().mode(0o700).create(&path).map_err(|e| cannot_write(&path, &e))?;
    Ok(Folder(path))
}

/// A file for each row, named after it.
fn write_files(site: &Path, rows: &[Row]) -> std::io::Result<()> {
    fs::create_dir(site)?;
    let mut prng = base::Prng::new(1);
    for row in rows {
        let mut file = std::io::BufWriter::new(fs::File::create(site.join(row.name))?);
        for _ in 0..row.bytes / 8 {
            file.write_all(&prng.next_u64().to_le_bytes())?;
        }
        file.flush()?;
    }
    Ok(())
}

/// A certificate and its key, the same for both servers: ECDSA over P-256.
fn write_certificate(folder: &Path) -> Result<(String, String), Failure> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])
        .map_err(|e| Failure::System(format!("cannot make a certificate: {e}")))?;
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|e| cannot_write(&path, &e))?;
        Ok(path.to_string_lossy().into_owned())
    };
    Ok((write(CERT, made.cert.pem())?, write(KEY, made.signing_key.serialize_pem())?))
}

fn start_outboard(
    folder: &Path,
    name: &str,
    site: &Path,
    core: usize,
    options: &[String],
) -> Result<Server, Failure> {
    let program = std::env::current_exe()
        .map_err(|e| Failure::System(format!("cannot find our own program: {e}")))?;
    let log = folder.join(format!("{name}.log"));
    let mut command = in_new_namespace(core, &program);
    command.arg("serve").arg(site).arg("--control").arg(folder.join(name)).args(options);
    command.stdout(Stdio::piped()).stderr(log_file(&log)?);
    let mut process = spawn(&mut command)?;
    // Its last line before it serves says what to try. What it says later nobody reads, and it does
    // not say much.
    let lines =
        process.0.stdout.take().map(|out| BufReader::new(out).lines().map_while(Result::ok));
    let ready = lines.is_some_and(|mut lines| lines.any(|line| line.starts_with("try:")));
    if !ready {
        return Err(not_ready("outboard serve", &log));
    }
    let client_namespace = process.0.id();
    Ok(Server { process, addr: OUTBOARD_ADDR, client_namespace })
}

fn start_nginx(folder: &Path, site: &Path, core: usize) -> Result<Nginx, Failure> {
    let config = folder.join("nginx.conf");
    fs::write(&config, nginx_config(folder, site)).map_err(|e| cannot_write(&config, &e))?;
    let log = folder.join("nginx.log");
    let mut command = in_new_namespace(core, Path::new("nginx"));
    command.arg("-e").arg(&log).arg("-c").arg(&config);
    command.stdout(Stdio::null()).stderr(log_file(&log)?);
    let process = spawn(&mut command)?;
    let mut holder = in_new_namespace(core, Path::new("sleep"));
    let client = spawn(holder.arg("infinity"))?;
    let (server_pid, client_pid) = (process.0.id(), client.0.id());
    // nginx listens on any address, so it is ready before its interface is there.
    wait_until("nginx", &log, || is_listening(server_pid))?;
    wait_until("the client's namespace", &log, || has_own_namespace(client_pid))?;
    join(client_pid, server_pid)?;
    let sysctl = "/proc/sys/net/ipv4/tcp_congestion_control";
    let congestion = output(inside(server_pid, "cat").arg(sysctl))?.trim().to_owned();
    let server = Server { process, addr: NGINX_ADDR, client_namespace: client_pid };
    Ok(Nginx { server, congestion, _client: client })
}

/// Joins the namespaces of two processes by a pair of virtual Ethernet interfaces.
fn join(client: u32, server: u32) -> Result<(), Failure> {
    let ip = |pid: u32, words: &str| output(inside(pid, "ip").args(words.split(' '))).map(drop);
    ip(client, &format!("link add client type veth peer name server netns {server}"))?;
    for (pid, name, addr) in [(client, "client", NGINX_CLIENT_ADDR), (server, "server", NGINX_ADDR)]
    {
        ip(pid, "link set lo up")?;
        ip(pid, &format!("addr add {addr}/24 dev {name}"))?;
        ip(pid, &format!("link set {name} up"))?;
    }
    Ok(())
}

/// nginx as somebody who wants it fast sets it up: one worker, sendfile, metadata and descriptors
/// cached, no log.
///
/// `sendfile_max_chunk` is left alone: its default of 2 MiB is there so that one connection does
/// not keep a worker to itself. Over TLS sendfile is not to be had without the kernel's TLS; so
/// files are read in pieces of 256 KiB and sealed in records of 16 KiB.
fn nginx_config(folder: &Path, site: &Path) -> String {
    let (folder, site) = (folder.display(), site.display());
    format!(
        r"user root; daemon off; master_process off; worker_processes 1;
pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ use epoll; worker_connections 8192; multi_accept on; }}
http {{
  access_log off; default_type application/octet-stream;
  sendfile on; tcp_nopush on; tcp_nodelay on;
  keepalive_timeout 600; keepalive_requests 1000000000;
  open_file_cache max=1000 inactive=600s; open_file_cache_valid 600s; open_file_cache_min_uses 1;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  ssl_certificate {folder}/{CERT}; ssl_certificate_key {folder}/{KEY};
  ssl_protocols TLSv1.2 TLSv1.3; ssl_buffer_size 16k; ssl_session_cache shared:a:10m;
  output_buffers 2 256k;
  server {{ listen 0.0.0.0:80 backlog=65535 reuseport; root {site}; }}
  server {{ listen 0.0.0.0:443 ssl backlog=65535 reuseport; root {site}; }}
}}
"
    )
}

fn log_file(path: &Path) -> Result<Stdio, Failure> {
    fs::File::create(path).map(Stdio::from).map_err(|e| cannot_write(path, &e))
}

fn not_ready(what: &str, log: &Path) -> Failure {
    let said = fs::read_to_string(log).unwrap_or_default();
    let line = said.lines().next_back().unwrap_or("it does not say why");
    Failure::System(format!("{what} does not start: {line}"))
}

fn wait_until(what: &str, log: &Path, ready: impl Fn() -> bool) -> Result<(), Failure> {
    let clock = Clock::new();
    while !ready() {
        if clock.now().since(base::Instant::ZERO) > READY_TIMEOUT {
            return Err(not_ready(what, log));
        }
        // Nothing tells us when: look again after a while.
        let _ = Poller::new().wait(Some(LOOK_AGAIN));
    }
    Ok(())
}

/// Whether a process has left our network namespace.
fn has_own_namespace(pid: u32) -> bool {
    let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    of(&pid.to_string()).is_some_and(|namespace| Some(namespace) != of("self"))
}

/// Whether somebody listens on port 80 in the namespace of a process that has one of its own.
fn is_listening(pid: u32) -> bool {
    let sockets = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    // Local address, remote address, state; 0A is LISTEN.
    has_own_namespace(pid) && sockets.contains(":0050 00000000:0000 0A")
}
