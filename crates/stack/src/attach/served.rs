//! The device's side: the carrier of its thread, and the thread that accepts programs.
//!
//! A device serves one program at a time; another one is refused.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use abi::attach::{AttachRefusal, RootIdentity};
use abi::{Capabilities, Event, Op, PacketBuf, PacketPool, Refusal};
use cli::Failure;
use io::attachment::AttachmentSocket;
use io::disk::Disk;
use io::notify::Notifier;
use node::remote::RemoteDeviceEnd;

use super::attachment::{Attachment, AttachmentLoss};
use super::channel::SharedMemoryChannel;
use super::{handshake, root_identity};
use crate::listener::ListenerThread;
use crate::nic_process::OpenRoot;
use crate::no_disk::NoDisk;
use crate::threads::{CarrierSleeper, DeviceCarrier, ProgramChange, SleepingCarrier};

base::counters! {
    /// Counters of the programs of a device.
    pub struct ProgramCounters {
        /// Programs that attached.
        programs_attached,
        /// Programs that ended or were expelled.
        programs_left,
        /// Programs expelled because they violated the rules of the carrier.
        programs_expelled: alarm,
    }
}

/// A directory whose files the device sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootDirectory {
    /// Its name, for messages.
    pub name: String,
    /// Its path.
    pub path: PathBuf,
}

impl std::str::FromStr for RootDirectory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, path)) if !name.is_empty() && !path.is_empty() => {
                Ok(Self { name: name.to_owned(), path: path.into() })
            }
            _ => Err(format!("invalid root `{text}`; expected NAME=DIR")),
        }
    }
}

/// The roots of a device, and how a disk is opened for one.
pub(crate) struct ProgramRoots {
    roots: Vec<(RootIdentity, RootDirectory)>,
    open: OpenRoot,
}

impl ProgramRoots {
    /// Looks up the roots.
    ///
    /// # Errors
    /// If one is not a directory.
    pub(crate) fn new(roots: &[RootDirectory], open: OpenRoot) -> Result<Self, Failure> {
        let find = |root: &RootDirectory| {
            let shown = format!("--root {}={}", root.name, root.path.display());
            let identity =
                root_identity(&root.path).map_err(|e| Failure::NoInput(format!("{shown}: {e}")))?;
            if !root.path.is_dir() {
                return Err(Failure::NoInput(format!("{shown}: not a directory")));
            }
            Ok((identity, root.clone()))
        };
        let roots = roots.iter().map(find).collect::<Result<_, _>>()?;
        Ok(Self { roots, open })
    }

    /// Opens a disk for the root that a program names.
    fn open(&self, root: Option<RootIdentity>) -> Result<Box<dyn Disk>, AttachRefusal> {
        let Some(root) = root else { return Ok(NoDisk::boxed()) };
        let found = self.roots.iter().find(|(identity, _)| *identity == root);
        let (_, directory) = found.ok_or(AttachRefusal::UnknownRoot)?;
        (self.open)(&directory.path).map_err(|failure| {
            eprintln!("outboard: root {}: {failure}", directory.name);
            AttachRefusal::NoResources
        })
    }
}

/// State that the accepting thread and the device's thread share.
#[derive(Debug, Default)]
struct AcceptorState {
    /// Set while there is a program, or one is being accepted.
    is_occupied: AtomicBool,
    /// Number of programs that were not accepted.
    refused: AtomicU64,
}

/// A program that was accepted.
struct Arrival {
    channel: SharedMemoryChannel,
    disk: Box<dyn Disk>,
}

/// The carrier of a device that serves programs in other processes.
pub(crate) struct ServedCarrier {
    program: Attachment<RemoteDeviceEnd<SharedMemoryChannel>>,
    arrivals: Receiver<Arrival>,
    shared: Arc<AcceptorState>,
    /// Buffers of frames that no program takes.
    unclaimed: Vec<PacketBuf>,
    counters: ProgramCounters,
}

/// Starts the thread that accepts programs for a device with these capabilities. Returns it with
/// the carrier for the device's thread.
///
/// # Errors
/// If no thread or file descriptor is left.
pub(crate) fn serve_programs(
    listener: UnixListener,
    capabilities: Capabilities,
    roots: ProgramRoots,
) -> Result<(ListenerThread, ServedCarrier), Failure> {
    let program = Attachment::new()?;
    let (sender, arrivals) = channel();
    let shared = Arc::<AcceptorState>::default();
    let acceptor = ProgramAcceptor {
        capabilities: capabilities.for_other_process(),
        roots,
        arrivals: sender,
        shared: Arc::clone(&shared),
        notifier: program.notifier(),
    };
    let thread = ListenerThread::start("programs", "programs", listener, move |client| {
        acceptor.serve(client);
    })?;
    let (unclaimed, counters) = (Vec::new(), ProgramCounters::default());
    let carrier = ServedCarrier { program, arrivals, shared, unclaimed, counters };
    Ok((thread, carrier))
}

/// Accepts programs, in a thread of its own.
struct ProgramAcceptor {
    capabilities: Capabilities,
    roots: ProgramRoots,
    arrivals: Sender<Arrival>,
    shared: Arc<AcceptorState>,
    notifier: Notifier,
}

impl ProgramAcceptor {
    /// Accepts or refuses a program that has connected.
    fn serve(&self, client: UnixStream) {
        if !self.accept_or_refuse(AttachmentSocket::new(client)) {
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns whether the program was accepted.
    fn accept_or_refuse(&self, socket: AttachmentSocket) -> bool {
        let root = match handshake::receive_request(&socket) {
            Ok(Ok(request)) => request.root,
            Ok(Err(fault)) => {
                eprintln!("outboard: refusing a program: {fault}");
                handshake::refuse(&socket, AttachRefusal::BadRequest);
                return false;
            }
            // It is gone, too slow, or sends no message.
            Err(_) => return false,
        };
        if self.shared.is_occupied.swap(true, Ordering::AcqRel) {
            handshake::refuse(&socket, AttachRefusal::InUse);
            return false;
        }
        let accepted = self.accept(socket, root);
        if !accepted {
            self.shared.is_occupied.store(false, Ordering::Release);
        }
        accepted
    }

    /// Passes a program to the device's thread; returns false if it is refused or gone.
    fn accept(&self, socket: AttachmentSocket, root: Option<RootIdentity>) -> bool {
        let disk = match self.roots.open(root) {
            Ok(disk) => disk,
            Err(reason) => {
                handshake::refuse(&socket, reason);
                return false;
            }
        };
        let mut capabilities = self.capabilities.clone();
        if root.is_none() {
            capabilities.file = Err(Refusal::Disabled);
        }
        let channel = match handshake::accept(socket, capabilities) {
            Ok(channel) => channel,
            Err(error) => {
                eprintln!("outboard: cannot attach a program: {error}");
                return false;
            }
        };
        let passed = self.arrivals.send(Arrival { channel, disk }).is_ok();
        self.notifier.notify();
        passed
    }
}

impl SleepingCarrier for ServedCarrier {
    type Sleeper = Attachment<RemoteDeviceEnd<SharedMemoryChannel>>;

    fn sleeper(&mut self) -> &mut Self::Sleeper {
        &mut self.program
    }

    fn has_work(&mut self) -> bool {
        self.program.has_work()
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
        self.program.visit(f);
        f("programs_refused", self.shared.refused.load(Ordering::Relaxed));
        f("programs_attached_now", self.program.is_attached().into());
    }
}

impl DeviceCarrier for ServedCarrier {
    fn index(&self) -> usize {
        0
    }

    fn pop_op(&mut self, pool: &mut PacketPool) -> Option<Op> {
        self.program.end()?.pop_op(pool)
    }

    fn pop_recycled(&mut self) -> Option<PacketBuf> {
        self.unclaimed.pop().or_else(|| self.program.end()?.pop_recycled())
    }

    fn push_event(&mut self, event: Event) -> Result<(), Event> {
        match (self.program.end(), event) {
            (Some(end), event) => end.push_event(event),
            (None, Event::Received(received)) => {
                self.unclaimed.push(received.packet);
                Ok(())
            }
            (None, _) => Ok(()),
        }
    }

    fn wake_host(&mut self) {
        if let Some(end) = self.program.end() {
            end.publish();
        }
    }

    /// The device does not wait for its program.
    fn have_hosts_ended(&self) -> bool {
        true
    }

    fn follow_program(&mut self) -> Option<ProgramChange> {
        if !self.program.is_attached() {
            let Arrival { channel, disk } = self.arrivals.try_recv().ok()?;
            self.program.attach(RemoteDeviceEnd::new(channel));
            self.counters.programs_attached += 1;
            return Some(ProgramChange::Arrived(disk));
        }
        if let AttachmentLoss::Fault(fault) = self.program.leave_if_lost()? {
            eprintln!("outboard: expelling the program: {fault}");
            self.counters.programs_expelled += 1;
        }
        self.counters.programs_left += 1;
        self.shared.is_occupied.store(false, Ordering::Release);
        Some(ProgramChange::Left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_have_names() {
        let root: RootDirectory = "site=/srv/www=1".parse().unwrap();
        assert_eq!((root.name.as_str(), root.path), ("site", "/srv/www=1".into()));
        for wrong in ["", "site", "=/srv", "site="] {
            assert!(wrong.parse::<RootDirectory>().unwrap_err().contains("NAME=DIR"), "{wrong}");
        }
    }

    /// A program reaches the directories that the operator named, by whatever path, and no other.
    #[test]
    fn a_root_is_found_by_its_identity() {
        let folder = tempfile::tempdir().unwrap();
        let site = folder.path().join("site");
        std::fs::create_dir(&site).unwrap();
        let root = RootDirectory { name: "site".to_owned(), path: site.clone() };
        let roots = ProgramRoots::new(&[root], Box::new(|_| Ok(NoDisk::boxed()))).unwrap();
        let by_link = folder.path().join("link");
        std::os::unix::fs::symlink(&site, &by_link).unwrap();
        assert!(roots.open(Some(root_identity(&by_link).unwrap())).is_ok());
        assert!(roots.open(None).is_ok(), "no files");
        let parent = roots.open(Some(root_identity(folder.path()).unwrap()));
        assert_eq!(parent.map(|_| ()), Err(AttachRefusal::UnknownRoot));
        let absent = RootDirectory { name: "x".to_owned(), path: folder.path().join("x") };
        let failed = ProgramRoots::new(&[absent], Box::new(|_| Ok(NoDisk::boxed())));
        let line = failed.map(|_| ()).unwrap_err().to_string();
        assert!(line.starts_with("--root x=") && line.contains("No such file"), "{line}");
    }
}
