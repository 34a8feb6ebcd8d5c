//! `outboard proxy`: puts device, host and proxy together, and runs them until a signal.
//!
//! The threads are [`crate::stack`]'s, and one more that looks names up ([`names`]). This thread
//! opens what they need, then waits for a signal; SIGHUP reads the file again ([`file`]).

mod dns;
mod file;
mod names;
mod plan;

use std::io::Write as _;
use std::net::IpAddr;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};

use apps::proxy::{
    self, Balance, Check, HashBy, HeaderPolicy, Insert, Limits, Listener, Mode, Pool, Proxy, Table,
};
use base::{Duration, Instant};
use host::{Application as _, Host};
use io::bridge::Bridge;
use io::clock::{self, Clock};
use io::wire::Wire;
use nic::Device;
use signal_hook::consts::{SIGHUP, SIGUSR1};

use crate::args::{
    BalanceArg, CidrArg, HashArg, HeaderPolicyArg, ModeArg, ProxyArgs, StackArgs, SwitchArg,
};
use crate::control::{self, Control, Probe};
use crate::stack::{self, BACKLOG, DeviceSide, HostSide, NoDisk, Threads, drain};
use cli::Failure;
use names::Names;
use plan::{Plan, PoolPlan};

pub(crate) use plan::{ListenArg, Member};

/// What a proxy is told.
pub(crate) enum Order {
    /// What to do from now on.
    Apply(Table),
    /// To accept nobody any more.
    Drain,
}

fn handle_order(proxy: &mut Proxy, now: Instant, host: &mut Host, order: Order) {
    match order {
        // It was checked before; the log says what it does not take.
        Order::Apply(table) => drop(proxy.apply(now, host, table)),
        Order::Drain => proxy.drain(now, host),
    }
}

/// Runs `outboard proxy`.
///
/// # Errors
/// What could not be opened, bound or started, and what to do about it.
pub(crate) fn run(args: &ProxyArgs) -> Result<(), Failure> {
    if args.check {
        return check(args);
    }
    // Before anything is opened, so that no signal is lost.
    let signals = drain::signals()?;
    let plan = read_plan(args)?;
    let clock = Clock::new();
    let control = Control::bind(&control::path(args.stack.control.as_deref(), &args.stack.wire))?;
    let mut names = Names::new(args.resolver, clock, plan.clone());
    let table = names.table();
    let mut threads = Threads::default();
    let (orders, messages) = channel();
    let wire = open_wire(args, &clock)?;
    let queue = stack::mesh(1)?.pop();
    if let (Some(wire), Some(queue)) = (wire, queue) {
        let device = new_device(args, wire.as_ref());
        let mut config = stack::host_config(&args.stack, 0);
        if args.backend_wire.is_some() {
            config.addrs.extend(args.backend_addr.iter().copied().map(CidrArg::to_cidr));
        }
        let mut host = Host::new(config, &device.capabilities(), clock::entropy());
        let app = Proxy::new(clock.now(), app_config(args, &clock), table.clone(), &mut host)
            .map_err(|e| Failure::Unavailable(format!("{e}: see --listen and --addr")))?;
        let log = stack::open_log(args.stack.access_log.as_deref(), 0)?;
        let host_side = HostSide { log, ..HostSide::new(host, app, (messages, handle_order)) };
        let device_side = DeviceSide { device, wire, disk: Box::new(NoDisk) };
        threads.start(&args.stack, clock, queue, device_side, host_side)?;
    }
    if let Some(addr) = args.stack.metrics {
        control::metrics::start(addr, threads.probes().to_vec())?;
    }
    let plans = start_names(names, table, orders.clone(), threads.probes().to_vec())?;
    let _socket_file = control.start(threads.probes().to_vec())?;
    announce(args, &plan);
    for signal in &signals {
        match (signal, &args.config) {
            (SIGUSR1, _) => threads.reopen_logs(),
            (SIGHUP, config) if config.is_some() || args.stack.has_log_file() => {
                threads.reopen_logs();
                config.iter().for_each(|path| reload(args, path, &plans));
            }
            // A terminal that closes ends it, where there is nothing to read again.
            _ => break,
        }
    }
    // They end only with us.
    let _ = orders.send(Order::Drain);
    drain::wait(&signals, &clock, args.stack.drain(), &threads);
    threads.stop()
}

/// Returns the plan of the options or the file, if a proxy can start with it.
fn read_plan(args: &ProxyArgs) -> Result<Plan, Failure> {
    if args.stack.queues != 1 {
        // What a backend sends goes to the queue that RSS chooses, which need not be the one that
        // connected.
        return Err(Failure::Usage("--queues: a proxy has one queue for now".to_owned()));
    }
    if args.backend_wire.as_ref() == Some(&args.stack.wire) {
        return Err(Failure::Usage("--backend-wire: that is --wire, leave it out".to_owned()));
    }
    let plan = match &args.config {
        Some(path) => file::read(path).map_err(Failure::NoInput)?,
        None => of_command_line(args)?,
    };
    openable(args, plan).map_err(|e| Failure::Unavailable(format!("{e}: see --listen and --addr")))
}

/// A plan whose listeners can be opened.
fn openable(args: &ProxyArgs, plan: Plan) -> Result<Plan, String> {
    let backend_addr = args.backend_wire.iter().flat_map(|_| &args.backend_addr);
    let ours: Vec<_> = args.stack.addr.iter().chain(backend_addr).map(|cidr| cidr.addr).collect();
    // The device's link-local address is derived from its MAC address, which is not known here.
    let link_local = |addr| matches!(addr, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let is_ours = |addr| ours.contains(&addr) || link_local(addr);
    match proxy::check_listeners(&plan.listeners, is_ours) {
        Ok(()) => Ok(plan),
        Err(why) => Err(why.to_string()),
    }
}

/// Runs `outboard proxy --check`: everything that can be known without opening anything.
fn check(args: &ProxyArgs) -> Result<(), Failure> {
    let plan = read_plan(args)?;
    let members = plan.pools.iter().map(|pool| pool.members.len()).sum::<usize>();
    let listeners = plan.listeners.len();
    // A closed standard output is no reason to fail: the exit status says it.
    let _ = writeln!(
        std::io::stdout(),
        "the configuration is good: {listeners} listeners, {members} backends"
    );
    Ok(())
}

/// Reads the configuration again.
fn reload(args: &ProxyArgs, path: &Path, plans: &Sender<Plan>) {
    match file::read(path).and_then(|new| openable(args, new)) {
        Ok(new) => {
            eprintln!("outboard: SIGHUP: {} read again", path.display());
            // It ends only with us.
            let _ = plans.send(new);
        }
        Err(why) => eprintln!("outboard: SIGHUP: {why}; the old configuration stays"),
    }
}

/// The clients' wire, with the backends' joined to it where they have one.
fn open_wire(args: &ProxyArgs, clock: &Clock) -> Result<Option<Box<dyn Wire>>, Failure> {
    let Some(backends) = &args.backend_wire else {
        return Ok(stack::open_wires(&args.stack, clock)?.pop());
    };
    let pcap = args.stack.pcap.clone().map(|mut path| {
        path.as_mut_os_string().push(".backend");
        path
    });
    let (wire, peer) = (backends.clone(), args.backend_peer.clone());
    let second = StackArgs { wire, peer, pcap, ..args.stack.clone() };
    let wires =
        (stack::open_wires(&args.stack, clock)?.pop(), stack::open_wires(&second, clock)?.pop());
    let (Some(first), Some(second)) = wires else { return Ok(None) };
    let bridge = Bridge::new([first, second])
        .map_err(|e| Failure::System(format!("cannot wait for two wires: {e}")))?;
    Ok(Some(Box::new(bridge)))
}

fn start_names(
    names: Names,
    table: Table,
    orders: Sender<Order>,
    probes: Vec<Probe>,
) -> Result<Sender<Plan>, Failure> {
    let (plans, plans_end) = channel();
    let give = move |table: Table| {
        // It ends with the host thread.
        let _ = orders.send(Order::Apply(table));
        probes.iter().for_each(Probe::wake);
    };
    stack::spawn("names".to_owned(), move || names.run(&plans_end, table, give))?;
    Ok(plans)
}

/// What the options say: a listener for each --listen, and one pool.
fn of_command_line(args: &ProxyArgs) -> Result<Plan, Failure> {
    let mut insert = Insert::default();
    for name in &args.header {
        file::add_header(&mut insert, name)
            .map_err(|e| Failure::Usage(format!("--header: {e}")))?;
    }
    let mode = match args.mode {
        ModeArg::Http => Mode::Http,
        ModeArg::Tls => Mode::Tls,
        ModeArg::Tcp => Mode::Tcp,
    };
    let policy = match args.header_policy {
        HeaderPolicyArg::Append => HeaderPolicy::Append,
        HeaderPolicyArg::Replace => HeaderPolicy::Replace,
    };
    let by = match args.hash {
        HashArg::Source => HashBy::Source,
        HashArg::Host => HashBy::Host,
    };
    let path = args.health_check.clone().unwrap_or_default();
    file::check_text(&path).map_err(|e| Failure::Usage(format!("--health-check: {e}")))?;
    let pool = Pool {
        name: "default".to_owned(),
        balance: match args.balance {
            BalanceArg::RoundRobin => Balance::RoundRobin,
            BalanceArg::Least => Balance::Least,
            BalanceArg::Maglev => Balance::Maglev(by),
        },
        proxy_protocol: args.proxy_protocol,
        check: Check { path, ..Check::default() },
        ..Pool::default()
    };
    let listener = |listen: &ListenArg| Listener {
        addr: listen.addr,
        port: listen.port,
        mode,
        routes: Vec::new(),
        default: Some(0),
        insert: if mode == Mode::Http { insert } else { Insert::default() },
        policy,
        // Only the first request of a connection is looked at.
        keep_alive: policy == HeaderPolicy::Append,
    };
    let seconds = |s: u32| Duration::from_secs(s.into());
    Ok(Plan {
        listeners: args.listen.iter().map(listener).collect(),
        pools: vec![PoolPlan { pool, members: args.backend.clone() }],
        limits: Limits {
            head_timeout: seconds(args.header_timeout),
            connect_timeout: seconds(args.connect_timeout),
            idle_timeout: seconds(args.idle_timeout),
            ..Limits::default()
        },
    })
}

fn new_device(args: &ProxyArgs, wire: &dyn Wire) -> Device {
    let mut config = stack::device_config(&args.stack, 1, clock::entropy(), wire);
    config.file = None;
    config.l5o = None;
    if args.splice == SwitchArg::Off || !args.stack.offload.splice {
        config.splice = None;
    }
    Device::new(config, wire.capabilities())
}

fn app_config(args: &ProxyArgs, clock: &Clock) -> proxy::Config {
    proxy::Config {
        backlog: BACKLOG,
        unix_epoch: clock.unix_epoch(),
        seed: clock::entropy(),
        splice: args.splice == SwitchArg::On,
        access_log: args.stack.access_log.is_some(),
        ..proxy::Config::default()
    }
}

/// The lines that say that we are ready, and one to try.
fn announce(args: &ProxyArgs, plan: &Plan) {
    let mut out = std::io::stdout().lock();
    let ours = args.stack.addr.first().map(|cidr| cidr.addr);
    let members = plan.pools.iter().map(|pool| pool.members.len()).sum::<usize>();
    for listener in &plan.listeners {
        let Some(addr) = listener.addr.or(ours) else { continue };
        let at = std::net::SocketAddr::new(addr, listener.port);
        let mode = format!("{:?}", listener.mode).to_lowercase();
        let _ = writeln!(out, "proxying {mode} at {at} for {members} backends");
    }
    let http = plan.listeners.iter().find(|l| l.mode == Mode::Http);
    let at = http.and_then(|l| Some(std::net::SocketAddr::new(l.addr.or(ours)?, l.port)));
    let _ = match at {
        Some(at) => writeln!(out, "try: curl -v http://{at}/"),
        None => writeln!(out, "try: outboard stat --wire {}", args.stack.wire),
    };
    // Nobody reading is no reason to stop.
    let _ = out.flush();
}
