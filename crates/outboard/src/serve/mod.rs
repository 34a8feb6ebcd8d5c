//! `outboard serve`: a stack ([`stack::Stack`]) with the content server as its application.

mod remote;
mod uploads;

use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use abi::quic::QuicSteering;
use apps::content::{self, ContentServer, ErrorPage};
use apps::pattern_rules::PatternRules;
use apps::remote::{RemoteContentServer, RemoteFilesConfig};
use base::{Duration, Instant};
use host::{
    Application, ContentSource, Host, HostConfig, ListenConfig, Notice, SocketId, TlsServer,
};
use io::clock::{self, MonotonicClock};
use io::disk::{ChangeRule, Disk, UploadDirectory};
use io::watch::{FileWatch, StaleFile};
use io::xdp::ListenerPorts;
use nic::{DeviceConfig, L5oConfig, QuicConfig};
use stack::{BACKLOG, Offloads, QueueSetup, Signals, Stack, StackOptions};

use crate::alarms::is_alarm;
use crate::args::{ErrorPageArg, ServeArgs};
use crate::pattern_file::PatternFile;
use crate::tls;
use cli::Failure;

/// The content server and the source of its files.
enum ServedSite {
    /// A directory, with a watch on its files if there is one.
    Directory(Box<ContentServer>, Option<FileWatch>),
    /// Namespaces.
    Remote(Box<RemoteContentServer>, RemoteFilesConfig),
}

/// A change of the running servers.
#[derive(Clone)]
enum ServeOrder {
    SetErrorPages(Vec<ErrorPage>),
    SetPatternRules(Arc<PatternRules>),
}

impl ServedSite {
    fn new(
        args: &ServeArgs,
        content: content::ContentServerConfig,
        remote: Option<RemoteFilesConfig>,
        now: Instant,
        host: &mut Host,
    ) -> Result<Self, Failure> {
        let failed = |e: content::ContentServerError| {
            Failure::Unavailable(format!("{e}; choose another port with --port"))
        };
        Ok(match remote {
            None => {
                let server = ContentServer::new(content, host).map_err(failed)?;
                Self::Directory(Box::new(server), watch(args))
            }
            Some(config) => {
                let server = RemoteContentServer::new(config.clone(), content, now, host);
                Self::Remote(Box::new(server.map_err(failed)?), config)
            }
        })
    }

    const fn server(&self) -> &ContentServer {
        match self {
            Self::Directory(server, _) => server,
            Self::Remote(remote, _) => &remote.server,
        }
    }

    const fn server_mut(&mut self) -> &mut ContentServer {
        match self {
            Self::Directory(server, _) => server,
            Self::Remote(remote, _) => &mut remote.server,
        }
    }

    fn watch(&self) -> Option<&FileWatch> {
        match self {
            Self::Directory(_, watch) => watch.as_ref(),
            Self::Remote(..) => None,
        }
    }

    fn application(&self) -> &dyn Application {
        match self {
            Self::Directory(server, _) => &**server,
            Self::Remote(remote, _) => &**remote,
        }
    }

    fn application_mut(&mut self) -> &mut dyn Application {
        match self {
            Self::Directory(server, _) => &mut **server,
            Self::Remote(remote, _) => &mut **remote,
        }
    }
}

impl Application for ServedSite {
    fn note_open(&mut self, path: &[u8]) {
        if let Self::Directory(_, Some(watch)) = self {
            watch.add(path);
        }
    }

    fn begin_turn(&mut self) {
        let Self::Directory(server, Some(watch)) = self else { return };
        while let Some(stale) = watch.poll() {
            match stale {
                StaleFile::Path(path) => server.expire(Some(&path)),
                StaleFile::All => {
                    server.expire(None);
                    // It covers all events so far. More may arrive as fast as they are read, so
                    // stop here.
                    break;
                }
            }
        }
    }

    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        self.application_mut().handle_notice(now, host, notice);
    }

    fn give_up(&mut self, socket: SocketId) -> bool {
        self.application_mut().give_up(socket)
    }

    fn advance(&mut self, now: Instant, host: &mut Host) -> bool {
        let worked = self.application_mut().advance(now, host);
        if let Self::Remote(remote, config) = self {
            remote::report_events(remote, config);
        }
        worked
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.application_mut().handle_timeout(now, host);
    }

    fn drain(&mut self, now: Instant, host: &mut Host) {
        self.application_mut().drain(now, host);
    }

    fn end(&mut self, now: Instant, host: &mut Host) {
        self.application_mut().end(now, host);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.application().poll_timeout()
    }

    fn poll_log(&mut self) -> Option<String> {
        self.application_mut().poll_log()
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.application().visit(f);
        if let Some(watch) = self.watch() {
            watch.visit(f);
        }
    }
}

/// Runs `outboard serve`.
///
/// # Errors
/// Fails if a file, address or thread is not available; the message says what to do.
pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let remote = remote_files(args)?;
    let mut args = args.clone();
    args.stack.confinement = args.confinement.begin(&args.confined_files(remote.is_some()))?;
    let signals = Signals::take()?;
    let network = args.stack.wait_for_addrs(&signals)?;
    let args = &args;
    let error_pages = read_error_pages(args)?;
    check_qlog(args)?;
    let uploads = uploads::open(args, remote.is_some())?;
    let mut patterns = PatternFile::of_option(args.deny_patterns.as_ref());
    let rules = patterns.as_mut().map(PatternFile::read).transpose()?;
    let certificates = args
        .tls
        .then(|| tls::ServerCertificates::load(&args.cert, &args.stack.addrs()))
        .transpose()?;
    let tls = certificates.as_ref().map(tls::https).transpose()?;
    let quic = certificates.as_ref().filter(|_| args.http3).map(tls::quic).transpose()?;
    let (quic_seed, steering) = (crate::entropy::entropy32(), quic_steering(args));
    let site = |queue: QueueSetup<'_>| {
        let http3 = quic.as_ref().map(|tls| quic_config(args, &queue, tls, (quic_seed, steering)));
        let error_pages = error_pages.clone();
        let content = content_config(args, &queue.clock, tls.clone());
        // Open files are not trusted for longer than the metadata that they are from.
        let validity = remote.as_ref().map_or(content.file_validity, |remote| remote.validity);
        let content = content::ContentServerConfig {
            http3,
            error_pages,
            pattern_rules: rules.clone(),
            file_validity: content.file_validity.min(validity),
            uploads: uploads.as_ref().map(|(_, config)| config.clone()),
            ..content
        };
        let now = queue.clock.now();
        ServedSite::new(args, content, remote.clone(), now, queue.host)
    };
    let is_remote = remote.is_some();
    let stack = Stack::builder()
        .options(StackOptions { listen_ports: listen_ports(args), ..args.stack.clone() })
        .network(network)
        .configure(|_, device, host| {
            args.files.configure_host(host);
            configure(args, steering, device);
            if is_remote {
                configure_remote(args, device, host);
            }
        })
        .root(args.dir())
        .disk(|| open_disk(args, is_remote, uploads.as_ref().map(|(directory, _)| directory)))
        .application(site)
        .messages(|site: &mut ServedSite, _, _, order| match order {
            ServeOrder::SetErrorPages(pages) => site.server_mut().set_error_pages(&pages),
            ServeOrder::SetPatternRules(rules) => site.server_mut().set_pattern_rules(rules),
        })
        .pollable(|site| site.watch().map(FileWatch::pollable))
        .quic_connections(|site, f| site.server().quic_connections().for_each(f))
        .alarms(is_alarm)
        .start()?;
    announce(args, certificates.as_deref());
    let has_input = certificates.is_some() || !args.error_page.is_empty() || patterns.is_some();
    let mut reload = |stack: &Stack<ServeOrder>| {
        reload_error_pages(args, stack);
        patterns.iter_mut().for_each(|file| {
            file.reload(|rules| order(stack, &ServeOrder::SetPatternRules(rules)));
        });
        certificates.iter().for_each(|certificates| certificates.reload(&args.cert));
    };
    stack.run(signals, has_input.then_some(&mut reload))
}

/// Opens the disk of a device or a host: none if the files are on namespaces.
fn open_disk(
    args: &ServeArgs,
    is_remote: bool,
    uploads: Option<&Arc<UploadDirectory>>,
) -> Result<Box<dyn Disk>, Failure> {
    match uploads {
        _ if is_remote => Ok(stack::no_disk()),
        Some(directory) => {
            args.files.open_disk_for_uploads(args.dir(), rule(args), Arc::clone(directory))
        }
        None => args.files.open_disk(args.dir(), rule(args)),
    }
}

fn listen_ports(args: &ServeArgs) -> ListenerPorts {
    ListenerPorts::new(args.cleartext_port().into_iter().chain([args.port()]))
}

/// Returns the namespaces to serve; `None` for a directory. Fails if the sources cannot be served,
/// before anything is created.
fn remote_files(args: &ServeArgs) -> Result<Option<RemoteFilesConfig>, Failure> {
    let Some(mut config) = remote::volumes(&args.sources)? else {
        args.remote.check_absent()?;
        check_folder(args)?;
        return Ok(None);
    };
    args.files.check_absent()?;
    args.remote.configure(args.strict_files, &mut config);
    Ok(Some(config))
}

/// Fails if the directory cannot be served, before anything is created.
fn check_folder(args: &ServeArgs) -> Result<(), Failure> {
    drop(args.files.open_disk(args.dir(), rule(args))?);
    if let Some(why) = io::disk::unreliable_metadata_reason(args.dir()) {
        eprintln!(
            "outboard: warning: {}: {why}, so modified files may be sent as unchanged",
            args.dir().display()
        );
    }
    Ok(())
}

/// Prints that the server is ready, with its URLs and a command to try.
fn announce(args: &ServeArgs, certificates: Option<&tls::ServerCertificates>) {
    let (scheme, usual) = if args.tls { ("https", 443) } else { ("http", 80) };
    let port = if args.port() == usual { String::new() } else { format!(":{}", args.port()) };
    let mut out = std::io::stdout().lock();
    for cidr in args.stack.addrs() {
        let url = match cidr.addr {
            IpAddr::V4(v4) => format!("{scheme}://{v4}{port}/"),
            IpAddr::V6(v6) => format!("{scheme}://[{v6}]{port}/"),
        };
        let _ = writeln!(out, "serving {url} from {}", args.dir().display());
    }
    if let Some(port) = args.cleartext_port() {
        let what =
            if args.redirect_http.is_some() { "redirecting to HTTPS" } else { "same content" };
        let _ = writeln!(out, "plain HTTP on port {port}: {what}");
    }
    if let Some(dir) = &args.uploads.upload_dir {
        let _ = writeln!(out, "uploads go to {}", dir.display());
    }
    if let Some(first) = args.stack.addrs().first() {
        let host = match first.addr {
            IpAddr::V4(v4) => v4.to_string(),
            IpAddr::V6(v6) => format!("[{v6}]"),
        };
        // A created certificate is self-signed.
        let made = certificates.and_then(tls::ServerCertificates::self_signed_fingerprint);
        let insecure = if made.is_some() { " --insecure" } else { "" };
        if let Some(fingerprint) = made {
            let _ = writeln!(out, "self-signed certificate, SHA-256 fingerprint {fingerprint}");
        }
        let _ = writeln!(out, "try: curl -v{insecure} {scheme}://{host}{port}/");
    }
    // A closed standard output is no reason to stop.
    let _ = out.flush();
}

/// Reads the error pages, which are sent from memory.
fn read_error_pages(args: &ServeArgs) -> Result<Vec<ErrorPage>, Failure> {
    let read = |page: &ErrorPageArg| {
        let ErrorPageArg { status, file } = page;
        let content = std::fs::read(file).map_err(|e| {
            Failure::NoInput(format!("cannot read --error-page {}: {e}", file.display()))
        })?;
        let name = file.to_string_lossy().into_owned();
        Ok(ErrorPage { status: *status, name, content: content.into() })
    };
    for (index, page) in args.error_page.iter().enumerate() {
        if args.error_page.iter().take(index).any(|other| other.status == page.status) {
            let line = format!("--error-page: duplicate status {}", page.status);
            return Err(Failure::Usage(line));
        }
    }
    args.error_page.iter().map(read).collect()
}

/// Sends an order to the servers of all queues.
fn order(stack: &Stack<ServeOrder>, order: &ServeOrder) {
    stack.senders().iter().for_each(|sender| sender.send(order.clone()));
}

/// Reads the error pages again. If one cannot be read, all old ones stay in use.
fn reload_error_pages(args: &ServeArgs, stack: &Stack<ServeOrder>) {
    match read_error_pages(args) {
        Ok(pages) => order(stack, &ServeOrder::SetErrorPages(pages)),
        Err(why) => eprintln!("outboard: SIGHUP: {why}; keeping the old error pages"),
    }
}

const fn rule(args: &ServeArgs) -> ChangeRule {
    if args.strict_files { ChangeRule::Strict } else { ChangeRule::Content }
}

/// Starts watching the directory. Without a watch, changes are seen up to a second late.
fn watch(args: &ServeArgs) -> Option<FileWatch> {
    let why = |error| {
        eprintln!("outboard: cannot watch files, changes take up to 1 s to be seen: {error}")
    };
    FileWatch::new(args.dir()).map_err(why).ok()
}

/// Enables the engines that the device may use.
fn configure(args: &ServeArgs, steering: Option<QuicSteering>, device: &mut DeviceConfig) {
    let Offloads { tls_tx, tls_rx, quic, inspect, .. } = args.stack.offload;
    let (tls_tx, tls_rx) = (args.tls && tls_tx, args.tls && tls_rx);
    let inspect = args.deny_patterns.is_some() && inspect;
    device.file = args.stack.offload.file.then(|| args.files.config());
    device.l5o = (tls_tx || tls_rx || inspect).then(|| L5oConfig {
        tls_tx,
        tls_rx,
        inspect,
        ..L5oConfig::new(Arc::new(crypto::Provider))
    });
    device.quic = (args.http3 && quic).then(|| QuicConfig::new(Arc::new(crypto::Provider)));
    device.quic_steering = steering;
    device.splice = None;
}

/// Lets the application provide the content, and the device place what the initiators read.
fn configure_remote(args: &ServeArgs, device: &mut DeviceConfig, host: &mut HostConfig) {
    host.content = ContentSource::Application;
    device.file = None;
    // The namespaces' connections may use TLS, too.
    let storage = crate::nvme::l5o_config(args.stack.offload, true, false);
    let inspect = device.l5o.as_ref().is_some_and(|l5o| l5o.inspect);
    device.l5o = match storage {
        Some(storage) => Some(L5oConfig { inspect, ..storage }),
        None => device.l5o.take(),
    };
}

/// Returns how QUIC datagrams are steered to queues, `None` if there is one queue.
fn quic_steering(args: &ServeArgs) -> Option<QuicSteering> {
    let queues = u32::from(args.stack.queues);
    if !args.http3 || queues == 1 {
        return None;
    }
    let (port, id_bytes, key) = (args.port(), quic::CID_BYTES, clock::entropy());
    Some(QuicSteering { port, id_bytes, key, queues })
}

/// Returns a function that creates the qlog file of a connection, named by the original destination
/// connection ID as other servers do. A connection whose file cannot be created has no log.
fn qlog_files(folder: PathBuf) -> quic::OpenQlog {
    Arc::new(move |id, side| {
        let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let side = if side.is_server() { "server" } else { "client" };
        let file = create_new(&folder.join(format!("{id}_{side}.sqlog"))).ok()?;
        Some(Box::new(std::io::BufWriter::new(file)) as quic::QlogWriter)
    })
}

/// Creates a file, and fails if it exists: the peer chooses a log's name, and a symbolic link of
/// that name could lead anywhere.
fn create_new(path: &Path) -> std::io::Result<std::fs::File> {
    std::fs::OpenOptions::new().write(true).create_new(true).open(path)
}

/// Fails early if qlog files cannot be created in the directory.
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
    queue: &QueueSetup<'_>,
    tls: &Arc<rustls::ServerConfig>,
    (seed, steering): ([u8; 32], Option<QuicSteering>),
) -> quic::QuicEndpointConfig {
    quic::QuicEndpointConfig {
        port: args.port(),
        tls: Some(Arc::clone(tls)),
        unix_epoch: queue.clock.unix_epoch(),
        steering: steering.map(|steering| (steering, queue.index)),
        qlog: args.qlog.clone().map(qlog_files),
        idle_timeout: Duration::from_secs(args.keepalive_timeout.into()),
        connections_max: args.stack.quic_connections_max(),
        ..quic::QuicEndpointConfig::new(Arc::new(crypto::Provider), clock::std_epoch(), seed)
    }
}

const fn listen(port: u16) -> ListenConfig {
    ListenConfig { addr: None, port, backlog: BACKLOG }
}

fn content_config(
    args: &ServeArgs,
    clock: &MonotonicClock,
    tls: Option<TlsServer>,
) -> content::ContentServerConfig {
    content::ContentServerConfig {
        listen: vec![listen(args.port())],
        cleartext_listen: args.cleartext_port().map(listen).into_iter().collect(),
        redirect_port: args.redirect_http.map(|_| args.port()),
        tls,
        setup_offload: args.stack.offload.setup,
        teardown_offload: args.stack.offload.teardown,
        unix_epoch: clock.unix_epoch(),
        seed: clock::entropy(),
        header_timeout: Duration::from_secs(args.header_timeout.into()),
        keepalive_timeout: Duration::from_secs(args.keepalive_timeout.into()),
        access_log: args.stack.access_log.is_some(),
        added_fields: args.header.clone(),
        cache_control: args.cache_control.clone(),
        precompressed: args.precompressed,
        connections_max: args.stack.tcp_connections_max(),
        ..content::ContentServerConfig::default()
    }
}
