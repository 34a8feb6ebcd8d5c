//! What every verb that carries traffic runs: wires, devices, hosts and their threads, with an
//! application on top.
//!
//! For each queue there is a host thread ([`host_thread`]) and a device thread ([`device_thread`]),
//! joined by rings ([`queue`]). [`crate::serve`], [`crate::proxy`] and [`crate::nvme`] make the
//! parts of a queue and start them here ([`Threads`]); the control socket and the metrics have
//! threads of their own ([`crate::control`]). Nothing here knows what the application does.

mod device_thread;
pub(crate) mod drain;
mod ending;
mod host_thread;
mod load;
mod log;
mod no_disk;
mod queue;
mod shared_thread;

use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;

use abi::Refusal;
use base::Instant;
use host::{Algorithm, Application, Host};
use io::clock::Clock;
use io::disk::Disk;
use io::fault::{FaultConfig, FaultWire};
use io::pcap::PcapWire;
use io::tap::{IpPrefix, Tap, TapConfig, TapError};
use io::wire::Wire;
use nic::{Device, DeviceConfig};

use crate::args::{CidrArg, CongestionArg, StackArgs, SwitchArg, ThreadsArg, WireArg};
use crate::control::{self, Probe};
use cli::Failure;
use device_thread::DeviceThread;
use host_thread::HostThread;
use shared_thread::SharedThread;

pub(crate) use log::{Log, open_log};
pub(crate) use no_disk::NoDisk;
pub(crate) use queue::{Queue, mesh};

/// Half-open and unaccepted connections that a port may have.
pub(crate) const BACKLOG: usize = 4096;

/// Takes a message of another thread to an application; called between two turns.
pub(crate) type HandleMessage<A, M> = fn(&mut A, Instant, &mut Host, M);

/// Calls a function with each QUIC connection of an application; other connections are the host's.
pub(crate) type ListConnections<A> = fn(&A, &mut dyn FnMut(quic::ConnectionInfo));

/// A host with its application, and what their thread needs.
pub(crate) struct HostSide<A, M> {
    pub(crate) host: Host,
    pub(crate) app: A,
    /// For the files that the host has to read itself.
    pub(crate) disk: Box<dyn Disk>,
    pub(crate) messages: (Receiver<M>, HandleMessage<A, M>),
    pub(crate) log: Option<Log>,
    pub(crate) list_connections: ListConnections<A>,
    /// A descriptor that polls readable when [`Application::begin_turn`] has something to look at.
    pub(crate) wake_on: Option<RawFd>,
}

impl<A, M> HostSide<A, M> {
    /// A host without files, logs and QUIC.
    pub(crate) fn new(host: Host, app: A, messages: (Receiver<M>, HandleMessage<A, M>)) -> Self {
        Self {
            host,
            app,
            disk: Box::new(NoDisk),
            messages,
            log: None,
            list_connections: |_, _| {},
            wake_on: None,
        }
    }
}

/// A device with its link and its disk.
pub(crate) struct DeviceSide {
    pub(crate) device: Device,
    pub(crate) wire: Box<dyn Wire>,
    pub(crate) disk: Box<dyn Disk>,
}

/// The threads of all queues.
#[derive(Default)]
pub(crate) struct Threads {
    stop: Arc<AtomicBool>,
    /// The number of requests to open the logs again.
    reopened: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
    probes: Vec<Probe>,
}

impl Threads {
    /// Starts the threads of the next queue.
    ///
    /// # Errors
    /// Fails if the system gives no thread.
    pub(crate) fn start<A: Application + Send + 'static, M: Send + 'static>(
        &mut self,
        args: &StackArgs,
        clock: Clock,
        queue: Queue,
        device: DeviceSide,
        mut host: HostSide<A, M>,
    ) -> Result<(), Failure> {
        let index = queue.device.index;
        let bells = (queue.device.bell.notifier(), queue.host.bell.notifier());
        let (device_probe, device_queries) = control::probe("nic", index, bells.0);
        let (host_probe, host_queries) = control::probe("host", index, bells.1);
        self.probes.extend([device_probe, host_probe]);
        host.log = host.log.map(|log| log.watching(&self.reopened));
        let DeviceSide { device, wire, disk } = device;
        let device_thread =
            DeviceThread::new(clock, device, wire, disk, queue.device, device_queries);
        let host_thread = HostThread::new(clock, host, queue.host, host_queries);
        let (stop_device, stop_host) = (Arc::clone(&self.stop), Arc::clone(&self.stop));
        if share_thread(args.threads) {
            let both = SharedThread::new(device_thread, host_thread);
            self.threads.push(spawn(format!("both{index}"), move || both.run(&stop_device))?);
        } else {
            self.threads
                .push(spawn(format!("nic{index}"), move || device_thread.run(&stop_device))?);
            self.threads.push(spawn(format!("host{index}"), move || host_thread.run(&stop_host))?);
        }
        Ok(())
    }

    /// Has the threads open their logs again: their files may have been renamed.
    pub(crate) fn reopen_logs(&self) {
        self.reopened.fetch_add(1, Ordering::Release);
        self.probes.iter().for_each(Probe::wake);
    }

    /// The ends at which the threads are asked and woken.
    pub(crate) fn probes(&self) -> &[Probe] {
        &self.probes
    }

    /// Tells all threads to end, and waits for them.
    ///
    /// # Errors
    /// Where one panicked.
    pub(crate) fn stop(self) -> Result<(), Failure> {
        self.stop.store(true, Ordering::Release);
        self.probes.iter().for_each(Probe::wake);
        let panicked = self.threads.into_iter().filter_map(|t| t.join().err()).count();
        if panicked == 0 {
            Ok(())
        } else {
            Err(Failure::System("a thread panicked: please report what it printed".to_owned()))
        }
    }
}

/// Whether a device and its host share a thread.
fn share_thread(threads: ThreadsArg) -> bool {
    match threads {
        // A failure means that nobody knows: then two threads do no harm.
        ThreadsArg::Auto => std::thread::available_parallelism().is_ok_and(|n| n.get() == 1),
        ThreadsArg::One => true,
        ThreadsArg::Two => false,
    }
}

/// Starts a thread.
///
/// # Errors
/// Where the system gives none.
pub(crate) fn spawn(
    name: String,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Failure> {
    std::thread::Builder::new()
        .name(name)
        .spawn(work)
        .map_err(|e| Failure::System(format!("cannot start a thread: {e}")))
}

/// Opens a wire for each queue, with captures and faults as asked for.
///
/// # Errors
/// What cannot be opened, and what to do about it.
pub(crate) fn open_wires(args: &StackArgs, clock: &Clock) -> Result<Vec<Box<dyn Wire>>, Failure> {
    let WireArg::Tap(name) = &args.wire;
    let faults = FaultConfig {
        drop: args.faults.drop,
        reorder: args.faults.reorder,
        dup: args.faults.dup,
        corrupt: args.faults.corrupt,
        seed: args.faults.seed,
    };
    let config = TapConfig {
        name: name.clone(),
        queues: usize::from(args.queues),
        peer: args.peer.iter().map(|c| IpPrefix { addr: c.addr, prefix: c.prefix_len }).collect(),
        mtu: None,
        // A merged run would lose or keep all its packets together.
        offloads: !faults.is_active(),
    };
    let taps = Tap::open(&config).map_err(tap_failure)?;
    let wrap = |(index, tap): (usize, Tap)| {
        let mut wire: Box<dyn Wire> = Box::new(tap);
        if let Some(path) = &args.pcap {
            let mut path = path.clone();
            if index > 0 {
                path.as_mut_os_string().push(format!(".{index}"));
            }
            let capture = PcapWire::create(wire, &path, name, clock.unix_epoch()).map_err(|e| {
                Failure::NoInput(format!("cannot write --pcap {}: {e}", path.display()))
            })?;
            wire = Box::new(capture);
        }
        if faults.is_active() {
            let seed = faults.seed.wrapping_add(index as u64);
            wire = Box::new(FaultWire::new(wire, FaultConfig { seed, ..faults.clone() }));
        }
        Ok(wire)
    };
    taps.into_iter().enumerate().map(wrap).collect()
}

fn tap_failure(error: TapError) -> Failure {
    let line = error.to_string();
    match error {
        TapError::NoPermission { .. } | TapError::DeviceDenied => Failure::NoPermission(line),
        TapError::BadName { .. } => Failure::Usage(line),
        TapError::Busy { .. } | TapError::AddressInUse { .. } | TapError::NoDevice => {
            Failure::Unavailable(line)
        }
        _ => Failure::System(line),
    }
}

/// A device's configuration as far as it is the same for all verbs.
pub(crate) fn device_config(
    args: &StackArgs,
    queues: usize,
    rss_seed: u64,
    wire: &dyn Wire,
) -> DeviceConfig {
    // Locally administered (the second bit), and the same for the same address, so that a restart
    // finds the peer's neighbour table right.
    let mut mac = [0x02, b'o', b'b', 0, 0, 0];
    match args.addr.first().map(|c| c.addr) {
        Some(IpAddr::V4(v4)) => mac[3..].copy_from_slice(&v4.octets()[1..]),
        Some(IpAddr::V6(v6)) => mac[3..].copy_from_slice(&v6.octets()[13..]),
        None => {}
    }
    let mut config = DeviceConfig::new(mac);
    config.queues = queues;
    config.transmit_bytes_max = nic::LONG_TRANSMIT_BYTES;
    if wire.capabilities().segmentation {
        config.run_bytes_max = io::tap::run_bytes_max();
    }
    config.rss_seed = rss_seed;
    config
}

/// A device that owns a connection has to see all of its packets, and with several queues it is the
/// kernel that chooses whose TAP a packet comes in by.
const fn one_queue(queues: u8) -> Result<(), Refusal> {
    if queues == 1 { Ok(()) } else { Err(Refusal::ManyQueues) }
}

/// A host's configuration as far as it is the same for all verbs.
pub(crate) fn host_config(args: &StackArgs, index: usize) -> host::Config {
    let offload = |on: bool| if on { Ok(()) } else { Err(Refusal::Disabled) };
    let mut config = host::Config {
        addrs: args.addr.iter().copied().map(CidrArg::to_cidr).collect(),
        gateways: args.gateway.clone(),
        answers: index == 0,
        file_offload: offload(args.offload.file),
        setup_offload: offload(args.offload.setup),
        teardown_offload: one_queue(args.queues).and_then(|()| offload(args.offload.teardown)),
        quic_offload: offload(args.offload.quic),
        nvme_tcp_offload: offload(args.offload.nvme),
        // The device cuts datagrams, whatever else it does of QUIC.
        udp_segmentation: true,
        splice_offload: one_queue(args.queues).and_then(|()| offload(args.offload.splice)),
        ..host::Config::default()
    };
    config.tcp.algorithm = match args.congestion {
        CongestionArg::Cubic => Algorithm::Cubic,
        CongestionArg::Newreno => Algorithm::NewReno,
    };
    config.tcp.defer = args.tcp_defer == SwitchArg::On;
    config.tcp.hystart = args.tcp_hystart == SwitchArg::On;
    config
}
