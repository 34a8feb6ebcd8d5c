//! A device as a process of its own, which serves programs that attach to it: `outboard nic`.
//!
//! It owns the link, the disks and the engines; the programs have the hosts ([`crate::attach`]).
//! Each program has a device of its own behind a switch ([`nic::switch`]), which is the same code
//! as the device of a program with its own link. Queries go to its control socket, as to any other
//! instance.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use cli::Failure;
use io::clock::MonotonicClock;
use io::disk::Disk;
use nic::{Device, DeviceConfig};
use signal_hook::consts::SIGUSR1;
use wire::LinkAddress;

use crate::attach::{
    EthernetListener, PatternThread, ProgramListeners, ProgramRoots, ReceivedAddresses,
    RootDirectory, accept_programs,
};
use crate::confinement::Confinement;
use crate::control::metrics::IsAlarm;
use crate::control::{self, ControlHandlers, ControlSocket, SocketFile, bind_socket};
use crate::device::device_config;
use crate::link::{BackendLink, open_links};
use crate::listener::ListenerThread;
use crate::machine::MachineKey;
use crate::options::StackOptions;
use crate::record::RunRecord;
use crate::running::AsideThreads;
use crate::signals::Signals;
use crate::supervisor;
use crate::take_over::{self, TakeOverSlot};
use crate::threads::{SwitchSide, Threads};

/// Opens a disk for the files below a directory.
pub type OpenRoot = Box<dyn Fn(&Path) -> Result<Box<dyn Disk>, Failure> + Send + Sync>;

/// The socket that programs attach to. A process that may write to its file may attach.
#[derive(Debug)]
pub enum AttachListener {
    /// None: programs attach over Ethernet alone.
    Absent,
    /// A socket that is created.
    Create {
        /// Path of its file.
        path: PathBuf,
        /// Permissions of the file.
        mode: u32,
    },
    /// A socket that a service manager has created ([`io::activation`]).
    Inherited(UnixListener),
    /// The socket of the device process with this control socket, which ends.
    TakeOver {
        /// Path of its control socket.
        control: PathBuf,
    },
}

impl AttachListener {
    /// Returns the socket, with its file if that is removed at the end.
    fn open(
        self,
        confinement: &Confinement,
    ) -> Result<(Option<UnixListener>, Option<SocketFile>), Failure> {
        match self {
            Self::Absent => Ok((None, None)),
            Self::Create { path, mode } => {
                let (listener, file) = bind_socket(&path, mode, ("socket", "--listen"))?;
                confinement.own(&path)?;
                Ok((Some(listener), Some(file)))
            }
            Self::Inherited(listener) => Ok((Some(listener), None)),
            Self::TakeOver { control } => {
                let (listener, file) = take_over::ask(&control)?;
                Ok((listener, file.map(SocketFile::of)))
            }
        }
    }
}

/// Configuration of a device process.
pub struct NicProcess {
    /// Options of the link, the devices, their limits, faults, captures and queries. Those of hosts
    /// and of queues have no effect.
    pub options: StackOptions,
    /// A second link, if there is one.
    pub backend: Option<BackendLink>,
    /// Maximum number of programs, 1 to [`nic::switch::FUNCTIONS_MAX`]. They have equal shares of
    /// the memory for the devices' tables.
    pub programs_max: u8,
    /// The socket that programs of this machine attach to.
    pub listen: AttachListener,
    /// The interface on which programs of other machines attach, if they may.
    pub listen_ethernet: Option<String>,
    /// Directories whose files the device may send.
    pub roots: Vec<RootDirectory>,
    /// Opens a disk for one of them.
    pub open_root: OpenRoot,
    /// Returns whether a counter is an alarm, for the metrics.
    pub is_alarm: IsAlarm,
}

impl std::fmt::Debug for NicProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NicProcess").field("listen", &self.listen).finish_non_exhaustive()
    }
}

/// A running device process. Dropping it ends the device.
pub struct RunningNic {
    threads: Threads<()>,
    /// The socket that programs attach to, for a process that takes over.
    listener: Option<UnixListener>,
    /// The link address that programs of other machines attach to.
    ethernet_address: Option<LinkAddress>,
    take_over: TakeOverSlot,
    record: Option<RunRecord>,
    acceptors: Vec<ListenerThread>,
    /// The file of the socket that programs attach to, if this process has created it.
    listen_file: Option<SocketFile>,
    aside: AsideThreads,
}

impl std::fmt::Debug for RunningNic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RunningNic")
    }
}

impl NicProcess {
    /// Opens the link, and starts the device and the thread that accepts programs. `configure`
    /// enables the engines that need crypto or files.
    ///
    /// # Errors
    /// Fails if a link, file, socket or thread is not available; the message says what to do.
    pub fn start(self, configure: impl FnOnce(&mut DeviceConfig)) -> Result<RunningNic, Failure> {
        let Self { mut options, backend, programs_max, listen, listen_ethernet, .. } = self;
        let Self { roots, open_root, is_alarm, .. } = self;
        let record = options.record.as_deref().map(RunRecord::create).transpose()?;
        let roots = ProgramRoots::new(&roots, open_root)?;
        backend.iter().try_for_each(|backend| backend.check(&options))?;
        let received = ReceivedAddresses::of_options(&options, programs_max)?;
        let path = control::path(options.control.as_deref(), &options.link);
        let (listener, listen_file) = listen.open(&options.confinement)?;
        let open = |interface: String| EthernetListener::open(&interface, programs_max.into());
        let ethernet = listen_ethernet.map(open).transpose()?;
        let ethernet_address = ethernet.as_ref().map(|listener| LinkAddress(listener.mac()));
        let control = ControlSocket::bind(&path)?;
        options.confinement.own(&path)?;
        // A SYN cookie has a time in it, and the next device is to accept it.
        let clock = MonotonicClock::since_boot();
        // Programs come and go with their addresses; the neighbors of the link know this one.
        options.link_address = Some(MachineKey::read().link_address(&options.link.to_string()));
        let links = match &backend {
            None => open_links(&options, &clock)?,
            Some(backend) => backend.open_joined(&options, &clock)?,
        };
        let Some(link) = links.into_iter().next() else {
            return Err(Failure::System("the link has no queue".to_owned()));
        };
        options.confinement.complete(options.opens_bpf_links())?;
        let device = device_config(&options, None, programs_max, &*link, configure);
        let capabilities = Device::new(device.clone(), link.capabilities()).capabilities();
        let kept = listener.as_ref().map(UnixListener::try_clone).transpose();
        let kept = kept.map_err(|e| Failure::System(format!("cannot keep the socket: {e}")))?;
        let listeners = ProgramListeners { unix: listener, ethernet };
        let (acceptors, arrivals) =
            accept_programs(listeners, (capabilities, received), roots, programs_max.into())?;
        let recorders = record.as_ref().map(|record| record.source().clone());
        let mut threads = Threads::new(clock, false);
        let patterns = PatternThread::start()?;
        let crypto_workers = options.crypto_workers;
        let switch = SwitchSide { device, crypto_workers, link, arrivals, patterns, recorders };
        threads.start_switch(switch)?;
        let take_over = TakeOverSlot::default();
        let handlers = ControlHandlers { take_over: Some(take_over.clone()), orders: None };
        let aside = AsideThreads::start(&options, control, threads.probes(), is_alarm, handlers)?;
        Ok(RunningNic {
            threads,
            listener: kept,
            ethernet_address,
            take_over,
            record,
            acceptors,
            listen_file,
            aside,
        })
    }
}

impl RunningNic {
    /// Returns the link address that programs of other machines attach to, if they may.
    #[must_use]
    pub fn ethernet_address(&self) -> Option<String> {
        self.ethernet_address.map(|address| address.to_string())
    }

    /// Runs until SIGTERM, SIGINT or SIGHUP, or until another process takes over, and ends the
    /// device. Its programs keep their connections, and wait for another device.
    ///
    /// # Errors
    /// Fails if a thread has panicked, or the record cannot be written.
    pub fn run(self, signals: Signals) -> Result<(), Failure> {
        supervisor::notify_ready();
        for signal in signals {
            if signal != SIGUSR1 {
                break;
            }
        }
        supervisor::notify_stopping();
        let Self {
            mut threads, listener, take_over, record, acceptors, listen_file, aside, ..
        } = self;
        // Programs that come from now on wait in the queue of the socket.
        drop(acceptors);
        let stopped = threads.stop();
        drop(threads);
        drop(aside);
        if take_over.is_requested() {
            take_over.hand_over(listener.as_ref(), listen_file.is_some())?;
            listen_file.into_iter().for_each(SocketFile::leave);
        }
        stopped?;
        record.map_or(Ok(()), RunRecord::write)
    }
}
