//! The program under test, as a child process in a namespace of its own.
//!
//! [`TestServer::start`] waits for the line that reports readiness. Dropping the server ends it as
//! a user would (SIGTERM), and asserts exit code 0.

use crate::device_process::{self, CarrierKind, SplitArguments};
use crate::{Counters, Netns, tool};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;

/// The server's IPv4 address in every test.
pub const ADDR: &str = "10.77.0.2";
/// Address of the kernel's end of the TAP, used by clients and backends.
pub const PEER: &str = "10.77.0.1";

const ADDR_CIDR: &str = "10.77.0.2/24";
const PEER_CIDR: &str = "10.77.0.1/24";
const LINK: &str = "tap:ob0";

/// Time limit that no working program reaches; prevents that a broken one blocks forever.
const WATCHDOG: Duration = Duration::from_secs(60);

/// Result of a server that has ended.
#[derive(Debug)]
pub struct ServerExit {
    /// Its exit status.
    pub status: ExitStatus,
    /// Everything that it wrote to standard error.
    pub stderr: String,
}

/// A running `outboard serve`, `outboard proxy`, `outboard nvme target` or example program.
#[derive(Debug)]
pub struct TestServer {
    netns: Arc<Netns>,
    child: Option<Child>,
    /// Lines of its standard output; the channel is closed when the server closes it.
    stdout: Receiver<String>,
    stderr: Option<JoinHandle<String>>,
    control: PathBuf,
    ready_line: String,
    /// The device, if it is a process of its own.
    device: Option<Box<Self>>,
    _scratch: TempDir,
}

impl TestServer {
    /// Starts `outboard serve` for `folder` in a new namespace, with additional `options`, and
    /// waits until it is ready.
    ///
    /// # Panics
    /// If the program is not built or does not start; the message contains its standard error.
    #[must_use]
    pub fn start(folder: &Path, options: &[&str]) -> Self {
        Self::start_with(folder, options, &[])
    }

    /// Like [`Self::start`], with environment variables.
    ///
    /// # Panics
    /// Like [`Self::start`].
    #[must_use]
    pub fn start_with(folder: &Path, options: &[&str], env: &[(&str, &Path)]) -> Self {
        let (scratch, control) = scratch();
        let mut args = serve_args(folder, &control);
        args.extend(with_drain_option(options).into_iter().map(OsString::from));
        Self::run(Netns::new(), args, env, scratch, control)
    }

    /// Starts `outboard proxy` with `options` in a namespace that contains its backends, and waits
    /// until it is ready.
    ///
    /// # Panics
    /// Like [`Self::start`].
    #[must_use]
    pub fn proxy(netns: Netns, options: &[&str]) -> Self {
        let (scratch, control) = scratch();
        let mut args = vec![OsString::from("proxy")];
        args.extend(common_args(&control));
        args.extend(with_drain_option(options).into_iter().map(OsString::from));
        Self::run(netns, args, &[], scratch, control)
    }

    /// Starts `outboard nvme target` with `options` in a namespace, and waits until it is ready.
    ///
    /// # Panics
    /// Like [`Self::start`].
    #[must_use]
    pub fn nvme_target(netns: Arc<Netns>, options: &[&str]) -> Self {
        let (scratch, control) = scratch();
        let mut args = Vec::from(["nvme", "target"].map(OsString::from));
        args.extend(common_args(&control));
        args.extend(with_drain_option(options).into_iter().map(OsString::from));
        Self::run(netns, args, &[], scratch, control)
    }

    /// Starts `outboard serve` for a namespace on an NVMe/TCP target, with these `network` options
    /// instead of [`ADDR`]'s, and waits until it is ready.
    ///
    /// # Panics
    /// Like [`Self::start`].
    #[must_use]
    pub fn serve_namespace(
        netns: Arc<Netns>,
        url: &str,
        network: &[&str],
        options: &[&str],
    ) -> Self {
        Self::on_link(netns, &["serve", url], network, options)
    }

    /// Starts a `verb` of `outboard` with these `network` options instead of [`ADDR`]'s, and waits
    /// until it is ready.
    ///
    /// # Panics
    /// Like [`Self::start`].
    #[must_use]
    pub fn on_link(netns: Arc<Netns>, verb: &[&str], network: &[&str], options: &[&str]) -> Self {
        let (scratch, control) = scratch();
        let mut args: Vec<OsString> = verb.iter().map(OsString::from).collect();
        args.extend(["--seed", "1"].map(OsString::from));
        args.extend(network.iter().map(OsString::from));
        args.extend(["--control".into(), control.clone().into()]);
        args.extend(with_drain_option(options).into_iter().map(OsString::from));
        Self::run(netns, args, &[], scratch, control)
    }

    /// Starts the example program that embeds a stack, in a new namespace, and waits until it is
    /// ready.
    ///
    /// # Panics
    /// Like [`Self::start`].
    #[must_use]
    pub fn echo_example() -> Self {
        let (scratch, control) = scratch();
        let netns = Netns::new();
        let example = program().with_file_name("examples").join("echo");
        let mut command = netns.command(example);
        command.args(common_args(&control));
        Self::spawn(netns, command, None, (scratch, control))
    }

    /// Runs `outboard` with arguments that begin with its verb, attached to a device in another
    /// process if the tests run with these.
    fn run(
        netns: impl Into<Arc<Netns>>,
        args: Vec<OsString>,
        env: &[(&str, &Path)],
        scratch: TempDir,
        control: PathBuf,
    ) -> Self {
        let netns = netns.into();
        let args = with_sandbox(args);
        let carrier = device_process::selected();
        let split = carrier.and_then(|kind| Some((kind, device_process::split_arguments(&args)?)));
        let mut command = netns.command(program());
        command.envs(env.iter().copied());
        let Some((kind, SplitArguments { device, program: args })) = split else {
            command.args(args);
            return Self::spawn(netns, command, None, (scratch, control));
        };
        let (device, nic) = Self::device_process(Arc::clone(&netns), device, kind);
        command.args(args).args(nic);
        Self::spawn(netns, command, Some(Box::new(device)), (scratch, control))
    }

    /// Starts `outboard nic` with arguments that begin with its verb, and waits until it is ready.
    ///
    /// # Panics
    /// Like [`Self::start`].
    #[must_use]
    pub fn device(netns: Arc<Netns>, args: &[&str]) -> Self {
        let (scratch, control) = scratch();
        let mut command = netns.command(program());
        let args = with_sandbox(args.iter().map(OsString::from).collect());
        command.args(args).arg("--control").arg(&control);
        Self::spawn(netns, command, None, (scratch, control))
    }

    /// Starts a program as [`Self::device`] does, but by another program that ends with its command
    /// line, such as setpriv(1). All users may use the folder of the control socket.
    ///
    /// # Panics
    /// Like [`Self::start`].
    #[must_use]
    pub fn launched_by(netns: Arc<Netns>, launcher: &[&str], args: &[&str]) -> Self {
        let (scratch, control) = scratch();
        let all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(scratch.path(), all).expect("the folder is ours");
        let (first, rest) = launcher.split_first().expect("a launcher");
        let mut command = netns.command(first);
        command.args(rest).arg(program()).args(args).arg("--control").arg(&control);
        Self::spawn(netns, command, None, (scratch, control))
    }

    /// Returns a field of the process's status in /proc.
    ///
    /// # Panics
    /// If there is no such field, or the process has ended.
    #[must_use]
    pub fn status_field(&self, name: &str) -> String {
        let pid = self.child.as_ref().expect("it runs").id();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let field = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        field.expect("a field of status").split_whitespace().next().unwrap_or_default().to_owned()
    }

    /// Starts a program with arguments that begin with its verb and name a device process, and
    /// waits until it is ready.
    ///
    /// # Panics
    /// Like [`Self::start`].
    #[must_use]
    pub fn attached(netns: Arc<Netns>, args: &[&str]) -> Self {
        Self::device(netns, &with_drain_option(args))
    }

    /// Starts the device of [`Self::run`]. Returns it with the options of its program.
    fn device_process(
        netns: Arc<Netns>,
        mut args: Vec<OsString>,
        kind: CarrierKind,
    ) -> (Self, Vec<OsString>) {
        let (scratch, control) = scratch();
        let mut options = vec![OsString::from("--nic")];
        match kind {
            CarrierKind::Unix => {
                let listen = scratch.path().join("nic");
                let mut nic = OsString::from("unix:");
                nic.push(&listen);
                options.push(nic);
                args.extend(["--listen".into(), listen.into()]);
            }
            CarrierKind::Ether => {
                let (program, device, address) = device_process::create_carrier_link(&netns);
                options.push(format!("ether:{program},{address}").into());
                let root = args.iter().skip_while(|arg| *arg != "--root").nth(1);
                let name = root.and_then(|root| root.to_str()?.split_once('='));
                options.extend(
                    name.into_iter().flat_map(|(name, _)| ["--nic-root", name].map(OsString::from)),
                );
                args.extend(["--listen-ether".into(), device.into()]);
            }
        }
        let mut command = netns.command(program());
        command.args(args).arg("--control").arg(&control);
        (Self::spawn(netns, command, None, (scratch, control)), options)
    }

    fn spawn(
        netns: impl Into<Arc<Netns>>,
        mut command: Command,
        device: Option<Box<Self>>,
        (scratch, control): (TempDir, PathBuf),
    ) -> Self {
        let netns = netns.into();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"));
        let stdout = read_lines(&mut child);
        let stderr = collect_stderr(&mut child);
        let child = Some(child);
        let ready_line = String::new();
        let server =
            Self { netns, child, stdout, stderr, control, ready_line, device, _scratch: scratch };
        server.wait_until_ready()
    }

    /// Kills the server, like a crash, and returns its namespace.
    ///
    /// # Panics
    /// If it has ended already.
    #[must_use]
    pub fn crash(mut self) -> Arc<Netns> {
        self.signal("KILL");
        let netns = Arc::clone(&self.netns);
        self.reap();
        if let Some(device) = self.device.take() {
            let _netns = device.crash();
        }
        netns
    }

    /// Returns a command in the server's namespace, for a client.
    pub fn command(&self, program: &str) -> Command {
        self.netns.command(program)
    }

    /// Runs `outboard` with `args` in the server's namespace, without a device process: it would
    /// need the server's link.
    ///
    /// # Panics
    /// If it cannot be run.
    pub fn outboard(&self, args: &[&str]) -> Output {
        tool::run(self.netns.command(program()).args(args))
    }

    /// Tries to start a second server for `folder` in the same namespace, on the same TAP device.
    ///
    /// # Panics
    /// If the program cannot be run.
    pub fn second_instance(&self, folder: &Path) -> Output {
        let control = self.control.with_extension("second");
        tool::run(self.netns.command(program()).args(serve_args(folder, &control)))
    }

    /// Returns the instance's counters, from `outboard stat`.
    ///
    /// # Panics
    /// If `outboard stat` fails.
    #[must_use]
    pub fn stat(&self) -> Counters {
        let own = self.ask("stat");
        let own = Counters::parse(&own).unwrap_or_else(|e| panic!("outboard stat: {e}"));
        match &self.device {
            Some(device) => own.with(device.stat()),
            None => own,
        }
    }

    /// Asserts that there are counters for alarms, and that none of them has moved.
    ///
    /// # Panics
    /// If one has moved.
    #[track_caller]
    pub fn expect_no_alarm(&self) {
        let all = self.ask_with("stat", &["--alarms", "--json"]);
        let all = Counters::parse(&all).unwrap_or_else(|e| panic!("outboard stat --alarms: {e}"));
        all.expect_all_zero();
        self.device.iter().for_each(|device| device.expect_no_alarm());
    }

    /// Returns the instance's connections, from `outboard ss`.
    ///
    /// # Panics
    /// If `outboard ss` does not print a list.
    #[must_use]
    pub fn connections(&self) -> Vec<serde_json::Value> {
        let json = self.ask("ss");
        let own: Vec<_> =
            serde_json::from_str(&json).unwrap_or_else(|e| panic!("outboard ss: {e}: {json}"));
        let spliced = self.device.iter().flat_map(|device| device.connections());
        own.into_iter().chain(spliced).collect()
    }

    /// Runs `outboard nvme ctl`, and returns its answer.
    ///
    /// # Errors
    /// Returns its standard error if it fails.
    ///
    /// # Panics
    /// If the answer is not JSON.
    pub fn nvme_ctl(&self, args: &[&str]) -> Result<serde_json::Value, String> {
        let control = self.control.to_string_lossy();
        let output = self.outboard(&[&["nvme", "ctl", "--control", &control], args].concat());
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("nvme ctl: {e}")))
    }

    /// Returns the line by which the server reported that it is ready.
    #[must_use]
    pub fn ready_line(&self) -> &str {
        &self.ready_line
    }

    /// Returns the namespace of the server.
    #[must_use]
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Returns the CPU time that the server has used, in clock ticks of 10 ms.
    ///
    /// # Panics
    /// If it has ended.
    #[must_use]
    pub fn cpu_ticks(&self) -> u64 {
        let pid = self.child.as_ref().map_or(0, Child::id);
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .unwrap_or_else(|e| panic!("the server has ended: {e}"));
        // proc_pid_stat(5): utime and stime are the 12th and 13th field after the name.
        let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        let own: u64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
        own + self.device.as_ref().map_or(0, |device| device.cpu_ticks())
    }

    /// Sends the server a signal, given by name.
    ///
    /// # Panics
    /// If it has ended.
    pub fn signal(&self, name: &str) {
        if let Some(child) = &self.child {
            tool::signal(name, child.id());
        }
    }

    /// Ends the server with SIGTERM, and waits for its end.
    ///
    /// # Panics
    /// If it does not end within the time limit.
    pub fn stop(mut self) -> ServerExit {
        self.terminate()
    }

    /// Waits until the server ends, for any reason.
    ///
    /// # Panics
    /// Like [`Self::stop`].
    #[must_use]
    pub fn wait(mut self) -> ServerExit {
        self.wait_for_end()
    }

    /// Returns the table that `outboard VERB` prints, followed by that of a device process.
    ///
    /// # Panics
    /// If the program fails.
    #[must_use]
    pub fn outboard_table(&self, verb: &str) -> String {
        let own = self.ask_with(verb, &[]);
        own + &self.device.iter().map(|device| device.outboard_table(verb)).collect::<String>()
    }

    /// Returns whether the program's device is another process.
    #[must_use]
    pub const fn has_device_process(&self) -> bool {
        self.device.is_some()
    }

    fn ask(&self, verb: &str) -> String {
        self.ask_with(verb, &["--json"])
    }

    fn ask_with(&self, verb: &str, options: &[&str]) -> String {
        let control = self.control.to_string_lossy();
        let output = self.outboard(&[&[verb, "--control", &control], options].concat());
        assert!(
            output.status.success(),
            "outboard {verb}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn wait_until_ready(mut self) -> Self {
        loop {
            match self.stdout.recv_timeout(WATCHDOG) {
                Ok(line) if is_ready(&line) => {
                    self.ready_line = line;
                    return self;
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    self.kill();
                    panic!("not ready after {WATCHDOG:?}: {}", self.reap().stderr);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let ended = self.reap();
                    panic!("did not start: {}: {}", ended.status, ended.stderr);
                }
            }
        }
    }

    fn terminate(&mut self) -> ServerExit {
        if let Some(child) = &self.child {
            tool::signal("TERM", child.id());
        }
        self.wait_for_end()
    }

    /// Returns the path of the control socket.
    #[must_use]
    pub fn control_path(&self) -> &Path {
        &self.control
    }

    fn wait_for_end(&mut self) -> ServerExit {
        // Standard output closes when the server ends; until then it may print more lines.
        loop {
            match self.stdout.recv_timeout(WATCHDOG) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    self.kill();
                    panic!("still there {WATCHDOG:?} after SIGTERM: {}", self.reap().stderr);
                }
            }
        }
        let mut ended = self.reap();
        if let Some(mut device) = self.device.take() {
            let device = device.terminate();
            assert!(device.status.success(), "device: {}: {}", device.status, device.stderr);
            ended.stderr.push_str(&device.stderr);
        }
        ended
    }

    fn kill(&mut self) {
        if let Some(child) = &mut self.child {
            // An error means that it has ended already.
            let _ = child.kill();
        }
    }

    fn reap(&mut self) -> ServerExit {
        let Some(mut child) = self.child.take() else { panic!("the server was reaped before") };
        let status = child.wait().unwrap_or_else(|e| panic!("cannot wait for the server: {e}"));
        let stderr = self.stderr.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        ServerExit { status, stderr }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if self.child.is_none() {
            return;
        }
        if std::thread::panicking() {
            // The test has failed already; the server's messages may tell why.
            self.kill();
            eprintln!("the server's stderr:\n{}", self.reap().stderr);
            return;
        }
        let ended = self.terminate();
        assert!(ended.status.success(), "ended with {}: {}", ended.status, ended.stderr);
    }
}

/// Returns options with a drain time: zero unless they contain one.
/// Adds `--sandbox` to the arguments of a program that has it, if `OUTBOARD_SANDBOX` is set.
fn with_sandbox(mut args: Vec<OsString>) -> Vec<OsString> {
    let verb = |index: usize| args.get(index).and_then(|arg| arg.to_str()).unwrap_or_default();
    let has_option =
        matches!((verb(0), verb(1)), ("serve" | "proxy" | "nic", _) | ("nvme", "target"));
    if has_option && std::env::var_os("OUTBOARD_SANDBOX").is_some() {
        args.push("--sandbox".into());
    }
    args
}

fn with_drain_option<'a>(options: &[&'a str]) -> Vec<&'a str> {
    let end: &[_] = if options.contains(&"--drain") { &[] } else { &["--drain", "0"] };
    [options, end].concat()
}

/// Returns a command that runs `outboard` in a namespace, attached to a device in another process
/// over shared memory if the tests run with that.
#[must_use]
pub fn outboard(netns: &Netns) -> Command {
    if device_process::selected() != Some(CarrierKind::Unix) {
        return netns.command(program());
    }
    let test = std::env::current_exe().expect("this test is a file");
    let built = test.parent().and_then(Path::parent).expect("it lies in `deps`");
    let mut command = netns.command(built.join("attached"));
    command.arg(program());
    command
}

/// Returns the path of the program: `$OUTBOARD_BIN`, or the result of `make build`.
#[must_use]
pub fn program() -> PathBuf {
    let path = std::env::var_os("OUTBOARD_BIN").map_or_else(
        || {
            let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
            root.join(target).join("release/outboard")
        },
        PathBuf::from,
    );
    assert!(path.is_file(), "{} is not there: run `make build` first", path.display());
    path
}

/// Returns the path of `outboard-lab`, which is built beside `outboard`.
#[must_use]
pub fn outboard_lab() -> PathBuf {
    program().with_file_name("outboard-lab")
}

fn serve_args(folder: &Path, control: &Path) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["serve".into(), folder.into()];
    args.extend(common_args(control));
    args
}

fn common_args(control: &Path) -> Vec<OsString> {
    let options =
        ["--link", LINK, "--addr", ADDR_CIDR, "--peer", PEER_CIDR, "--seed", "1", "--control"];
    let mut args = Vec::from(options.map(OsString::from));
    args.push(control.into());
    args
}

/// Creates a folder for the control socket; returns both.
fn scratch() -> (TempDir, PathBuf) {
    let scratch = TempDir::new().unwrap_or_else(|e| panic!("no temporary folder: {e}"));
    let control = scratch.path().join("control");
    (scratch, control)
}

/// Returns whether a line reports readiness, of any verb.
fn is_ready(line: &str) -> bool {
    line.starts_with("serving ") || line.starts_with("proxying ")
}

fn read_lines(child: &mut Child) -> Receiver<String> {
    let (send, receive) = channel();
    let Some(stdout) = child.stdout.take() else { panic!("stdout is a pipe") };
    // Ends with the child. It continues to read after the test has stopped listening, so that a
    // full pipe never blocks the server.
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let _ = send.send(line);
        }
    });
    receive
}

fn collect_stderr(child: &mut Child) -> Option<JoinHandle<String>> {
    let mut stderr = child.stderr.take()?;
    Some(std::thread::spawn(move || {
        let mut all = Vec::new();
        // Output read before an error is still worth showing.
        let _ = stderr.read_to_end(&mut all);
        String::from_utf8_lossy(&all).into_owned()
    }))
}
