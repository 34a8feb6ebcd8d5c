//! Environment of live benchmarks: processes in network namespaces, pinned to cores, and a
//! temporary folder.
//!
//! A namespace exists as long as a process in it. Every process started here is killed when its
//! object is dropped, and by the kernel (`PR_SET_PDEATHSIG`) if this program is killed.

use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use base::Duration;
use io::clock::MonotonicClock;
use io::notify::Poller;

use super::LoadRow;
use super::tools::{output, program};
use cli::Failure;

/// Time limit for a server to become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// Name of the certificate's file in the folder.
pub(crate) const CERT: &str = "cert.pem";
/// Name of the key's file in the folder.
pub(crate) const KEY: &str = "key.pem";
/// Polling interval of [`wait_until`].
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Lua script for wrk that prints one line of numbers at its end. During the run it does nothing,
/// unless there is a mix of files to choose from.
const WRK_SCRIPT: &str = r#"local upload = os.getenv("UPLOADED_FILE")
if upload then
  wrk.method = "PUT"
  wrk.body = io.open(upload, "rb"):read("*a")
end
local mix = tonumber(os.getenv("MIXED_FILES"))
if mix then
  request = function() return wrk.format(nil, wrk.path .. "-" .. math.random(0, mix - 1)) end
end
done = function(s, l)
  local e = s.errors
  io.write(string.format("numbers %d %d %d %d %d %d %d %d %d %d\n", s.duration, s.requests, s.bytes,
    e.connect, e.read, e.write, e.status, e.timeout, l:percentile(50), l:percentile(99)))
end
"#;

/// Environment variable of the script with the path of the file that the client sends, if any.
pub(crate) const UPLOAD_VARIABLE: &str = "UPLOADED_FILE";
/// Environment variable of the script with the number of files of a mix, if there is one.
pub(crate) const MIX_VARIABLE: &str = "MIXED_FILES";

/// A process that is killed when this is dropped.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Temporary folder of everything that the benchmark writes; removed when this is dropped.
struct TempDirGuard(PathBuf);

impl Drop for TempDirGuard {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server under load.
pub(crate) struct LiveServer {
    /// Its first process, which holds its namespace.
    pub(crate) process: Process,
    /// Further processes, of a server that has one for each core.
    pub(crate) others: Vec<Process>,
    pub(crate) addr: Ipv4Addr,
    /// A process in the client's network namespace, which holds it; `None` if the client uses the
    /// server's namespace.
    pub(crate) client: Option<Process>,
}

impl LiveServer {
    pub(crate) fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// Returns the process numbers of all processes.
    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        std::iter::once(&self.process).chain(&self.others).map(|process| process.0.id())
    }

    /// Returns a process in the client's network namespace.
    pub(crate) fn client_namespace(&self) -> u32 {
        self.client.as_ref().map_or_else(|| self.pid(), |client| client.0.id())
    }
}

/// CPU cores that a program may use. Displayed as taskset(1) reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CoreList(pub(crate) Vec<usize>);

impl Display for CoreList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cores: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&cores.join(","))
    }
}

/// Temporary folder, and the cores of server and client.
pub(crate) struct LiveTestbed {
    folder: TempDirGuard,
    pub(crate) server_cores: CoreList,
    pub(crate) client_cores: CoreList,
}

impl LiveTestbed {
    /// Creates the folder, with the served files and the script for wrk, for servers and clients on
    /// one core each.
    pub(crate) fn new(rows: &[LoadRow]) -> Result<Self, Failure> {
        Self::with_cores(rows, 1)
    }

    /// Creates the folder, with the served files and the script for wrk. Servers have the last
    /// `count` cores that this process may use, clients the first `count`.
    pub(crate) fn with_cores(rows: &[LoadRow], count: usize) -> Result<Self, Failure> {
        let all = allowed_cores();
        if count == 0 || all.len() < 2 * count {
            return Err(Failure::Unavailable(format!(
                "{} CPU cores are required, half of them for the client; this process may use {}",
                2 * count.max(1),
                all.len()
            )));
        }
        let (client_cores, rest) = all.split_at(count);
        let bed = Self {
            folder: make_folder(count)?,
            server_cores: CoreList(rest[rest.len() - count..].to_vec()),
            client_cores: CoreList(client_cores.to_vec()),
        };
        let site = bed.site();
        write_files(&site, rows).map_err(|e| cannot_write(&site, &e))?;
        fs::write(bed.script(), WRK_SCRIPT).map_err(|e| cannot_write(&bed.script(), &e))?;
        Ok(bed)
    }

    /// Returns the temporary folder.
    pub(crate) fn path(&self) -> &Path {
        &self.folder.0
    }

    /// Returns the folder of the served files.
    pub(crate) fn site(&self) -> PathBuf {
        self.folder.0.join("site")
    }

    /// Creates the folder for uploads of a server of this name, and returns its path.
    pub(crate) fn uploads(&self, name: &str) -> Result<PathBuf, Failure> {
        let path = self.folder.0.join(format!("uploads-{name}"));
        fs::create_dir(&path).map_err(|e| cannot_write(&path, &e))?;
        Ok(path)
    }

    /// Returns the path of the script for wrk.
    pub(crate) fn script(&self) -> PathBuf {
        self.folder.0.join("wrk.lua")
    }
}

/// Returns a command that runs a program in the network namespace of a process.
pub(crate) fn command_in_namespace(pid: u32, name: &str) -> Command {
    let mut command = program("nsenter");
    command.arg(format!("--net=/proc/{pid}/ns/net")).arg(name);
    command
}

/// Returns a command that runs a program in a new network namespace, on these cores, and is killed
/// if we die. Each of the wrappers executes the next one, so that the child process is the program
/// itself.
pub(crate) fn in_new_namespace(cores: &CoreList, name: &Path) -> Command {
    let mut command = program("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare", "--net", "taskset", "--cpu-list"]);
    command.arg(cores.to_string()).arg(name);
    command
}

pub(crate) fn spawn(command: &mut Command) -> Result<Process, Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command.spawn();
    child.map(Process).map_err(|e| Failure::System(format!("cannot run {name}: {e}")))
}

/// Returns the cores that this process may use.
pub(crate) fn allowed_cores() -> Vec<usize> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap_or("");
    parse_cores(list)
}

/// Parses a list of cores and ranges of cores, such as `0-3,8`.
fn parse_cores(list: &str) -> Vec<usize> {
    let range = |item: &str| {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.trim().split(',').filter_map(range).flatten().collect()
}

pub(crate) fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::System(format!("cannot write {}: {error}", path.display()))
}

/// Creates the folder of a testbed with `count` cores for servers, of which there is one at a time.
fn make_folder(count: usize) -> Result<TempDirGuard, Failure> {
    use std::os::unix::fs::DirBuilderExt;
    let path = std::env::temp_dir().join(format!("outboard-live-{}-{count}", std::process::id()));
    // Fails if the path exists, so that no other user can have prepared it.
    fs::DirBuilder::new().mode(0o700).create(&path).map_err(|e| cannot_write(&path, &e))?;
    Ok(TempDirGuard(path))
}

/// Writes a file of random bytes for each row, named after the row.
fn write_files(site: &Path, rows: &[LoadRow]) -> std::io::Result<()> {
    fs::create_dir(site)?;
    let mut prng = base::Prng::new(1);
    for (name, size) in rows.iter().flat_map(LoadRow::files) {
        let mut file = std::io::BufWriter::new(fs::File::create(site.join(name))?);
        for _ in 0..size.div_ceil(8) {
            file.write_all(&prng.next_u64().to_le_bytes())?;
        }
        file.flush()?;
        file.get_ref().set_len(size)?;
    }
    Ok(())
}

/// Writes a self-signed certificate (ECDSA, P-256) and its key, for all servers; returns their
/// paths.
pub(crate) fn write_certificate(folder: &Path) -> Result<(String, String), Failure> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])
        .map_err(|e| Failure::System(format!("cannot create a certificate: {e}")))?;
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|e| cannot_write(&path, &e))?;
        Ok(path.to_string_lossy().into_owned())
    };
    Ok((write(CERT, made.cert.pem())?, write(KEY, made.signing_key.serialize_pem())?))
}

/// Waits until a process prints a line that begins with `start`. Later output is not read.
pub(crate) fn wait_for_line(
    process: &mut Process,
    start: &str,
    what: &str,
    log: &Path,
) -> Result<(), Failure> {
    let lines =
        process.0.stdout.take().map(|out| BufReader::new(out).lines().map_while(Result::ok));
    if lines.is_some_and(|mut lines| lines.any(|line| line.starts_with(start))) {
        return Ok(());
    }
    Err(not_ready(what, log))
}

/// Starts another program than ours in a network namespace of its own on the server's core, and
/// waits until `is_ready`, called with its process number, returns true.
pub(crate) fn start_third_party(
    bed: &LiveTestbed,
    program: &Path,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    is_ready: impl Fn(u32) -> bool,
) -> Result<Process, Failure> {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let log = bed.path().join(format!("{name}.log"));
    let mut command = in_new_namespace(&bed.server_cores, program);
    command.args(arguments).stdout(Stdio::null()).stderr(log_file(&log)?);
    let process = spawn(&mut command)?;
    let pid = process.0.id();
    wait_until(&name, &log, || has_own_namespace(pid) && is_ready(pid))?;
    Ok(process)
}

/// Links a server to a new namespace for its client.
pub(crate) fn link_client_namespace(
    bed: &LiveTestbed,
    process: Process,
    link: VethLink,
) -> Result<LiveServer, Failure> {
    let client = hold_namespace(bed)?;
    let server = process.0.id();
    link_namespaces(client.0.id(), server, link)?;
    add_address(server, VETH_SERVER, link.server)?;
    Ok(LiveServer { process, others: Vec::new(), addr: link.server, client: Some(client) })
}

/// Starts a process that holds a new network namespace.
pub(crate) fn hold_namespace(bed: &LiveTestbed) -> Result<Process, Failure> {
    let mut command = in_new_namespace(&bed.client_cores, Path::new("sleep"));
    let holder = spawn(command.arg("infinity"))?;
    let log = bed.path().join("client.log");
    wait_until("a namespace", &log, || has_own_namespace(holder.0.id()))?;
    Ok(holder)
}

/// Name of the server's end of a pair of virtual Ethernet interfaces.
pub(crate) const VETH_SERVER: &str = "server";

/// Addresses of a link between two namespaces, in one /24 network.
#[derive(Clone, Copy)]
pub(crate) struct VethLink {
    pub(crate) client: Ipv4Addr,
    pub(crate) server: Ipv4Addr,
}

/// Links the namespaces of two processes by a pair of virtual Ethernet interfaces. The server's has
/// no address.
pub(crate) fn link_namespaces(client: u32, server: u32, link: VethLink) -> Result<(), Failure> {
    ip(client, &format!("link add client type veth peer name {VETH_SERVER} netns {server}"))?;
    add_address(client, "client", link.client)?;
    for (pid, name) in [(client, "client"), (server, VETH_SERVER)] {
        ip(pid, "link set lo up")?;
        ip(pid, &format!("link set {name} up"))?;
    }
    Ok(())
}

/// Creates the interfaces `host` and `dpu` in the namespace of a process, joined to each other.
/// Returns the link address of `dpu`.
pub(crate) fn add_carrier_link(pid: u32) -> Result<String, Failure> {
    ip(pid, "link set lo up")?;
    ip(pid, "link add host type veth peer name dpu")?;
    ip(pid, "link set host up")?;
    ip(pid, "link set dpu up")?;
    let said = output(command_in_namespace(pid, "ip").args(["-o", "link", "show", "dev", "dpu"]))?;
    let address = said.split_once("link/ether ").and_then(|(_, rest)| rest.split(' ').next());
    let address = address.ok_or_else(|| Failure::System("no link address".to_owned()))?;
    Ok(address.to_owned())
}

fn add_address(pid: u32, interface: &str, addr: Ipv4Addr) -> Result<(), Failure> {
    ip(pid, &format!("addr add {addr}/24 dev {interface}"))
}

/// Runs ip(8) in the network namespace of a process.
fn ip(pid: u32, words: &str) -> Result<(), Failure> {
    run_in_namespace(pid, &format!("ip {words}"))
}

/// Runs a command, whose words are separated by single spaces, in the network namespace of a
/// process.
pub(crate) fn run_in_namespace(pid: u32, words: &str) -> Result<(), Failure> {
    let mut words = words.split(' ');
    let program = words.next().unwrap_or_default();
    output(command_in_namespace(pid, program).args(words)).map(drop)
}

pub(crate) fn log_file(path: &Path) -> Result<Stdio, Failure> {
    fs::File::create(path).map(Stdio::from).map_err(|e| cannot_write(path, &e))
}

fn not_ready(what: &str, log: &Path) -> Failure {
    let said = fs::read_to_string(log).unwrap_or_default();
    let line = said.lines().next_back().unwrap_or("no error message");
    Failure::System(format!("{what} did not start: {line}"))
}

pub(crate) fn wait_until(what: &str, log: &Path, ready: impl Fn() -> bool) -> Result<(), Failure> {
    let clock = MonotonicClock::new();
    while !ready() {
        if clock.now().since(base::Instant::ZERO) > READY_TIMEOUT {
            return Err(not_ready(what, log));
        }
        // Readiness raises no event to wait for: poll.
        let _ = Poller::new().wait(Some(POLL_INTERVAL));
    }
    Ok(())
}

/// Returns whether a process is in a network namespace other than ours.
fn has_own_namespace(pid: u32) -> bool {
    let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    of(&pid.to_string()).is_some_and(|namespace| Some(namespace) != of("self"))
}

/// Returns whether a process listens on a TCP port in the network namespace of `pid`.
pub(crate) fn is_listening(pid: u32, port: u16) -> bool {
    let sockets = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    // Fields: local address, remote address, state; 0A is LISTEN.
    sockets.contains(&format!(":{port:04X} 00000000:0000 0A"))
}

/// Writes an nginx configuration tuned for speed: one worker, keep-alive, no access log. `http` is
/// the content of its `http` block. nginx's own files go to the same folder. Returns the path.
pub(crate) fn write_nginx_config(folder: &Path, http: &str) -> Result<PathBuf, Failure> {
    let (at, path) = (folder.display(), folder.join("nginx.conf"));
    let config = format!(
        "user root; daemon off; master_process off; worker_processes 1;
pid {at}/nginx.pid; error_log {at}/nginx.log;
events {{ use epoll; worker_connections 8192; multi_accept on; }}
http {{
  access_log off; tcp_nodelay on; keepalive_timeout 600; keepalive_requests 1000000000;
  client_body_temp_path {at}/t1; proxy_temp_path {at}/t2; fastcgi_temp_path {at}/t3;
  uwsgi_temp_path {at}/t4; scgi_temp_path {at}/t5;
{http}
}}
"
    );
    fs::write(&path, config).map_err(|e| cannot_write(&path, &e))?;
    Ok(path)
}

/// nginx settings for serving files fast: sendfile, and a cache of descriptors and metadata.
///
/// `sendfile_max_chunk` keeps its default of 2 MiB, which prevents one connection from occupying a
/// worker.
pub(crate) const NGINX_FILES: &str = "
  default_type application/octet-stream; sendfile on; tcp_nopush on;
  open_file_cache max=1000 inactive=600s; open_file_cache_valid 600s; open_file_cache_min_uses 1;
";
