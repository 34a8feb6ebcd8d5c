//! `outboard proxy`: a stack ([`stack::Stack`]) with the proxy as its application, and a thread
//! that resolves names ([`names`]). SIGHUP reloads the configuration file ([`mod@file`]) and the
//! patterns.

mod file;
mod names;
mod plan;
mod resolver;

use std::io::Write as _;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use apps::pattern_rules::PatternRules;
use apps::proxy::{
    self, ForwardingPolicy, HashBy, HealthCheckConfig, InsertedFields, LoadBalancing, Proxy,
    ProxyLimits, ProxyListener, ProxyMode, ProxyOffloads, ProxyPool, ProxyTable,
};
use base::Duration;
use host::Cidr;
use io::clock::{self, MonotonicClock};
use io::link::Link;
use nic::{DeviceConfig, L5oConfig};
use stack::{
    BACKLOG, BackendLink, ConfinedFiles, MessageSender, QueueSetup, Signals, Stack, StackOptions,
    Switch,
};

use crate::alarms::is_alarm;
use crate::args::{BalanceArg, BalanceHashArg, HeaderPolicyArg, ModeArg, ProxyArgs};
use crate::pattern_file::PatternFile;
use cli::Failure;
use names::BackendResolver;
use plan::{PoolPlan, ProxyPlan};

pub(crate) use plan::{BackendSpec, ListenArg};

/// A change of the running proxy.
#[derive(Clone)]
enum ProxyOrder {
    Apply(ProxyTable),
    SetPatternRules(Arc<PatternRules>),
}

/// Returns the files that the options name.
fn confined_files(args: &ProxyArgs) -> ConfinedFiles {
    let mut files = args.stack.confined_files();
    let read = args.config.iter().chain(&args.deny_patterns);
    read.for_each(|file| files.allow_read_replaced(file));
    files
}

/// Sends an order to the proxies of all queues.
fn order(senders: &[MessageSender<ProxyOrder>], order: &ProxyOrder) {
    senders.iter().for_each(|sender| sender.send(order.clone()));
}

/// Runs `outboard proxy`.
///
/// # Errors
/// Fails if a file, address or thread is not available; the message says what to do.
pub(crate) fn run(args: &ProxyArgs) -> Result<(), Failure> {
    let mut patterns = PatternFile::of_option(args.deny_patterns.as_ref());
    let rules = patterns.as_mut().map(PatternFile::read).transpose()?;
    if args.check {
        return check(args);
    }
    let mut args = args.clone();
    check_options(&args)?;
    args.stack.confinement = args.confinement.begin(&confined_files(&args))?;
    let signals = Signals::take()?;
    let network = args.stack.wait_for_addrs(&signals)?;
    let args = &args;
    let plan = read_plan(args)?;
    let ports = args.stack.listen_ports.extend(listen_ports(&plan));
    ports.map_err(|error| Failure::Usage(error.to_string()))?;
    let mut names = BackendResolver::new(args.resolver, plan.clone());
    let table = names.table();
    let proxy = |queue: QueueSetup<'_>| {
        let config =
            proxy::ProxyConfig { pattern_rules: rules.clone(), ..app_config(args, &queue.clock) };
        Proxy::new(queue.clock.now(), config, table.clone(), queue.host)
            .map_err(|e| Failure::Unavailable(format!("{e}; check --listen and --addr")))
    };
    let stack = Stack::builder()
        .options(args.stack.clone())
        .network(network)
        .links(|options, clock| open_links(args, options, clock))
        .configure(|_, device, host| configure(args, device, host))
        .application(proxy)
        // The table was checked before; the proxy logs what it does not accept.
        .messages(|proxy: &mut Proxy, now, host, order| match order {
            ProxyOrder::Apply(table) => drop(proxy.apply(now, host, table)),
            ProxyOrder::SetPatternRules(rules) => proxy.set_pattern_rules(rules),
        })
        .alarms(is_alarm)
        .start()?;
    let plans = start_names(names, table, stack.senders())?;
    announce(args, &plan);
    let config = args.config.as_deref();
    let has_input = config.is_some() || patterns.is_some();
    let mut reload = |stack: &Stack<ProxyOrder>| {
        config.iter().for_each(|path| reload(args, stack, path, &plans));
        patterns.iter_mut().for_each(|file| {
            file.reload(|rules| order(stack.senders(), &ProxyOrder::SetPatternRules(rules)));
        });
    };
    stack.run(signals, has_input.then_some(&mut reload))
}

/// Returns the ports that a plan's listeners have.
fn listen_ports(plan: &ProxyPlan) -> Vec<u16> {
    plan.listeners.iter().map(|listener| listener.port).collect()
}

/// Fails if options contradict each other.
fn check_options(args: &ProxyArgs) -> Result<(), Failure> {
    if args.backend_link.is_none() && args.stack.nic.is_none() && !args.backend_addr.is_empty() {
        let line = "--backend-addr needs --backend-link, or --nic of a device with one";
        return Err(Failure::Usage(line.to_owned()));
    }
    backend_link(args).map_or(Ok(()), |backend| backend.check(&args.stack))
}

/// Returns the link to the backends, if it is another one than that to the clients.
fn backend_link(args: &ProxyArgs) -> Option<BackendLink> {
    let link = args.backend_link.clone()?;
    Some(BackendLink { link, peer: args.backend_peer.clone() })
}

/// Returns the addresses on the link to the backends, if it is another one.
fn backend_addrs(args: &ProxyArgs) -> Vec<Cidr> {
    if args.backend_link.is_some() && args.backend_addr.is_empty() {
        let default = |addr: &str| addr.parse().expect("an address with its prefix length");
        return ["10.78.0.2/24", "fd78::2/64"].map(default).into();
    }
    args.backend_addr.clone()
}

/// Returns the plan of the options or the file, if a proxy can start with it.
fn read_plan(args: &ProxyArgs) -> Result<ProxyPlan, Failure> {
    check_options(args)?;
    let plan = match &args.config {
        Some(path) => file::read(path, &limits(args)).map_err(Failure::NoInput)?,
        None => plan_from_options(args)?,
    };
    check_plan_listeners(args, plan)
        .map_err(|e| Failure::Unavailable(format!("{e}; check --listen and --addr")))
}

/// Returns the plan if its listeners can be opened.
fn check_plan_listeners(args: &ProxyArgs, plan: ProxyPlan) -> Result<ProxyPlan, String> {
    let addrs = args.stack.addrs().into_iter().chain(backend_addrs(args));
    let ours: Vec<_> = addrs.map(|cidr| cidr.addr).collect();
    // The device's link-local address is derived from its MAC address, which is not known here.
    let link_local = |addr| matches!(addr, IpAddr::V6(v6) if v6.is_unicast_link_local());
    // With `--check` an automatic address is not known either.
    let unknown = args.stack.has_auto_addrs();
    let is_ours = |addr| unknown || ours.contains(&addr) || link_local(addr);
    match proxy::check_listeners(&plan.listeners, is_ours) {
        Ok(()) => Ok(plan),
        Err(why) => Err(why.to_string()),
    }
}

/// Runs `outboard proxy --check`: all checks that need not open anything.
fn check(args: &ProxyArgs) -> Result<(), Failure> {
    let plan = read_plan(args)?;
    let members = plan.pools.iter().map(|pool| pool.members.len()).sum::<usize>();
    // A closed standard output is no failure: the exit status has the result.
    let _ = writeln!(
        std::io::stdout(),
        "configuration is valid: {}, {}",
        cli::counted(plan.listeners.len(), "listener"),
        cli::counted(members, "backend")
    );
    Ok(())
}

/// Reads the configuration file again.
fn reload(args: &ProxyArgs, stack: &Stack<ProxyOrder>, path: &Path, plans: &Sender<ProxyPlan>) {
    let read = || {
        let new = check_plan_listeners(args, file::read(path, &limits(args))?)?;
        // Before the listeners are opened, so that no connection to them is another one's.
        stack.add_listen_ports(&listen_ports(&new)).map_err(|failure| failure.to_string())?;
        Ok::<_, String>(new)
    };
    match read() {
        Ok(new) => {
            eprintln!("outboard: SIGHUP: reloaded {}", path.display());
            // The receiving thread runs until the process ends.
            let _ = plans.send(new);
        }
        Err(why) => eprintln!("outboard: SIGHUP: {why}; keeping the old configuration"),
    }
}

/// Opens the links to the clients, one for each queue, each joined with the link to the backends if
/// there is one.
fn open_links(
    args: &ProxyArgs,
    options: &StackOptions,
    clock: &MonotonicClock,
) -> Result<Vec<Box<dyn Link>>, Failure> {
    match backend_link(args) {
        None => stack::open_links(options, clock),
        Some(backend) => backend.open_joined(options, clock),
    }
}

/// Starts the thread that resolves names, and sends the proxy a table if addresses have changed.
fn start_names(
    names: BackendResolver,
    table: ProxyTable,
    senders: &[MessageSender<ProxyOrder>],
) -> Result<Sender<ProxyPlan>, Failure> {
    let (plans, received) = channel();
    let senders = senders.to_vec();
    let apply = move |table| order(&senders, &ProxyOrder::Apply(table));
    stack::spawn("names".to_owned(), move || names.run(&received, table, apply))?;
    Ok(plans)
}

/// Returns the plan of the options: a listener for each --listen, and one pool.
fn plan_from_options(args: &ProxyArgs) -> Result<ProxyPlan, Failure> {
    let mut insert = InsertedFields::default();
    for name in &args.header {
        file::add_header(&mut insert, name)
            .map_err(|e| Failure::Usage(format!("--header: {e}")))?;
    }
    let mode = match args.mode {
        ModeArg::Http => ProxyMode::Http,
        ModeArg::Tls => ProxyMode::Tls,
        ModeArg::Tcp => ProxyMode::Tcp,
    };
    let policy = match args.header_policy {
        HeaderPolicyArg::Append => ForwardingPolicy::Append,
        HeaderPolicyArg::Replace => ForwardingPolicy::Replace,
    };
    let by = match args.hash {
        BalanceHashArg::Source => HashBy::Source,
        BalanceHashArg::Host => HashBy::Host,
    };
    let path = args.health_check.as_deref().map_or(Ok(""), file::check_path);
    let path = path.map_err(|e| Failure::Usage(format!("--health-check: {e}")))?.to_owned();
    let pool = ProxyPool {
        name: "default".to_owned(),
        balance: match args.balance {
            BalanceArg::RoundRobin => LoadBalancing::RoundRobin,
            BalanceArg::Least => LoadBalancing::Least,
            BalanceArg::Maglev => LoadBalancing::Maglev(by),
        },
        proxy_protocol: args.proxy_protocol,
        check: HealthCheckConfig { path, ..HealthCheckConfig::default() },
        ..ProxyPool::default()
    };
    let listener = |listen: &ListenArg| ProxyListener {
        addr: listen.addr,
        port: listen.port,
        mode,
        routes: Vec::new(),
        default: Some(0),
        insert: if mode == ProxyMode::Http { insert } else { InsertedFields::default() },
        policy,
        // Only the first request of a connection is inspected.
        keep_alive: policy == ForwardingPolicy::Append,
        offloads: ProxyOffloads::ALL,
    };
    Ok(ProxyPlan {
        listeners: args.listen.iter().map(listener).collect(),
        pools: vec![PoolPlan { pool, members: args.backend.clone() }],
        limits: limits(args),
    })
}

/// Returns the limits of the options.
fn limits(args: &ProxyArgs) -> ProxyLimits {
    let seconds = |s: u32| Duration::from_secs(s.into());
    ProxyLimits {
        // A client has a connection of its own and one to a backend.
        connections_max: (args.stack.tcp_connections_max() / 2).max(1),
        head_timeout: seconds(args.header_timeout),
        connect_timeout: seconds(args.connect_timeout),
        idle_timeout: seconds(args.idle_timeout),
        ..ProxyLimits::default()
    }
}

/// Configures device and host for a proxy.
fn configure(args: &ProxyArgs, device: &mut DeviceConfig, host: &mut host::HostConfig) {
    if args.splice == Switch::Off || !args.stack.offload.splice {
        device.splice = None;
    }
    let inspect = args.deny_patterns.is_some() && args.stack.offload.inspect;
    device.l5o = inspect.then(|| L5oConfig {
        tls_tx: false,
        tls_rx: false,
        ..L5oConfig::new(Arc::new(crypto::Provider))
    });
    host.addrs.extend(backend_addrs(args));
}

fn app_config(args: &ProxyArgs, clock: &MonotonicClock) -> proxy::ProxyConfig {
    proxy::ProxyConfig {
        backlog: BACKLOG,
        unix_epoch: clock.unix_epoch(),
        seed: clock::entropy(),
        splice: args.splice == Switch::On,
        access_log: args.stack.access_log.is_some(),
        ..proxy::ProxyConfig::default()
    }
}

/// Prints the listeners when the proxy is ready, with a command to try.
fn announce(args: &ProxyArgs, plan: &ProxyPlan) {
    let mut out = std::io::stdout().lock();
    let ours = args.stack.addrs().first().map(|cidr| cidr.addr);
    let members = plan.pools.iter().map(|pool| pool.members.len()).sum::<usize>();
    for listener in &plan.listeners {
        let Some(addr) = listener.addr.or(ours) else { continue };
        let at = std::net::SocketAddr::new(addr, listener.port);
        let mode = format!("{:?}", listener.mode).to_lowercase();
        let _ = writeln!(out, "proxying {mode} on {at} to {}", cli::counted(members, "backend"));
    }
    let http = plan.listeners.iter().find(|l| l.mode == ProxyMode::Http);
    let at = http.and_then(|l| Some(std::net::SocketAddr::new(l.addr.or(ours)?, l.port)));
    let _ = match at {
        Some(at) => writeln!(out, "try: curl -v http://{at}/"),
        None => writeln!(out, "try: outboard stat --link {}", args.stack.link),
    };
    // A closed standard output is no reason to stop.
    let _ = out.flush();
}
