//! Queries to a running stack: a Unix socket, Prometheus text format and a dashboard over HTTP.
//!
//! [`crate::Builder`] starts them, each with a thread of its own; `outboard stat` and `outboard ss`
//! are clients of the socket. `probe_channel` queries the threads of hosts and devices, `describe`
//! formats their answers.

pub(crate) mod dashboard;
mod describe;
pub(crate) mod metrics;
mod probe;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cli::Failure;
use serde_json::{Value, json};

use crate::link::LinkName;
use crate::listener::{DeadlineReader, ListenerThread};
use crate::take_over::{TAKE_OVER, TakeOverSlot};

pub(crate) use describe::counters;
pub(crate) use probe::{Probe, ProbeAnswer, ProbeReceiver, probe_channel, sum_host_counters};

/// Time after which a thread that does not answer is taken to be stuck.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time that a client may take for its query.
const QUERY_TIME_MAX: base::Duration = base::Duration::from_secs(2);
/// Longest query: an order with a path.
const QUERY_BYTES_MAX: u64 = 16 << 10;

/// Answers an order, a JSON object, in the control socket's thread.
pub type OrderHandler = Box<dyn Fn(&Value) -> Value + Send>;

/// Handlers of requests to an instance; without one, the request is refused.
#[derive(Default)]
pub(crate) struct ControlHandlers {
    pub(crate) orders: Option<OrderHandler>,
    pub(crate) take_over: Option<TakeOverSlot>,
}

/// Returns the path of an instance's control socket: `given`, or a path derived from its link's
/// name.
#[must_use]
pub fn path(given: Option<&Path>, link: &LinkName) -> PathBuf {
    if let Some(path) = given {
        return path.to_owned();
    }
    runtime_folder().join(format!("outboard-{}.sock", link.interface()))
}

/// Returns the path of the control socket of a program without a link: `given`, or a path derived
/// from its first address.
pub(crate) fn path_by_addr(given: Option<&Path>, addr: Option<IpAddr>) -> PathBuf {
    match (given, addr) {
        (Some(path), _) => path.to_owned(),
        (None, Some(addr)) => runtime_folder().join(format!("outboard-{addr}.sock")),
        (None, None) => runtime_folder().join("outboard.sock"),
    }
}

fn runtime_folder() -> PathBuf {
    std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from)
}

/// The bound control socket. Its file is removed when it is dropped.
pub(crate) struct ControlSocket {
    listener: UnixListener,
    file: SocketFile,
}

impl ControlSocket {
    /// Binds the socket. The file of an instance that was killed is replaced; if a process answers
    /// at the path, another instance is running.
    ///
    /// # Errors
    /// Fails if another instance is running, or if the socket cannot be created.
    pub(crate) fn bind(path: &Path) -> Result<Self, Failure> {
        let (listener, file) = bind_socket(path, 0o600, ("control socket", "--control"))?;
        Ok(Self { listener, file })
    }

    /// Answers queries, and the requests that have handlers, in a new thread.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub(crate) fn start(
        self,
        probes: Vec<Probe>,
        handlers: ControlHandlers,
    ) -> Result<ControlThread, Failure> {
        let Self { listener, file } = self;
        let thread =
            ListenerThread::start("control", "control clients", listener, move |client| {
                // An error means that the client is gone.
                let _ = serve(&client, &probes, &handlers);
            })?;
        Ok(ControlThread { _file: file, _thread: thread })
    }
}

/// The control socket's thread. Dropping it removes the socket's file and ends the thread.
pub(crate) struct ControlThread {
    _file: SocketFile,
    _thread: ListenerThread,
}

/// Binds a Unix socket whose file has the permissions `mode`. The file of a process that was killed
/// is replaced; if a process answers at the path, it is another instance. `names` are those of the
/// socket, and of the option with its path, in messages.
///
/// # Errors
/// Fails if another instance is running, or if the socket cannot be created.
pub(crate) fn bind_socket(
    path: &Path,
    mode: u32,
    names: (&str, &str),
) -> Result<(UnixListener, SocketFile), Failure> {
    let (shown, (name, option)) = (path.display(), names);
    if UnixStream::connect(path).is_ok() {
        return Err(Failure::Unavailable(format!(
            "another instance is running at {shown}; stop it, or choose another --link and {option}"
        )));
    }
    let stale = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    if stale {
        // If this fails, so does bind, which reports why.
        let _ = std::fs::remove_file(path);
    }
    let failed = |e| {
        Failure::Unavailable(format!(
            "cannot create {name} {shown}: {e}; choose another path with {option}"
        ))
    };
    let listener = UnixListener::bind(path).map_err(failed)?;
    let file = SocketFile(path.to_owned());
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(failed)?;
    Ok((listener, file))
}

/// Removes a socket's file when it is dropped.
pub(crate) struct SocketFile(PathBuf);

impl SocketFile {
    /// Takes the file of a socket of another process.
    pub(crate) const fn of(path: PathBuf) -> Self {
        Self(path)
    }

    /// Leaves the file to another process.
    pub(crate) fn leave(self) {
        std::mem::forget(self);
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Answers one query with a line of JSON.
fn serve(stream: &UnixStream, probes: &[Probe], handlers: &ControlHandlers) -> std::io::Result<()> {
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    let mut question = String::new();
    let limited = DeadlineReader::new(stream, QUERY_TIME_MAX).take(QUERY_BYTES_MAX);
    let mut reader = BufReader::new(limited);
    reader.read_line(&mut question)?;
    if let (TAKE_OVER, Some(slot)) = (question.trim(), &handlers.take_over) {
        return slot.request(stream);
    }
    let answer = match question.trim() {
        "stat" => counters(probes),
        "ss" => describe::sockets(probes),
        order if order.starts_with('{') => match (serde_json::from_str(order), &handlers.orders) {
            (Ok(order), Some(handler)) => handler(&order),
            (Ok(_), None) => json!({ "error": "this instance accepts no commands" }),
            (Err(why), _) => json!({ "error": format!("invalid JSON: {why}") }),
        },
        _ => json!({ "error": "unknown query; expected stat or ss" }),
    };
    let mut writer = stream;
    writeln!(writer, "{answer}")
}
