//! `outboard nvme ctl`: shows and changes what a running target serves, over its control socket.
//!
//! A request is one line of JSON, and so is the answer. [`run`] is the client. In the target, the
//! thread of the control socket opens and locks files ([`NvmeCtlHandler`]); the host thread of the
//! first queue, which owns one of the targets, does the rest ([`NvmeTargetService`]). The answer is
//! sent when the change is in force on all queues: an added namespace is open, the file of a
//! removed one is closed.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use apps::nvme::target::{NamespaceConfig, NamespaceInfo, NvmeQueueInfo, NvmeTarget};
use apps::pattern_rules::PatternRules;
use base::Instant;
use host::{Application, Host, Notice};
use serde_json::{Value, json};
use stack::MessageSender;
use wire::nvme::nqn::Nqn;

use super::args::{CtlArgs, NvmeCtlSubcommand};
use super::target::open_namespace_file;
use crate::query;
use cli::Failure;

/// Longest time until a change is in force; a disk may be slow.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs `outboard nvme ctl`.
///
/// # Errors
/// Fails if no target answers, or if it refuses the request.
pub(super) fn run(args: &CtlArgs) -> Result<(), Failure> {
    let request = match &args.verb {
        NvmeCtlSubcommand::List => json!({ "nvme": "list" }),
        NvmeCtlSubcommand::Connections => json!({ "nvme": "connections" }),
        NvmeCtlSubcommand::Add { file, nsid, block_size, read_only } => {
            // The target may have another working directory.
            let path = std::path::absolute(file)
                .map_err(|e| Failure::NoInput(format!("{}: {e}", file.display())))?;
            let path = path.to_str().ok_or_else(|| {
                Failure::NoInput(format!("{}: path is not UTF-8", file.display()))
            })?;
            json!({
                "nvme": "add", "path": path, "nsid": nsid, "block_bytes": block_size,
                "read_only": read_only,
            })
        }
        NvmeCtlSubcommand::Remove { nsid } => json!({ "nvme": "remove", "nsid": nsid }),
        NvmeCtlSubcommand::Resize { nsid, size } => {
            json!({ "nvme": "resize", "nsid": nsid, "bytes": size })
        }
    };
    let answer = query::query_instance(
        args.control.as_deref(),
        &args.link,
        &request.to_string(),
        CHANGE_TIMEOUT,
    )?;
    match answer.get("error").and_then(Value::as_str) {
        Some(why) => Err(Failure::Unavailable(why.to_owned())),
        None => query::print(&format!("{answer:#}\n")),
    }
}

/// A message to the target of a queue.
pub(super) enum NvmeTargetMessage {
    /// A request from the control socket, with the channel for its answer.
    Order(NvmeCtlRequest, Sender<Value>),
    /// The target of another queue has sent mail.
    Mail,
}

/// A request, prepared by the control socket's thread.
pub(super) enum NvmeCtlRequest {
    List,
    Connections,
    Add {
        nsid: Option<u32>,
        config: NamespaceConfig,
        file: File,
    },
    Remove {
        nsid: u32,
    },
    Resize {
        nsid: u32,
        bytes: Option<u64>,
    },
    /// Uses other rules about patterns, on SIGHUP. The answer is empty.
    SetPatternRules(Arc<PatternRules>),
}

/// Passes requests from the control socket to the target.
pub(super) struct NvmeCtlHandler {
    /// Senders to the targets of all queues. The first executes changes.
    pub(super) queues: Vec<MessageSender<NvmeTargetMessage>>,
    pub(super) nqn: Nqn,
    pub(super) block_bytes: u32,
}

impl NvmeCtlHandler {
    /// Answers a request.
    pub(super) fn answer(&self, question: &Value) -> Value {
        let request = match self.prepare(question) {
            Ok(request) => request,
            Err(why) => return json!({ "error": why }),
        };
        if matches!(request, NvmeCtlRequest::Connections) {
            return self.connections();
        }
        let (reply, answers) = channel();
        if let Some(first) = self.queues.first() {
            first.send(NvmeTargetMessage::Order(request, reply));
        }
        answers.recv_timeout(CHANGE_TIMEOUT).unwrap_or_else(|why| match why {
            RecvTimeoutError::Timeout => {
                json!({ "error": "timed out, still in progress; check with `list`" })
            }
            RecvTimeoutError::Disconnected => json!({ "error": "the target is stopping" }),
        })
    }

    /// Lists the connections of all queues.
    fn connections(&self) -> Value {
        let ask = |queue: &MessageSender<NvmeTargetMessage>| {
            let (reply, answers) = channel();
            queue.send(NvmeTargetMessage::Order(NvmeCtlRequest::Connections, reply));
            answers
        };
        let answers: Vec<_> = self.queues.iter().map(ask).collect();
        let mut all = Vec::new();
        for (device_queue, answers) in answers.into_iter().enumerate() {
            let Ok(Value::Array(some)) = answers.recv_timeout(CHANGE_TIMEOUT) else {
                return json!({ "error": "the target is stopping" });
            };
            all.extend(some.into_iter().map(|mut connection| {
                connection["device_queue"] = device_queue.into();
                connection
            }));
        }
        json!({ "connections": all })
    }

    fn prepare(&self, question: &Value) -> Result<NvmeCtlRequest, String> {
        let number = |name: &str| match &question[name] {
            Value::Null => Ok(None),
            value => value.as_u64().map(Some).ok_or_else(|| format!("{name} is not a number")),
        };
        let nsid = number("nsid")?
            .map(|nsid| u32::try_from(nsid).map_err(|_| "nsid is too large".to_owned()))
            .transpose()?;
        let needed = || nsid.ok_or_else(|| "nsid is missing".to_owned());
        Ok(match question["nvme"].as_str() {
            Some("list") => NvmeCtlRequest::List,
            Some("connections") => NvmeCtlRequest::Connections,
            Some("add") => {
                let path = question["path"].as_str().ok_or("path is missing")?;
                let block = number("block_bytes")?.unwrap_or_else(|| self.block_bytes.into());
                let read_only = question["read_only"].as_bool().unwrap_or(false);
                let (config, file) =
                    open_and_lock_namespace(&self.nqn, Path::new(path), block, read_only)
                        .map_err(|why| format!("{path}: {why}"))?;
                NvmeCtlRequest::Add { nsid, config, file }
            }
            Some("remove") => NvmeCtlRequest::Remove { nsid: needed()? },
            Some("resize") => NvmeCtlRequest::Resize { nsid: needed()?, bytes: number("bytes")? },
            _ => {
                return Err(
                    "unknown command; expected list, connections, add, remove or resize".to_owned()
                );
            }
        })
    }
}

/// Reason for which a file cannot be a namespace.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    /// Locked by another process or by this one.
    #[error("already in use by a target")]
    Served,
    /// Cannot be opened, or is shorter than a block.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The path is not UTF-8, which the disk requires.
    #[error("path is not UTF-8")]
    NotUtf8,
}

/// Opens a file for a namespace and locks it while it is open, because range locks exclude only
/// commands within one process.
///
/// # Errors
/// Fails if the file cannot be a namespace.
pub(super) fn open_and_lock_namespace(
    nqn: &Nqn,
    path: &Path,
    block_bytes: u64,
    read_only: bool,
) -> Result<(NamespaceConfig, File), OpenError> {
    // A symbolic link may lead anywhere, and the disk does not follow links out of its root.
    let real = path.canonicalize()?;
    let file = open_namespace_file(&real, path, block_bytes, read_only)?;
    if !io::disk::lock(&file)? {
        return Err(OpenError::Served);
    }
    let text = real.to_str().ok_or(OpenError::NotUtf8)?;
    let mut config = NamespaceConfig::new(nqn, text.trim_start_matches('/'));
    let power = block_bytes.is_power_of_two().then(|| block_bytes.trailing_zeros());
    config.block_shift = power.and_then(|power| u8::try_from(power).ok()).unwrap_or(0);
    config.read_only = read_only;
    Ok((config, file))
}

/// Checks that a path still names the locked file, because a resize opens the path again.
fn check_same_file(file: &File, path: &Path) -> Result<(), String> {
    let of_path = std::fs::metadata(path).map_err(|error| error.to_string())?;
    let of_file = file.metadata().map_err(|error| error.to_string())?;
    if (of_path.dev(), of_path.ino()) == (of_file.dev(), of_file.ino()) {
        return Ok(());
    }
    Err("the file was replaced; remove the namespace and add it again".to_owned())
}

/// A change that is not in force yet.
enum PendingCtlChange {
    Added(u32),
    Resized(u32),
    /// With the path of its file.
    Removed(u32, String),
}

/// The target, the locks on its files, and pending changes.
pub(super) struct NvmeTargetService {
    target: NvmeTarget,
    nqn: Nqn,
    locked: BTreeMap<String, File>,
    waiting: Vec<(PendingCtlChange, Sender<Value>)>,
}

impl NvmeTargetService {
    pub(super) fn new(target: NvmeTarget, nqn: Nqn, locked: BTreeMap<String, File>) -> Self {
        Self { target, nqn, locked, waiting: Vec::new() }
    }

    fn handle(
        &mut self,
        now: Instant,
        host: &mut Host,
        request: NvmeCtlRequest,
        reply: Sender<Value>,
    ) {
        let begun = match request {
            NvmeCtlRequest::List => {
                let all: Vec<_> = self.target.namespaces().iter().map(describe).collect();
                Err(json!({ "subsystem": self.nqn.to_string(), "namespaces": all }))
            }
            NvmeCtlRequest::Connections => {
                Err(self.target.queues().iter().map(describe_queue).collect())
            }
            NvmeCtlRequest::Add { nsid, config, file } => {
                let added = self.target.add_namespace(now, host, (&self.nqn, nsid), &config);
                added
                    .map(|nsid| {
                        self.locked.insert(config.path, file);
                        PendingCtlChange::Added(nsid)
                    })
                    .map_err(error_json)
            }
            NvmeCtlRequest::SetPatternRules(rules) => {
                self.target.set_pattern_rules(rules);
                Err(json!({}))
            }
            NvmeCtlRequest::Remove { nsid } => self.remove(now, host, nsid).map_err(error_json),
            NvmeCtlRequest::Resize { nsid, bytes } => self
                .resize(now, host, nsid, bytes)
                .map(|()| PendingCtlChange::Resized(nsid))
                .map_err(error_json),
        };
        match begun {
            Ok(waiting) => self.waiting.push((waiting, reply)),
            // An error means that the client is gone.
            Err(answer) => drop(reply.send(answer)),
        }
    }

    fn remove(
        &mut self,
        now: Instant,
        host: &mut Host,
        nsid: u32,
    ) -> Result<PendingCtlChange, String> {
        let path = self.find(nsid).map(|info| info.path);
        self.target
            .remove_namespace(now, host, &self.nqn, nsid)
            .map_err(|error| error.to_string())?;
        Ok(PendingCtlChange::Removed(nsid, path.unwrap_or_default()))
    }

    /// Changes the length of a file if requested, and makes the target read it again. If the file
    /// gets shorter, hosts see the new size before it is truncated.
    fn resize(
        &mut self,
        now: Instant,
        host: &mut Host,
        nsid: u32,
        bytes: Option<u64>,
    ) -> Result<(), String> {
        let info = self.find(nsid).ok_or("no such namespace")?;
        // Before the file is changed, so that a refused resize leaves it unchanged.
        let blocks = match info.blocks {
            _ if info.opening => return Err("namespace is still being opened".to_owned()),
            Ok(blocks) => blocks,
            Err(fault) => return Err(format!("namespace has failed: {fault}; remove it")),
        };
        let file = self.locked.get(&info.path).ok_or("namespace file is not open")?;
        check_same_file(file, &Path::new("/").join(&info.path))?;
        let resize = |target: &mut NvmeTarget, host: &mut Host, most| {
            let at = (&self.nqn, nsid);
            target.resize_namespace(now, host, at, most).map_err(|error| error.to_string())
        };
        let Some(bytes) = bytes else { return resize(&mut self.target, host, None) };
        let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
        if !is_file || info.read_only || bytes < u64::from(info.block_bytes) {
            let why = "--size requires a writable regular file and at least one block";
            return Err(why.to_owned());
        }
        let cut = |file: &File| file.set_len(bytes).map_err(|error| error.to_string());
        if bytes >= blocks * u64::from(info.block_bytes) {
            cut(file)?;
            return resize(&mut self.target, host, None);
        }
        resize(&mut self.target, host, Some(bytes))?;
        cut(file)
    }

    fn find(&self, nsid: u32) -> Option<NamespaceInfo> {
        self.target.namespaces().into_iter().find(|info| info.nsid == nsid)
    }

    /// Handles a message.
    pub(super) fn handle_message(
        &mut self,
        now: Instant,
        host: &mut Host,
        message: NvmeTargetMessage,
    ) {
        match message {
            NvmeTargetMessage::Order(request, reply) => self.handle(now, host, request, reply),
            NvmeTargetMessage::Mail => {
                self.target.handle_mail(now, host);
            }
        }
        self.answer_finished_changes(now, host);
    }

    /// Answers changes that have come into force.
    fn answer_finished_changes(&mut self, now: Instant, host: &mut Host) {
        while let Some(path) = self.target.poll_closed() {
            self.locked.remove(&path);
        }
        let mut index = 0;
        while let Some((waiting, _)) = self.waiting.get(index) {
            let answer = match waiting {
                PendingCtlChange::Removed(nsid, path) => {
                    (!self.locked.contains_key(path)).then(|| json!({ "removed": nsid }))
                }
                PendingCtlChange::Added(nsid) | PendingCtlChange::Resized(nsid) => {
                    match self.find(*nsid) {
                        Some(info) if info.opening => None,
                        Some(info) => Some(describe(&info)),
                        None => Some(json!({ "error": "namespace was removed meanwhile" })),
                    }
                }
            };
            let Some(mut answer) = answer else {
                index += 1;
                continue;
            };
            let (waiting, reply) = self.waiting.swap_remove(index);
            // A namespace whose file cannot be opened is removed again.
            if let (PendingCtlChange::Added(nsid), Some(why)) = (waiting, answer["why"].as_str()) {
                answer = json!({ "error": why });
                let _gone = self.target.remove_namespace(now, host, &self.nqn, nsid);
            }
            drop(reply.send(answer));
        }
    }
}

fn error_json(why: impl std::fmt::Display) -> Value {
    json!({ "error": why.to_string() })
}

impl Application for NvmeTargetService {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        self.target.handle_notice(now, host, notice);
        self.answer_finished_changes(now, host);
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.target.handle_timeout(now, host);
        self.answer_finished_changes(now, host);
    }

    fn advance(&mut self, now: Instant, host: &mut Host) -> bool {
        let worked = self.target.handle_mail(now, host);
        if worked {
            self.answer_finished_changes(now, host);
        }
        worked
    }

    fn drain(&mut self, now: Instant, host: &mut Host) {
        self.target.drain(now, host);
        self.answer_finished_changes(now, host);
    }

    fn end(&mut self, now: Instant, host: &mut Host) {
        self.target.end(now, host);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.target.poll_timeout()
    }

    fn poll_log(&mut self) -> Option<String> {
        self.target.poll_log()
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.target.visit(f);
    }
}

fn describe(info: &NamespaceInfo) -> Value {
    let (state, why) = match (info.opening, info.blocks) {
        (true, _) => ("opening", None),
        (false, Ok(_)) => ("ready", None),
        (false, Err(fault)) => ("failed", Some(fault.to_string())),
    };
    let blocks = info.blocks.unwrap_or(0);
    json!({
        "nsid": info.nsid,
        "path": PathBuf::from("/").join(&info.path),
        "uuid": uuid(&info.uuid),
        "block_bytes": info.block_bytes,
        "blocks": blocks,
        "bytes": blocks * u64::from(info.block_bytes),
        "read_only": info.read_only,
        "state": state,
        "why": why,
    })
}

fn describe_queue(info: &NvmeQueueInfo) -> Value {
    let remote = info.remote.map(|at| std::net::SocketAddr::new(at.addr, at.port).to_string());
    json!({
        "remote": remote,
        "host": info.host.to_string(),
        "host_id": uuid(&info.host_id),
        "subsystem": info.subsystem.to_string(),
        "controller": info.controller,
        "queue": info.queue,
        "entries": info.entries,
        "open_commands": info.open,
        "header_digest": info.header_digest,
        "data_digest": info.data_digest,
        "pre_shared_key": info.pre_shared_key,
    })
}

fn uuid(bytes: &[u8; 16]) -> String {
    let hex = |range: std::ops::Range<usize>| -> String {
        bytes.get(range).into_iter().flatten().map(|byte| format!("{byte:02x}")).collect()
    };
    [hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16)].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_checked_before_the_target_sees_them() {
        let (orders, _sent) = MessageSender::detached().unwrap();
        let nqn = Nqn::new("nqn.2026-11.example:s").unwrap();
        let orders = NvmeCtlHandler { queues: vec![orders], nqn, block_bytes: 4096 };
        let error = |question: Value| match orders.prepare(&question) {
            Ok(_) => panic!("{question} was taken"),
            Err(why) => why,
        };
        assert_eq!(
            error(json!({})),
            "unknown command; expected list, connections, add, remove or resize"
        );
        assert_eq!(error(json!({ "nvme": "remove" })), "nsid is missing");
        assert_eq!(error(json!({ "nvme": "remove", "nsid": "x" })), "nsid is not a number");
        assert_eq!(error(json!({ "nvme": "resize", "nsid": 1_u64 << 40 })), "nsid is too large");
        assert_eq!(error(json!({ "nvme": "add" })), "path is missing");
        let missing = error(json!({ "nvme": "add", "path": "/nowhere/at/all" }));
        assert!(missing.starts_with("/nowhere/at/all: No such file"), "{missing}");
        assert!(matches!(orders.prepare(&json!({ "nvme": "list" })), Ok(NvmeCtlRequest::List)));
    }

    #[test]
    fn identifiers_are_written_as_uuids() {
        let bytes: [u8; 16] = core::array::from_fn(|at| u8::try_from(at).unwrap() * 17);
        assert_eq!(uuid(&bytes), "00112233-4455-6677-8899-aabbccddeeff");
    }

    #[test]
    fn a_path_that_names_another_file_is_found() {
        let path = std::env::temp_dir().join(format!("outboard-ctl-{}", std::process::id()));
        let file = File::create_new(&path).unwrap();
        assert_eq!(check_same_file(&file, &path), Ok(()));
        std::fs::remove_file(&path).unwrap();
        assert!(check_same_file(&file, &path).is_err());
        // The open file keeps its inode, so the new file has another one.
        drop(File::create_new(&path).unwrap());
        let refused = check_same_file(&file, &path);
        std::fs::remove_file(&path).unwrap();
        let why = "the file was replaced; remove the namespace and add it again";
        assert_eq!(refused, Err(why.to_owned()));
    }
}
