//! `outboard serve`: puts disk, device, host and content server together, and runs them until a
//! signal.
//!
//! The threads are [`crate::stack`]'s. This thread opens what they need, then waits for a signal.

use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use abi::quic::Steering;
use apps::content::{self, ContentServer, ErrorPage};
use base::{Duration, Instant};
use host::{Application, Host, Listen, Notice, TlsServer};
use io::clock::{self, Clock};
use io::disk::{ChangeRule, Disk, DiskKind};
use io::watch::{Stale, Watch};
use io::wire::Wire;
use nic::{Device, FileConfig, L5oConfig, QuicConfig};
use signal_hook::consts::{SIGHUP, SIGUSR1};

use crate::args::{DiskArg, ErrorPageArg, OffloadArg, ServeArgs};
use crate::control::{self, Control};
use crate::stack::{self, BACKLOG, DeviceSide, HostSide, Threads, drain};
use crate::tls;
use cli::Failure;

/// What a server is told.
pub(crate) enum Order {
    /// To answer errors with these pages from now on.
    SetErrorPages(Vec<ErrorPage>),
    /// To accept no connection from now on.
    Drain,
}

/// The content server, and the watch over what it serves.
struct Site {
    server: ContentServer,
    watch: Option<Watch>,
}

impl Site {
    fn new(args: &ServeArgs, content: content::Config, host: &mut Host) -> Result<Self, Failure> {
        let server = ContentServer::new(content, host)
            .map_err(|e| Failure::Unavailable(format!("{e}: choose another with --port")))?;
        Ok(Self { server, watch: watch(args) })
    }
}

impl Application for Site {
    fn note_open(&mut self, path: &[u8]) {
        if let Some(watch) = &mut self.watch {
            watch.add(path);
        }
    }

    fn begin_turn(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        while let Some(stale) = watch.poll() {
            match stale {
                Stale::Path(path) => self.server.expire(Some(&path)),
                Stale::All => {
                    self.server.expire(None);
                    // It covers all events so far; more may come as fast as they are read.
                    break;
                }
            }
        }
    }

    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        self.server.handle_notice(now, host, notice);
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.server.handle_timeout(now, host);
    }

    fn drain(&mut self, now: Instant, host: &mut Host) {
        self.server.drain(now, host);
    }

    fn end(&mut self, now: Instant, host: &mut Host) {
        self.server.end(now, host);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.server.poll_timeout()
    }

    fn poll_log(&mut self) -> Option<String> {
        self.server.poll_log()
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.server.visit(f);
        if let Some(watch) = &self.watch {
            watch.visit(f);
        }
    }
}

fn handle_order(site: &mut Site, now: Instant, host: &mut Host, order: Order) {
    match order {
        Order::SetErrorPages(pages) => site.server.set_error_pages(&pages),
        Order::Drain => site.drain(now, host),
    }
}

/// Runs `outboard serve`.
///
/// # Errors
/// What could not be opened, bound or started, and what to do about it.
pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    // Before anything is opened, so that no signal is lost.
    let signals = drain::signals()?;
    let clock = Clock::new();
    let control = Control::bind(&control::path(args.stack.control.as_deref(), &args.stack.wire))?;
    check_folder(args)?;
    let error_pages = read_error_pages(args)?;
    check_qlog(args)?;
    let certificates =
        args.tls.then(|| tls::Certificates::load(&args.cert, &args.stack.addr)).transpose()?;
    let tls = certificates.as_ref().map(tls::https).transpose()?;
    let quic = certificates.as_ref().filter(|_| args.http3).map(tls::quic).transpose()?;
    let wires = stack::open_wires(&args.stack, &clock)?;
    let queues = wires.len();
    let mesh = stack::mesh(queues)?;
    // One for all devices: whichever of them receives a packet, its flow belongs to the same host.
    let rss_seed = clock::entropy();
    let (quic_seed, steering) = (entropy32(), quic_steering(args, queues));
    let (mut threads, mut orders) = (Threads::default(), Vec::new());
    for (index, (wire, queue)) in wires.into_iter().zip(mesh).enumerate() {
        let device = new_device(args, (queues, rss_seed, steering), wire.as_ref());
        let capabilities = device.capabilities();
        let config = stack::host_config(&args.stack, index);
        let mut host = Host::new(config, &capabilities, clock::entropy());
        let http3 =
            quic.as_ref().map(|tls| quic_config(args, &clock, tls, (quic_seed, steering, index)));
        let error_pages = error_pages.clone();
        let content = content_config(args, &clock, tls.clone());
        let content = content::Config { http3, error_pages, ..content };
        let app = Site::new(args, content, &mut host)?;
        let wake_on = app.watch.as_ref().map(Watch::pollable);
        let (order, messages) = channel();
        orders.push(order);
        let host_side = HostSide {
            disk: open_disk(args)?,
            log: stack::open_log(args.stack.access_log.as_deref(), index)?,
            list_connections: |site: &Site, f| site.server.quic_connections().for_each(f),
            wake_on,
            ..HostSide::new(host, app, (messages, handle_order))
        };
        let device_side = DeviceSide { device, wire, disk: open_disk(args)? };
        threads.start(&args.stack, clock, queue, device_side, host_side)?;
    }
    if let Some(addr) = args.stack.metrics {
        control::metrics::start(addr, threads.probes().to_vec())?;
    }
    let _socket_file = control.start(threads.probes().to_vec())?;
    announce(args, certificates.as_deref());
    let has_pages = !args.error_page.is_empty();
    let has_input = certificates.is_some() || has_pages || args.stack.has_log_file();
    for signal in &signals {
        match signal {
            SIGUSR1 => threads.reopen_logs(),
            SIGHUP if has_input => {
                reload_error_pages(args, &orders);
                // Wakes the threads, too.
                threads.reopen_logs();
                certificates.iter().for_each(|certificates| certificates.reload(&args.cert));
            }
            // A terminal that closes ends it, where there is nothing to read again.
            _ => break,
        }
    }
    // They end only with us.
    orders.iter().for_each(|order| drop(order.send(Order::Drain)));
    drain::wait(&signals, &clock, args.stack.drain(), &threads);
    threads.stop()
}

/// Fails before anything is made if the folder cannot be served.
fn check_folder(args: &ServeArgs) -> Result<(), Failure> {
    drop(open_disk(args)?);
    if let Some(why) = io::disk::weak_time_stamps(&args.dir) {
        eprintln!("outboard: {}: {why}; a change may be sent as right", args.dir.display());
    }
    Ok(())
}

/// The line that says that we are ready, and one to try.
fn announce(args: &ServeArgs, certificates: Option<&tls::Certificates>) {
    let (scheme, usual) = if args.tls { ("https", 443) } else { ("http", 80) };
    let port = if args.port() == usual { String::new() } else { format!(":{}", args.port()) };
    let mut out = std::io::stdout().lock();
    for cidr in &args.stack.addr {
        let url = match cidr.addr {
            IpAddr::V4(v4) => format!("{scheme}://{v4}{port}/"),
            IpAddr::V6(v6) => format!("{scheme}://[{v6}]{port}/"),
        };
        let _ = writeln!(out, "serving {url} from {}", args.dir.display());
    }
    if let Some(port) = args.cleartext_port() {
        let what = if args.redirect_http.is_some() { "redirects to HTTPS" } else { "the same" };
        let _ = writeln!(out, "plain HTTP at port {port}: {what}");
    }
    if let Some(first) = args.stack.addr.first() {
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

/// Reads the pages for errors, which are sent from memory.
fn read_error_pages(args: &ServeArgs) -> Result<Vec<ErrorPage>, Failure> {
    let read = |page: &ErrorPageArg| {
        let ErrorPageArg { status, file } = page;
        let content = std::fs::read(file)
            .map_err(|e| Failure::NoInput(format!("--error-page {}: {e}", file.display())))?;
        let name = file.to_string_lossy().into_owned();
        Ok(ErrorPage { status: *status, name, content: content.into() })
    };
    for (index, page) in args.error_page.iter().enumerate() {
        if args.error_page.iter().take(index).any(|other| other.status == page.status) {
            let line = format!("--error-page: {} is given twice", page.status);
            return Err(Failure::Usage(line));
        }
    }
    args.error_page.iter().map(read).collect()
}

/// Reads the pages again; if one of them cannot be read the old ones stay, all of them.
fn reload_error_pages(args: &ServeArgs, orders: &[Sender<Order>]) {
    match read_error_pages(args) {
        // The threads end only with us.
        Ok(pages) => {
            orders.iter().for_each(|order| drop(order.send(Order::SetErrorPages(pages.clone()))));
        }
        Err(why) => eprintln!("outboard: SIGHUP: {why}; the old pages stay"),
    }
}

fn open_disk(args: &ServeArgs) -> Result<Box<dyn Disk>, Failure> {
    let kind = match args.disk {
        DiskArg::Auto => DiskKind::Auto,
        DiskArg::Uring => DiskKind::Uring,
        DiskArg::Threads => DiskKind::Threads,
    };
    let rule = if args.strict_files { ChangeRule::Strict } else { ChangeRule::Content };
    io::disk::open_disk_with(&args.dir, kind, rule).map_err(|e| Failure::NoInput(e.to_string()))
}

/// The watch over the folder. Without one what changes is seen a second later at the most.
fn watch(args: &ServeArgs) -> Option<Watch> {
    let why =
        |error| eprintln!("outboard: changes of files are seen up to a second late ({error})");
    Watch::new(&args.dir).map_err(why).ok()
}

fn new_device(
    args: &ServeArgs,
    (queues, rss_seed, steering): (usize, u64, Option<Steering>),
    wire: &dyn Wire,
) -> Device {
    let mut config = stack::device_config(&args.stack, queues, rss_seed, wire);
    let OffloadArg { file, tls_tx, tls_rx, quic, .. } = args.stack.offload;
    config.file = file.then(|| FileConfig {
        memory_bytes_max: (args.file_memory as usize) << 20,
        ..FileConfig::default()
    });
    config.l5o = (args.tls && (tls_tx || tls_rx)).then(|| L5oConfig {
        tls_tx,
        tls_rx,
        ..L5oConfig::new(Arc::new(crypto::Provider))
    });
    config.quic = (args.http3 && quic).then(|| QuicConfig::new(Arc::new(crypto::Provider)));
    config.quic_steering = steering;
    Device::new(config, wire.capabilities())
}

/// A seed of 32 bytes from the operating system.
fn entropy32() -> [u8; 32] {
    let words = [(); 4].map(|()| clock::entropy().to_le_bytes());
    let mut seed = [0; 32];
    for (to, from) in seed.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&from);
    }
    seed
}

/// The steering of datagrams of QUIC, if there are several queues.
fn quic_steering(args: &ServeArgs, queues: usize) -> Option<Steering> {
    let queues = u32::try_from(queues).ok().filter(|queues| args.http3 && *queues > 1)?;
    Some(Steering { port: args.port(), id_bytes: quic::CID_BYTES, key: clock::entropy(), queues })
}

/// Opens a file for each connection's qlog, named as other servers name theirs: by the connection
/// ID that the client chose first. Where that fails the connection has no log.
fn qlog_files(folder: PathBuf) -> quic::OpenQlog {
    Arc::new(move |id, side| {
        let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let side = if side.is_server() { "server" } else { "client" };
        let file = create_new(&folder.join(format!("{id}_{side}.sqlog"))).ok()?;
        Some(Box::new(std::io::BufWriter::new(file)) as quic::QlogWriter)
    })
}

/// Creates a file, never in the place of one that exists: the peer chooses a log's name, and a link
/// of that name could lead anywhere.
fn create_new(path: &Path) -> std::io::Result<std::fs::File> {
    std::fs::OpenOptions::new().write(true).create_new(true).open(path)
}

/// Says so at once if no qlog can be written to the folder.
fn check_qlog(args: &ServeArgs) -> Result<(), Failure> {
    let Some(folder) = &args.qlog else { return Ok(()) };
    let failed = |why: &dyn std::fmt::Display| {
        Failure::NoInput(format!("cannot write --qlog {}: {why}", folder.display()))
    };
    let probe = folder.join(format!(".outboard-{}", std::process::id()));
    create_new(&probe).map_err(|e| failed(&e))?;
    std::fs::remove_file(&probe).map_err(|e| failed(&e))
}

fn quic_config(
    args: &ServeArgs,
    clock: &Clock,
    tls: &Arc<rustls::ServerConfig>,
    (seed, steering, queue): ([u8; 32], Option<Steering>, usize),
) -> quic::Config {
    quic::Config {
        port: args.port(),
        tls: Some(Arc::clone(tls)),
        unix_epoch: clock.unix_epoch(),
        steering: steering.map(|steering| (steering, queue)),
        qlog: args.qlog.clone().map(qlog_files),
        idle_timeout: Duration::from_secs(args.keepalive_timeout.into()),
        ..quic::Config::new(Arc::new(crypto::Provider), clock::std_epoch(), seed)
    }
}

const fn listen(port: u16) -> Listen {
    Listen { addr: None, port, backlog: BACKLOG }
}

fn content_config(args: &ServeArgs, clock: &Clock, tls: Option<TlsServer>) -> content::Config {
    content::Config {
        listen: vec![listen(args.port())],
        cleartext: args.cleartext_port().map(listen).into_iter().collect(),
        redirect: args.redirect_http.map(|_| args.port()),
        tls,
        set_up: args.stack.offload.setup,
        tear_down: args.stack.offload.teardown && args.stack.queues == 1,
        unix_epoch: clock.unix_epoch(),
        seed: clock::entropy(),
        header_timeout: Duration::from_secs(args.header_timeout.into()),
        keepalive_timeout: Duration::from_secs(args.keepalive_timeout.into()),
        access_log: args.stack.access_log.is_some(),
        headers: args.header.clone(),
        cache_control: args.cache_control.clone(),
        precompressed: args.precompressed,
        ..content::Config::default()
    }
}
