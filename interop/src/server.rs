//! The program under test as a child in a namespace of its own.
//!
//! [`Server::start`] waits for the line that says it is ready; dropping the server asks it to end
//! as a user would (SIGTERM) and demands that it does so with exit code 0.

use crate::{Counters, Netns, tool};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;

/// The server's IPv4 address in every test.
pub const ADDR: &str = "10.77.0.2";
/// The address of the kernel's end: that of clients and of backends.
pub const PEER: &str = "10.77.0.1";

const ADDR_CIDR: &str = "10.77.0.2/24";
const PEER_CIDR: &str = "10.77.0.1/24";
const WIRE: &str = "tap:ob0";

/// Longer than anything takes that works: only keeps a broken program from blocking forever.
const WATCHDOG: Duration = Duration::from_secs(60);

/// How a server ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// All that it wrote to stderr.
    pub stderr: String,
}

/// A running `outboard serve`, `outboard proxy` or `outboard nvme target`.
#[derive(Debug)]
pub struct Server {
    netns: Arc<Netns>,
    child: Option<Child>,
    /// What it prints; the other end closes with it.
    stdout: Receiver<String>,
    stderr: Option<JoinHandle<String>>,
    control: PathBuf,
    _scratch: TempDir,
}

impl Server {
    /// Starts serving `folder` in a new namespace, with `options` added, and waits until it is
    /// ready.
    ///
    /// # Panics
    /// Where the program is not built or does not start; with what it wrote to stderr.
    #[must_use]
    pub fn start(folder: &Path, options: &[&str]) -> Self {
        Self::start_with(folder, options, &[])
    }

    /// As [`Self::start`], with variables in its environment.
    ///
    /// # Panics
    /// As [`Self::start`].
    #[must_use]
    pub fn start_with(folder: &Path, options: &[&str], env: &[(&str, &Path)]) -> Self {
        let (scratch, control) = scratch();
        let netns = Netns::new();
        let mut command = netns.command(program());
        command
            .args(serve_args(folder, &control))
            .args(with_end(options))
            .envs(env.iter().copied());
        Self::run(netns, command, scratch, control)
    }

    /// Starts `outboard proxy` with `options` in a namespace, where its backends are already, and
    /// waits until it is ready.
    ///
    /// # Panics
    /// As [`Self::start`].
    #[must_use]
    pub fn proxy(netns: Netns, options: &[&str]) -> Self {
        let (scratch, control) = scratch();
        let mut command = netns.command(program());
        command.arg("proxy").args(common_args(&control)).args(with_end(options));
        Self::run(netns, command, scratch, control)
    }

    /// Starts `outboard nvme target` with `options` in a namespace, and waits until it is ready.
    ///
    /// # Panics
    /// As [`Self::start`].
    #[must_use]
    pub fn nvme_target(netns: Arc<Netns>, options: &[&str]) -> Self {
        let (scratch, control) = scratch();
        let mut command = netns.command(program());
        command.args(["nvme", "target"]).args(common_args(&control)).args(with_end(options));
        Self::run(netns, command, scratch, control)
    }

    /// Starts the example of a program that embeds a stack, in a new namespace, and waits until it
    /// is ready.
    ///
    /// # Panics
    /// As [`Self::start`].
    #[must_use]
    pub fn echo_example() -> Self {
        let (scratch, control) = scratch();
        let netns = Netns::new();
        let example = program().with_file_name("examples").join("echo");
        let mut command = netns.command(example);
        command.args(common_args(&control));
        Self::run(netns, command, scratch, control)
    }

    fn run(
        netns: impl Into<Arc<Netns>>,
        mut command: Command,
        scratch: TempDir,
        control: PathBuf,
    ) -> Self {
        let netns = netns.into();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"));
        let stdout = lines_of(&mut child);
        let stderr = collect_stderr(&mut child);
        let child = Some(child);
        let server = Self { netns, child, stdout, stderr, control, _scratch: scratch };
        server.wait_until_ready()
    }

    /// Ends it at once, as a crash does; gives the namespace that it was in.
    ///
    /// # Panics
    /// Where it has ended before.
    #[must_use]
    pub fn crash(mut self) -> Arc<Netns> {
        self.signal("KILL");
        let netns = Arc::clone(&self.netns);
        self.reap();
        netns
    }

    /// A command in the server's namespace: a client.
    pub fn command(&self, program: &str) -> Command {
        self.netns.command(program)
    }

    /// Runs `outboard` with `args` in the server's namespace.
    ///
    /// # Panics
    /// Where it cannot be run.
    pub fn outboard(&self, args: &[&str]) -> Output {
        tool::run(self.netns.command(program()).args(args))
    }

    /// Tries to serve `folder` in the same namespace a second time, with the same device.
    ///
    /// # Panics
    /// Where the program cannot be run.
    pub fn second_instance(&self, folder: &Path) -> Output {
        let control = self.control.with_extension("second");
        tool::run(self.netns.command(program()).args(serve_args(folder, &control)))
    }

    /// The instance's counters, as `outboard stat` gives them.
    ///
    /// # Panics
    /// Where it does not give them.
    #[must_use]
    pub fn stat(&self) -> Counters {
        let json = self.ask("stat");
        Counters::parse(&json).unwrap_or_else(|e| panic!("outboard stat: {e}"))
    }

    /// No counter that an operator alarms on has moved, and there are some.
    ///
    /// # Panics
    /// Where one has.
    #[track_caller]
    pub fn expect_no_alarm(&self) {
        let all = self.ask_with("stat", &["--alarms", "--json"]);
        let all = Counters::parse(&all).unwrap_or_else(|e| panic!("outboard stat --alarms: {e}"));
        all.expect_moved_none();
    }

    /// The instance's connections, as `outboard ss` gives them.
    ///
    /// # Panics
    /// Where it does not give a list.
    #[must_use]
    pub fn connections(&self) -> Vec<serde_json::Value> {
        let json = self.ask("ss");
        serde_json::from_str(&json).unwrap_or_else(|e| panic!("outboard ss: {e}: {json}"))
    }

    /// What `outboard nvme ctl` answers, or why it refuses.
    ///
    /// # Errors
    /// What it says on standard error.
    ///
    /// # Panics
    /// Where it answers no JSON.
    pub fn nvme_ctl(&self, args: &[&str]) -> Result<serde_json::Value, String> {
        let control = self.control.to_string_lossy();
        let output = self.outboard(&[&["nvme", "ctl", "--control", &control], args].concat());
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("nvme ctl: {e}")))
    }

    /// The namespace that it runs in.
    #[must_use]
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Sends the server a signal, by its name.
    ///
    /// # Panics
    /// Where it has ended.
    pub fn signal(&self, name: &str) {
        if let Some(child) = &self.child {
            tool::signal(name, child.id());
        }
    }

    /// Asks the server to end, and waits for it.
    ///
    /// # Panics
    /// Where it does not end within the watchdog's time.
    pub fn stop(mut self) -> Ended {
        self.end()
    }

    /// Waits until the server has ended, for whatever reason.
    ///
    /// # Panics
    /// As [`Self::stop`].
    #[must_use]
    pub fn wait(mut self) -> Ended {
        self.wait_for_end()
    }

    /// What `outboard VERB` prints for people.
    ///
    /// # Panics
    /// Where the program fails.
    #[must_use]
    pub fn outboard_text(&self, verb: &str) -> String {
        self.ask_with(verb, &[])
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
                Ok(line) if is_ready(&line) => return self,
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

    fn end(&mut self) -> Ended {
        if let Some(child) = &self.child {
            tool::signal("TERM", child.id());
        }
        self.wait_for_end()
    }

    fn wait_for_end(&mut self) -> Ended {
        // Its stdout closes when it ends; until then it may go on printing.
        loop {
            match self.stdout.recv_timeout(WATCHDOG) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return self.reap(),
                Err(RecvTimeoutError::Timeout) => {
                    self.kill();
                    panic!("still there {WATCHDOG:?} after SIGTERM: {}", self.reap().stderr);
                }
            }
        }
    }

    fn kill(&mut self) {
        if let Some(child) = &mut self.child {
            // An error means that it is gone already.
            let _ = child.kill();
        }
    }

    fn reap(&mut self) -> Ended {
        let Some(mut child) = self.child.take() else { panic!("the server was reaped before") };
        let status = child.wait().unwrap_or_else(|e| panic!("cannot wait for the server: {e}"));
        let stderr = self.stderr.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        Ended { status, stderr }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.is_none() {
            return;
        }
        if std::thread::panicking() {
            // The test has failed already: what the server said may tell why.
            self.kill();
            eprintln!("the server's stderr:\n{}", self.reap().stderr);
            return;
        }
        let ended = self.end();
        assert!(ended.status.success(), "ended with {}: {}", ended.status, ended.stderr);
    }
}

/// Options with a way to end: at once, where nothing else is said.
fn with_end<'a>(options: &[&'a str]) -> Vec<&'a str> {
    let end: &[_] = if options.contains(&"--drain") { &[] } else { &["--drain", "0"] };
    [options, end].concat()
}

/// A command that runs `outboard` in a namespace.
#[must_use]
pub fn outboard(netns: &Netns) -> Command {
    netns.command(program())
}

/// The program: `$OUTBOARD_BIN`, or where `make build` puts it.
fn program() -> PathBuf {
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

fn serve_args(folder: &Path, control: &Path) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["serve".into(), folder.into()];
    args.extend(common_args(control));
    args
}

fn common_args(control: &Path) -> Vec<OsString> {
    let options =
        ["--wire", WIRE, "--addr", ADDR_CIDR, "--peer", PEER_CIDR, "--seed", "1", "--control"];
    let mut args = Vec::from(options.map(OsString::from));
    args.push(control.into());
    args
}

/// A folder of its own for the control socket.
fn scratch() -> (TempDir, PathBuf) {
    let scratch = TempDir::new().unwrap_or_else(|e| panic!("no temporary folder: {e}"));
    let control = scratch.path().join("control");
    (scratch, control)
}

/// The line that says so, of either verb.
fn is_ready(line: &str) -> bool {
    line.starts_with("serving ") || line.starts_with("proxying ")
}

fn lines_of(child: &mut Child) -> Receiver<String> {
    let (send, receive) = channel();
    let Some(stdout) = child.stdout.take() else { panic!("stdout is a pipe") };
    // Ends with the child. It reads on after the test stopped listening, so that a full pipe never
    // blocks the server.
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
        // What was read before an error is still worth showing.
        let _ = stderr.read_to_end(&mut all);
        String::from_utf8_lossy(&all).into_owned()
    }))
}
