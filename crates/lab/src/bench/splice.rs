//! `outboard-lab bench splice`: what relaying costs a proxy's host, in software and by the device
//! (AccelTCP section 6.1.2: figures 12 and 13).
//!
//! The product's proxy in TCP mode between 8,000 clients and as many connections to a backend, with
//! messages of 64 bytes to 8 KB each way and 1 to 128 transactions on each connection. Clients and
//! backend are one machine. Then connections that persist: what is left for the host once all of
//! them are spliced, and what a packet costs the device.

use std::collections::BTreeMap;
use std::io::Write as _;

use apps::proxy::{self, Listener, Mode, Pool, Proxy, Table};
use base::{Duration, Instant};
use clap::Args;
use host::Host;
use io::mem::{LinkConfig, link};
use io::wire::Wire as _;
use nic::{Device, DeviceConfig};
use serde_json::{Value, json};
use wire::Endpoint;

use super::accounted::{App, Node, World};
use super::io_tcp::host_config;
use super::short::{Agreed, Closes, PORTS, Peers};
use cli::Failure;

/// Message sizes.
const SIZES: [usize; 5] = [64, 256, 1024, 4096, 8192];
/// Transactions of a connection: the paper's figure 13.
const TRANSACTIONS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// Clients at one time.
const CONCURRENT: u32 = 8_000;
/// Runs of a configuration, of which the one with the median host cycles counts.
const REPEATS: usize = 3;

/// `outboard-lab bench splice`.
#[derive(Debug, Args)]
pub(crate) struct SpliceArgs {
    /// For machines
    #[arg(long)]
    json: bool,
    /// One run of 64 bytes with 1 and 128 transactions, and of connections that persist
    #[arg(long)]
    quick: bool,
    /// Clients at one time
    #[arg(long, default_value_t = CONCURRENT, value_name = "N")]
    concurrent: u32,
}

/// One run's configuration.
#[derive(Clone, Copy, Debug)]
struct Setting {
    splice: bool,
    agreed: Agreed,
}

/// One run's result.
#[derive(Clone, Debug)]
struct Measured {
    setting: Setting,
    transactions: u64,
    host_cycles: u64,
    device_cycles: u64,
    /// Of these, the wire's.
    wire_cycles: u64,
    /// Packets that the host received, and packets or runs that it handed over.
    host_packets: u64,
    /// Packets that the device received.
    device_packets: u64,
    counters: BTreeMap<&'static str, u64>,
}

impl Measured {
    fn per(&self, what: u64) -> f64 {
        what as f64 / self.transactions as f64
    }

    fn device_per_packet(&self) -> f64 {
        self.device_cycles as f64 / self.device_packets as f64
    }

    fn wire_per_packet(&self) -> f64 {
        self.wire_cycles as f64 / self.device_packets as f64
    }

    const fn persists(&self) -> bool {
        self.setting.agreed.per_connection == u32::MAX
    }

    fn json(&self) -> Value {
        let Agreed { message_bytes, per_connection, concurrent, .. } = self.setting.agreed;
        json!({
            "path": if self.setting.splice { "splice" } else { "relay" },
            "message_bytes": message_bytes,
            "transactions_per_connection": (!self.persists()).then_some(per_connection),
            "clients": concurrent,
            "transactions": self.transactions,
            "host_cycles": self.per(self.host_cycles),
            "host_packets": self.per(self.host_packets),
            "device_cycles": self.per(self.device_cycles),
            "device_cycles_per_packet": self.device_per_packet(),
            "wire_cycles_per_packet": self.wire_per_packet(),
            "counters": self.counters,
        })
    }
}

/// Runs the benchmark.
///
/// # Errors
/// Where bytes came out wrong, or the path that was measured is not the one that was asked for.
pub(crate) fn run(args: &SpliceArgs) -> Result<(), Failure> {
    let (sizes, counts) =
        if args.quick { (&SIZES[..1], &[1, 128][..]) } else { (&SIZES[..], &TRANSACTIONS[..]) };
    let repeats = if args.quick { 1 } else { REPEATS };
    if !args.json {
        println!(
            "{:>6} {:>12} {:<7} {:>12} {:>9} {:>13} {:>11} {:>7}",
            "bytes",
            "per conn.",
            "path",
            "host cycles",
            "packets",
            "device cycles",
            "per packet",
            "ratio"
        );
    }
    // Every size with the most transactions, and every number of transactions with the least bytes.
    let most = counts.last().copied().unwrap_or(1);
    let mut rows: Vec<(usize, u32)> = counts.iter().map(|&n| (SIZES[0], n)).collect();
    rows.extend(sizes.iter().skip(1).map(|&bytes| (bytes, most)));
    rows.extend(sizes.iter().map(|&bytes| (bytes, u32::MAX)));
    let mut table: Vec<Measured> = Vec::new();
    for (message_bytes, per_connection) in rows {
        let (concurrent, closes) = (args.concurrent, Closes::Client);
        let agreed = Agreed { concurrent, message_bytes, per_connection, closes };
        let mut relayed = None;
        for splice in [false, true] {
            let m = median(Setting { splice, agreed }, repeats)?;
            let relayed = *relayed.get_or_insert_with(|| m.per(m.host_cycles));
            show(args, &m, relayed);
            table.push(m);
        }
    }
    let headline = headline(&table, most);
    if args.json {
        let rows: Vec<Value> = table.iter().map(Measured::json).collect();
        println!("{:#}", json!({ "headline": headline, "rows": rows }));
    } else {
        println!("\nheadline: {headline:#}");
    }
    Ok(())
}

fn show(args: &SpliceArgs, m: &Measured, relayed: f64) {
    let Agreed { message_bytes, per_connection, .. } = m.setting.agreed;
    let count = if m.persists() { "persistent".to_owned() } else { per_connection.to_string() };
    let path = if m.setting.splice { "splice" } else { "relay" };
    if args.json {
        eprintln!("{message_bytes} bytes, {count}, {path}: done");
        return;
    }
    println!(
        "{message_bytes:>6} {count:>12} {path:<7} {:>12.0} {:>9.2} {:>13.0} {:>11.0} {:>6.1}x",
        m.per(m.host_cycles),
        m.per(m.host_packets),
        m.per(m.device_cycles),
        m.device_per_packet(),
        relayed / m.per(m.host_cycles).max(0.01)
    );
    let _ = std::io::stdout().flush();
}

fn headline(table: &[Measured], most: u32) -> Value {
    let find = |splice, count| {
        table.iter().find(|m| {
            let agreed = m.setting.agreed;
            m.setting.splice == splice
                && agreed.per_connection == count
                && agreed.message_bytes == SIZES[0]
        })
    };
    let cycles = |splice| find(splice, most).map(|m| m.per(m.host_cycles));
    let lasting = find(true, u32::MAX);
    json!({
        "host_packets_after_splice": lasting.map(|m| m.host_packets),
        "ratio_host_cycles": cycles(false).zip(cycles(true)).map(|(relay, splice)| relay / splice),
        "device_cycles_per_packet": lasting.map(Measured::device_per_packet),
        "wire_cycles_per_packet_of_these": lasting.map(Measured::wire_per_packet),
    })
}

fn median(setting: Setting, repeats: usize) -> Result<Measured, Failure> {
    let mut runs = Vec::new();
    for _ in 0..repeats {
        runs.push(measure(setting)?);
    }
    runs.sort_by_key(|m| (m.host_cycles / m.transactions, m.device_cycles));
    Ok(runs.swap_remove(repeats / 2))
}

fn measure(setting: Setting) -> Result<Measured, Failure> {
    let agreed = setting.agreed;
    let mut world = build(setting)?;
    world.start();
    let done = |w: &World| w.peers().client.transactions;
    let failed = |w: &World| w.peers().errors().next().is_some();
    let clients = u64::from(agreed.concurrent);
    let spliced = |w: &World| w.server_counters().get("splice_pairs").copied().unwrap_or(0);
    let lasting = agreed.per_connection == u32::MAX;
    let mut alive = world.run_until(|w| w.peers().client.is_full() || failed(w));
    let full = done(&world);
    alive = alive && world.run_until(|w| done(w) >= full + 3 * clients || failed(w));
    if lasting && setting.splice {
        // Until the last of them is spliced, a few transactions at a time.
        while alive && spliced(&world) < clients && done(&world) < full + 20 * clients {
            let next = done(&world) + clients / 4;
            alive = world.run_until(|w| done(w) >= next || failed(w));
        }
    }
    let (cycles, before) = (world.server.cycles, world.server_counters());
    let (from, packets) = (done(&world), world.server.host_packets());
    let frames = world.server.device_packets();
    let wanted = match agreed.per_connection {
        u32::MAX => 20 * clients,
        count => (2 * clients * u64::from(count)).max(10 * clients),
    };
    alive = alive && world.run_until(|w| done(w) >= from + wanted || failed(w));
    let mut counters = world.server_counters();
    if !alive || failed(&world) {
        let what = world.peers().errors().next().cloned();
        return Err(Failure::System(format!(
            "the benchmark went wrong ({setting:?}): {} {counters:?}",
            what.unwrap_or_else(|| "nothing left to happen".to_owned())
        )));
    }
    counters.retain(|name, value| {
        *value = value.saturating_sub(before.get(name).copied().unwrap_or_default());
        *value > 0
    });
    let measured = Measured {
        setting,
        transactions: done(&world) - from,
        host_cycles: world.server.cycles.host - cycles.host,
        device_cycles: world.server.cycles.device - cycles.device,
        wire_cycles: world.server.cycles.wire - cycles.wire,
        host_packets: world.server.host_packets() - packets,
        device_packets: world.server.device_packets() - frames,
        counters,
    };
    check_path(&measured, spliced(&world))?;
    Ok(measured)
}

/// A silent fallback to software is the characteristic bug: the path that was asked for has to be
/// the one that ran.
fn check_path(m: &Measured, open: u64) -> Result<(), Failure> {
    let clients = u64::from(m.setting.agreed.concurrent);
    let began = m.counters.get("splice_begun").copied().unwrap_or_default();
    let right = match (m.setting.splice, m.persists()) {
        (false, _) => began == 0 && open == 0,
        // A few may still shake hands: a SYN that was lost comes again after a second, which is
        // many thousand transactions.
        (true, true) => open >= clients * 95 / 100,
        (true, false) => {
            let connections = m.transactions / u64::from(m.setting.agreed.per_connection);
            began >= connections * 8 / 10
        }
    };
    if right {
        return Ok(());
    }
    Err(Failure::System(format!("the wrong path was measured: {open} pairs are spliced; {m:?}")))
}

fn build(setting: Setting) -> Result<World, Failure> {
    // As for short connections: 100 Gb/s, 25 us each way, moderated by 10 us.
    let link_config = LinkConfig {
        delay: Duration::from_micros(25),
        bytes_per_s: Some(12_500_000_000),
        queue_bytes_max: u64::MAX,
        frames_max: 65_536,
        ..LinkConfig::default()
    };
    let now = Instant::from_millis(1000);
    let (proxy_wire, peers_wire) = link(&link_config);
    let device = Device::new(DeviceConfig::new([2, 0, 0, 0, 0, 1]), proxy_wire.capabilities());
    let mut host = Host::new(host_config("10.0.0.1"), &device.capabilities(), 1);
    let at = |last: u8, port| Endpoint { addr: [10, 0, 0, last].into(), port };
    let listener = |port| Listener {
        addr: None,
        port,
        mode: Mode::Tcp,
        routes: Vec::new(),
        default: Some(0),
        insert: proxy::Insert::default(),
        policy: proxy::HeaderPolicy::Append,
        keep_alive: true,
    };
    let table = Table {
        listeners: (80..80 + PORTS).map(listener).collect(),
        pools: vec![Pool {
            backends: (80..80 + PORTS).map(|port| at(2, port).into()).collect(),
            check: proxy::Check { interval: Duration::ZERO, ..proxy::Check::default() },
            ..Pool::default()
        }],
        ..Table::default()
    };
    let config =
        proxy::Config { backlog: 65_536, splice: setting.splice, ..proxy::Config::default() };
    let app = Proxy::new(now, config, table, &mut host)
        .map_err(|e| Failure::System(format!("cannot listen: {e}")))?;
    let app = App::Proxy(Box::new(app));
    let server = Node::new(host, device, app, Box::new(proxy_wire), None, None);
    let device = Device::new(DeviceConfig::new([2, 0, 0, 0, 0, 2]), peers_wire.capabilities());
    let mut host = Host::new(host_config("10.0.0.2"), &device.capabilities(), 2);
    let app = App::Peers(Box::new(Peers::new(setting.agreed, at(1, 80), &mut host)));
    let client = Node::new(host, device, app, Box::new(peers_wire), None, None);
    Ok(World { now, moderation: Duration::from_micros(10), server, client })
}
