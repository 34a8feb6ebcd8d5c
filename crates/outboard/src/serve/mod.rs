//! `outboard serve`: puts wire, device, host and application together, and runs them until a
//! signal.
//!
//! For each queue there is a host thread ([`host_thread`]) and a device thread ([`device_thread`]),
//! joined by rings ([`queue`]). This thread opens what they need, then waits for a signal; the
//! control socket and the metrics have threads of their own ([`crate::control`]).

mod device_thread;
mod host_thread;
mod queue;
mod shared_thread;
mod tls;

use std::io::Write as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use abi::Refusal;
use apps::content::{self, ContentServer};
use base::Duration;
use host::{Algorithm, Cidr, Host, Listen, TlsServer};
use io::clock::{self, Clock};
use io::disk::{Disk, DiskKind};
use io::fault::{FaultConfig, FaultWire};
use io::pcap::PcapWire;
use io::tap::{IpPrefix, Tap, TapConfig, TapError};
use io::wire::Wire;
use nic::{Device, DeviceConfig, FileConfig, L5oConfig};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::{CongestionArg, DiskArg, OffloadArg, ServeArgs, ThreadsArg, WireArg};
use crate::control::{self, Control};
use crate::error::Failure;
use device_thread::DeviceThread;
use host_thread::HostThread;
use shared_thread::SharedThread;

/// Half-open and unaccepted connections that a port may have.
const BACKLOG: usize = 4096;

/// Runs `outboard serve`.
///
/// # Errors
/// What could not be opened, bound or started, and what to do about it.
pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    // Before anything is opened, so that no signal is lost.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|e| Failure::System(format!("cannot handle signals: {e}")))?;
    let clock = Clock::new();
    let control = Control::bind(&control::path(args.control.as_deref(), &args.wire))?;
    // A folder that cannot be served is said so before anything is made.
    drop(open_disk(args)?);
    let certificates = args.tls.then(|| tls::Certificates::load(args)).transpose()?;
    let tls = certificates.as_ref().map(tls::server).transpose()?;
    let wires = open_wires(args, &clock)?;
    let queues = wires.len();
    let mesh = queue::mesh(queues)?;
    let stop = Arc::new(AtomicBool::new(false));
    // One for all devices: whichever of them receives a packet, its flow belongs to the same host.
    let rss_seed = clock::entropy();
    let mut threads = Vec::new();
    let mut probes = Vec::new();
    for (index, (wire, queue)) in wires.into_iter().zip(mesh).enumerate() {
        let device = new_device(args, queues, rss_seed, wire.as_ref());
        let capabilities = device.capabilities();
        let mut host = Host::new(host_config(args, index), &capabilities, clock::entropy());
        let app = ContentServer::new(content_config(args, &clock, tls.clone()), &mut host)
            .map_err(|e| Failure::Unavailable(format!("{e}: choose another with --port")))?;
        // The device's disk, and one for the host where it has to read files itself.
        let disks = (open_disk(args)?, open_disk(args)?);
        let log = open_log(args, index)?;
        let bells = (queue.device.bell.notifier(), queue.host.bell.notifier());
        let (device_probe, device_queries) = control::probe("nic", index, bells.0);
        let (host_probe, host_queries) = control::probe("host", index, bells.1);
        probes.extend([device_probe, host_probe]);
        let device_thread =
            DeviceThread::new(clock, device, wire, disks.0, queue.device, device_queries);
        let host_thread = HostThread::new(clock, host, app, disks.1, queue.host, host_queries, log);
        let (stop_device, stop_host) = (Arc::clone(&stop), Arc::clone(&stop));
        if share_thread(args.threads) {
            let both = SharedThread::new(device_thread, host_thread);
            threads.push(spawn(format!("both{index}"), move || both.run(&stop_device))?);
        } else {
            threads.push(spawn(format!("nic{index}"), move || device_thread.run(&stop_device))?);
            threads.push(spawn(format!("host{index}"), move || host_thread.run(&stop_host))?);
        }
    }
    if let Some(addr) = args.metrics {
        control::metrics::start(addr, probes.clone())?;
    }
    let wakers = probes.clone();
    let _socket_file = control.start(probes)?;
    announce(args, certificates.as_deref());
    for signal in signals.forever() {
        match (signal, &certificates) {
            (SIGHUP, Some(certificates)) => certificates.reload(args),
            // A terminal that closes ends it, where there is nothing to read again.
            _ => break,
        }
    }
    stop.store(true, Ordering::Release);
    wakers.iter().for_each(control::Probe::wake);
    join(threads)
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

fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Failure> {
    std::thread::Builder::new()
        .name(name)
        .spawn(work)
        .map_err(|e| Failure::System(format!("cannot start a thread: {e}")))
}

fn join(threads: Vec<JoinHandle<()>>) -> Result<(), Failure> {
    let panicked = threads.into_iter().filter_map(|t| t.join().err()).count();
    if panicked == 0 {
        Ok(())
    } else {
        Err(Failure::System("a thread panicked: please report what it printed".to_owned()))
    }
}

/// The line that says that we are ready, and one to try.
fn announce(args: &ServeArgs, certificates: Option<&tls::Certificates>) {
    let (scheme, usual) = if args.tls { ("https", 443) } else { ("http", 80) };
    let port = if args.port() == usual { String::new() } else { format!(":{}", args.port()) };
    let mut out = std::io::stdout().lock();
    for cidr in &args.addr {
        let url = match cidr.addr {
            IpAddr::V4(v4) => format!("{scheme}://{v4}{port}/"),
            IpAddr::V6(v6) => format!("{scheme}://[{v6}]{port}/"),
        };
        let _ = writeln!(out, "serving {url} from {}", args.dir.display());
    }
    if let Some(first) = args.addr.first() {
        let host = match first.addr {
            IpAddr::V4(v4) => v4.to_string(),
            IpAddr::V6(v6) => format!("[{v6}]"),
        };
        // A certificate that was made is signed by nobody.
        let made = certificates.and_then(tls::Certificates::made_fingerprint);
        let insecure = if made.is_some() { " --insecure" } else { "" };
        if let Some(fingerprint) = made {
            let _ = writeln!(out, "certificate for development, SHA-256 {fingerprint}");
        }
        let _ = writeln!(out, "try: curl -v{insecure} {scheme}://{host}{port}/");
    }
    // Nobody reading is no reason to stop.
    let _ = out.flush();
}

fn open_wires(args: &ServeArgs, clock: &Clock) -> Result<Vec<Box<dyn Wire>>, Failure> {
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

fn open_disk(args: &ServeArgs) -> Result<Box<dyn Disk>, Failure> {
    let kind = match args.disk {
        DiskArg::Auto => DiskKind::Auto,
        DiskArg::Uring => DiskKind::Uring,
        DiskArg::Threads => DiskKind::Threads,
    };
    io::disk::open_disk(&args.dir, kind).map_err(|e| Failure::NoInput(e.to_string()))
}

fn open_log(
    args: &ServeArgs,
    index: usize,
) -> Result<Option<Box<dyn std::io::Write + Send>>, Failure> {
    let Some(path) = &args.access_log else { return Ok(None) };
    if path.as_os_str() == "-" {
        return Ok(Some(Box::new(std::io::stdout())));
    }
    let mut path = path.clone();
    if index > 0 {
        path.as_mut_os_string().push(format!(".{index}"));
    }
    let file = std::fs::OpenOptions::new().create(true).append(true).open(&path).map_err(|e| {
        Failure::NoInput(format!("cannot write --access-log {}: {e}", path.display()))
    })?;
    Ok(Some(Box::new(std::io::BufWriter::new(file))))
}

/// Most bytes in one operation of the host: four of the longest frames that most wires take, and
/// the disk's longest read with a response's head before it.
pub(crate) const TRANSMIT_BYTES_MAX: u32 = (256 + 8) * 1024;

fn new_device(args: &ServeArgs, queues: usize, rss_seed: u64, wire: &dyn Wire) -> Device {
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
    config.transmit_bytes_max = TRANSMIT_BYTES_MAX;
    if wire.capabilities().segmentation {
        config.run_bytes_max = io::tap::run_bytes_max();
    }
    config.rss_seed = rss_seed;
    config.file = args.offload.file.then(|| FileConfig {
        memory_bytes_max: (args.file_memory as usize) << 20,
        ..FileConfig::default()
    });
    let OffloadArg { tls_tx, tls_rx, .. } = args.offload;
    config.l5o = (args.tls && (tls_tx || tls_rx)).then(|| L5oConfig {
        tls_tx,
        tls_rx,
        ..L5oConfig::new(Arc::new(crypto::Provider))
    });
    Device::new(config, wire.capabilities())
}

fn host_config(args: &ServeArgs, index: usize) -> host::Config {
    let OffloadArg { file, .. } = args.offload;
    let mut config = host::Config {
        addrs: args.addr.iter().map(|c| Cidr { addr: c.addr, prefix_len: c.prefix_len }).collect(),
        gateways: args.gateway.clone(),
        answers: index == 0,
        file_offload: if file { Ok(()) } else { Err(Refusal::Disabled) },
        ..host::Config::default()
    };
    config.tcp.algorithm = match args.congestion {
        CongestionArg::Cubic => Algorithm::Cubic,
        CongestionArg::Newreno => Algorithm::NewReno,
    };
    config
}

fn content_config(args: &ServeArgs, clock: &Clock, tls: Option<TlsServer>) -> content::Config {
    content::Config {
        listen: vec![Listen { addr: None, port: args.port(), backlog: BACKLOG }],
        tls,
        unix_epoch: clock.unix_epoch(),
        seed: clock::entropy(),
        header_timeout: Duration::from_secs(args.header_timeout.into()),
        keepalive_timeout: Duration::from_secs(args.keepalive_timeout.into()),
        access_log: args.access_log.is_some(),
        ..content::Config::default()
    }
}
