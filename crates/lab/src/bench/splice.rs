//! `outboard-lab bench splice`: host cost of a proxy, relaying in software and spliced by the
//! device (AccelTCP section 6.1.2: figures 12 and 13).
//!
//! The product's proxy in TCP mode, between 8,000 clients and as many connections to a backend,
//! with messages of 64 bytes to 8 KB in each direction and 1 to 128 transactions per connection.
//! Clients and backend are on one machine. Then persistent connections: the host's remaining work
//! once all of them are spliced, and the device's cost per packet.

use apps::proxy::{self, Proxy, ProxyListener, ProxyMode, ProxyPool, ProxyTable};
use base::Duration;
use clap::Args;
use io::memory_link::memory_link_pair;
use serde_json::{Value, json};

use super::cycle_accounting::{AccountedPair, START, Usage};
use super::experiment::{
    self, BenchReport, Benchmark, Experiment, Fields, find_figures, median_by, ratio,
};
use super::short_conn_apps::{
    ClosingEnd, MODERATION, PORTS, ProxyPeers, TransactionParams, Transactions,
};
use super::testbed::{self, MachineConfig};
use cli::Failure;

/// Frames that the link holds: more than all clients and backends send at a time, so that the link
/// is never full.
const LINK_FRAMES: usize = 65_536;
/// Message sizes in bytes.
const SIZES: [usize; 5] = [64, 256, 1024, 4096, 8192];
/// Transactions per connection, as in the paper's figure 13.
const TRANSACTIONS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// Concurrent clients.
const CONCURRENT: u32 = 8_000;
/// Runs of each setting; the run with the median host cycles counts.
const REPEATS: usize = 3;
/// Arguments of `outboard-lab bench splice`.
#[derive(Debug, Args)]
pub(crate) struct SpliceArgs {
    /// Run only 64 bytes, once, with 1 and 128 transactions and on persistent connections
    #[arg(long)]
    quick: bool,
    /// Run only 64 bytes on persistent, spliced connections; for a profiler
    #[arg(long)]
    spliced: bool,
    /// Number of concurrent clients
    #[arg(long, default_value_t = CONCURRENT, value_name = "N")]
    concurrent: u32,
}

/// Configuration of one run.
#[derive(Clone, Copy, Debug)]
struct SpliceSetting {
    splice: bool,
    params: TransactionParams,
}

impl SpliceSetting {
    const fn persists(&self) -> bool {
        self.params.per_connection == u32::MAX
    }
}

/// Result of one run.
#[derive(Debug)]
struct SpliceFigures {
    transactions: Transactions,
    /// Pairs that are spliced at the end of the run.
    open: u64,
}

impl SpliceFigures {
    fn used(&self) -> &Usage {
        &self.transactions.used
    }

    fn per_packet(&self, cycles: u64) -> f64 {
        cycles as f64 / self.used().device_packets as f64
    }

    /// Sort key: host cycles per transaction, then the device's cycles.
    fn cost(&self) -> (u64, u64) {
        let cycles = self.used().cycles;
        (cycles.host / self.transactions.count, cycles.device)
    }
}

type SpliceRow = experiment::ResultRow<SpliceSetting, SpliceFigures>;

impl Benchmark for SpliceArgs {
    fn run(&self, report: &mut BenchReport) -> Result<(), Failure> {
        let counts: &[u32] = if self.quick { &[1, 128] } else { &TRANSACTIONS };
        let most = counts.last().copied().unwrap_or(1);
        let experiment = Experiment {
            groups: self.groups(counts, most),
            repeats: if self.quick { 1 } else { REPEATS },
            measure: &mut measure,
            took_path: &took_path,
            combine: &|runs| median_by(runs, SpliceFigures::cost),
            fields: &fields,
        };
        let rows = report.measure("rows", experiment)?;
        report.set("headline", headline(&rows, most));
        Ok(())
    }
}

impl SpliceArgs {
    /// Returns the settings: the largest number of transactions with every size, every number of
    /// transactions with the smallest size, and every size on persistent connections.
    fn groups(&self, counts: &[u32], most: u32) -> Vec<Vec<SpliceSetting>> {
        let persistent = |message_bytes| TransactionParams {
            concurrent: self.concurrent,
            message_bytes,
            per_connection: u32::MAX,
            closes: ClosingEnd::Client,
        };
        if self.spliced {
            return vec![vec![SpliceSetting { splice: true, params: persistent(SIZES[0]) }]];
        }
        let sizes = if self.quick { &SIZES[..1] } else { &SIZES };
        let by_count = counts.iter().map(|&count| (SIZES[0], count));
        let by_size = sizes.iter().skip(1).map(|&bytes| (bytes, most));
        let of_any_length = sizes.iter().map(|&bytes| (bytes, u32::MAX));
        let group = |(message_bytes, per_connection)| {
            let agreed = TransactionParams { per_connection, ..persistent(message_bytes) };
            [false, true].map(|splice| SpliceSetting { splice, params: agreed }).into()
        };
        by_count.chain(by_size).chain(of_any_length).map(group).collect()
    }
}

fn measure(setting: SpliceSetting) -> Result<SpliceFigures, Failure> {
    let mut pair = build(setting)?;
    pair.start();
    let done = |p: &AccountedPair<Proxy, ProxyPeers>| p.client.app.client.transactions;
    let spliced = |p: &AccountedPair<Proxy, ProxyPeers>| p.server_usage().moved("splice_pairs");
    let clients = u64::from(setting.params.concurrent);
    pair.run_until(|p| p.client.app.client.is_full())?;
    let full = done(&pair);
    pair.run_until(|p| done(p) >= full + 3 * clients)?;
    if setting.persists() && setting.splice {
        // Until the last pair is spliced, a few transactions at a time.
        while spliced(&pair) < clients && done(&pair) < full + 20 * clients {
            let next = done(&pair) + clients / 4;
            pair.run_until(|p| done(p) >= next)?;
        }
    }
    let (from, before) = (done(&pair), pair.server_usage());
    let wanted = match setting.params.per_connection {
        u32::MAX => 20 * clients,
        count => (2 * clients * u64::from(count)).max(10 * clients),
    };
    pair.run_until(|p| done(p) >= from + wanted)?;
    let used = pair.server_usage().since(&before);
    let transactions = Transactions { count: done(&pair) - from, used };
    Ok(SpliceFigures { transactions, open: spliced(&pair) })
}

fn took_path(setting: SpliceSetting, figures: &SpliceFigures) -> bool {
    let began = figures.used().moved("splice_begun");
    match (setting.splice, setting.persists()) {
        (false, _) => began == 0 && figures.open == 0,
        // A few connections may still be in the handshake: a lost SYN is repeated after a second,
        // which is the time of many thousand transactions.
        (true, true) => figures.open >= u64::from(setting.params.concurrent) * 95 / 100,
        (true, false) => {
            let connections = figures.transactions.count / u64::from(setting.params.per_connection);
            began >= connections * 8 / 10
        }
    }
}

fn fields(SpliceRow { setting, figures }: &SpliceRow, relayed: &SpliceRow) -> Fields {
    let TransactionParams { message_bytes, per_connection, concurrent, .. } = setting.params;
    let cycles = figures.used().cycles;
    let count = (!setting.persists()).then_some(per_connection);
    let [here, relayed] = [figures, &relayed.figures].map(|f| f.transactions.host_cycles());
    Fields::new()
        .show("bytes", "message_bytes", message_bytes)
        .column("req/conn", count.map_or_else(|| "persistent".into(), Value::from))
        .field("transactions_per_connection", count)
        .show("path", "path", if setting.splice { "splice" } else { "relay" })
        .field("clients", concurrent)
        .append(figures.transactions.fields())
        .show("per packet", "device_cycles_per_packet", figures.per_packet(cycles.device))
        .field("link_cycles_per_packet", figures.per_packet(cycles.link))
        .column("ratio", relayed / here.max(0.01))
        .counters(&figures.used().counters)
}

fn headline(rows: &[SpliceRow], most: u32) -> Value {
    let find = |splice, count| {
        find_figures(rows, |s| {
            let TransactionParams { message_bytes, per_connection, .. } = s.params;
            (s.splice, per_connection, message_bytes) == (splice, count, SIZES[0])
        })
    };
    let cycles = |splice| find(splice, most).map(|figures| figures.transactions.host_cycles());
    let lasting = find(true, u32::MAX);
    json!({
        "host_packets_after_splice": lasting.map(|f| f.used().host_packets),
        "ratio_host_cycles": ratio(cycles(false), cycles(true)),
        "device_cycles_per_packet": lasting.map(|f| f.per_packet(f.used().cycles.device)),
        "link_cycles_per_packet_of_these": lasting.map(|f| f.per_packet(f.used().cycles.link)),
    })
}

fn build(setting: SpliceSetting) -> Result<AccountedPair<Proxy, ProxyPeers>, Failure> {
    let (proxy_link, peers_link) = memory_link_pair(&testbed::link_config(LINK_FRAMES));
    let listener = |port| ProxyListener {
        addr: None,
        port,
        mode: ProxyMode::Tcp,
        routes: Vec::new(),
        default: Some(0),
        insert: proxy::InsertedFields::default(),
        policy: proxy::ForwardingPolicy::Append,
        keep_alive: true,
        offloads: proxy::ProxyOffloads::ALL,
    };
    let ports = 80..80 + PORTS;
    let table = ProxyTable {
        listeners: ports.clone().map(listener).collect(),
        pools: vec![ProxyPool {
            backends: ports.map(|port| testbed::endpoint(2, port).into()).collect(),
            check: proxy::HealthCheckConfig {
                interval: Duration::ZERO,
                ..proxy::HealthCheckConfig::default()
            },
            ..ProxyPool::default()
        }],
        ..ProxyTable::default()
    };
    let config = proxy::ProxyConfig {
        backlog: 65_536,
        splice: setting.splice,
        ..proxy::ProxyConfig::default()
    };
    let server = MachineConfig::new(1).start(Box::new(proxy_link), |host| {
        Proxy::new(START, config, table, host).map_err(testbed::cannot_listen)
    })?;
    let proxy = testbed::endpoint(1, 80);
    let client = MachineConfig::new(2)
        .start(Box::new(peers_link), |host| Ok(ProxyPeers::new(setting.params, proxy, host)))?;
    Ok(AccountedPair::new(server, client, MODERATION))
}
