//! `outboard-lab bench short-connections`: host cost of small transactions (AccelTCP section 6.1.1:
//! figures 10 and 11, table 3).
//!
//! 16,000 concurrent transactions of 64 bytes in each direction, on a connection each: without
//! offload, with connection set-up by the device, with tear-down, with both, and with quasi-TCBs in
//! addition; and persistent connections, which need neither. Then messages up to 8 KB.

use clap::{Args, ValueEnum};
use host::ListenerOption;
use io::memory_link::memory_link_pair;
use serde_json::{Value, json};

use super::cycle_accounting::AccountedPair;
use super::experiment::{
    self, BenchReport, Benchmark, Experiment, Fields, find_figures, median_by, ratio,
};
use super::short_conn_apps::{
    ClosingEnd, MODERATION, ShortClient, ShortServer, TRANSMIT_RING, TransactionParams,
    Transactions,
};
use super::testbed::{self, MachineConfig};
use cli::Failure;

/// Message sizes of the paper's figure 11.
const SIZES: [usize; 5] = [64, 256, 1024, 4096, 8192];
/// Concurrent transactions.
const CONCURRENT: u32 = 16_000;
/// Runs of each setting; the run with the median host cycles counts.
const REPEATS: usize = 3;
/// Arguments of `outboard-lab bench short-connections`.
#[derive(Debug, Args)]
pub(crate) struct ShortConnectionsArgs {
    /// Run only 64 bytes, once
    #[arg(long)]
    quick: bool,
    /// Message sizes in bytes [default: all]
    #[arg(long, value_delimiter = ',', value_name = "BYTES")]
    sizes: Option<Vec<usize>>,
    /// Paths to measure [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PATH")]
    paths: Option<Vec<ConnOffloadMode>>,
    /// Number of concurrent transactions
    #[arg(long, default_value_t = CONCURRENT, value_name = "N")]
    concurrent: u32,
}

/// Offloads that the server uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ConnOffloadMode {
    /// No offload
    Baseline,
    /// Connection set-up
    Setup,
    /// Connection tear-down
    Teardown,
    /// Connection set-up and tear-down
    Both,
    /// Connection set-up and tear-down, with quasi-TCBs on the host
    All,
    /// No offload, persistent connections
    Persistent,
}

impl ConnOffloadMode {
    const fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Setup => "+ set-up",
            Self::Teardown => "+ tear-down",
            Self::Both => "+ both",
            Self::All => "+ quasi-TCB",
            Self::Persistent => "persistent",
        }
    }

    const fn sets_up(self) -> bool {
        matches!(self, Self::Setup | Self::Both | Self::All)
    }

    const fn tears_down(self) -> bool {
        matches!(self, Self::Teardown | Self::Both | Self::All)
    }
}

/// Configuration of one run.
#[derive(Clone, Copy, Debug)]
struct ShortConnSetting {
    mode: ConnOffloadMode,
    message_bytes: usize,
}

type ShortConnRow = experiment::ResultRow<ShortConnSetting, Transactions>;

impl Benchmark for ShortConnectionsArgs {
    fn run(&self, report: &mut BenchReport) -> Result<(), Failure> {
        let experiment = Experiment {
            groups: self.groups(),
            repeats: if self.quick { 1 } else { REPEATS },
            measure: &mut |setting| measure(setting, self.concurrent),
            took_path: &took_path,
            combine: &|runs| median_by(runs, Transactions::host_cycles),
            fields: &fields,
        };
        let rows = report.measure("rows", experiment)?;
        report.set("headline", headline(&rows));
        Ok(())
    }
}

impl ShortConnectionsArgs {
    fn groups(&self) -> Vec<Vec<ShortConnSetting>> {
        let sizes = if self.quick { &SIZES[..1] } else { &SIZES };
        let sizes = self.sizes.as_deref().unwrap_or(sizes);
        let modes = self.paths.as_deref().unwrap_or_else(|| ConnOffloadMode::value_variants());
        let group = |&message_bytes: &usize| {
            modes.iter().map(|&mode| ShortConnSetting { mode, message_bytes }).collect()
        };
        sizes.iter().map(group).collect()
    }
}

fn measure(
    ShortConnSetting { mode, message_bytes }: ShortConnSetting,
    concurrent: u32,
) -> Result<Transactions, Failure> {
    let per_connection = if mode == ConnOffloadMode::Persistent { u32::MAX } else { 1 };
    let agreed =
        TransactionParams { concurrent, message_bytes, per_connection, closes: ClosingEnd::Server };
    let mut pair = build(mode, agreed)?;
    pair.start();
    let done = |p: &AccountedPair<ShortServer, ShortClient>| p.client.app.transactions;
    pair.run_until(|p| p.client.app.is_full())?;
    let full = done(&pair);
    pair.run_until(|p| done(p) >= full + 3 * u64::from(concurrent))?;
    let (from, before) = (done(&pair), pair.server_usage());
    pair.run_until(|p| done(p) >= from + 12 * u64::from(concurrent))?;
    Ok(Transactions { count: done(&pair) - from, used: pair.server_usage().since(&before) })
}

/// Checks at least nine in ten connections.
fn took_path(
    ShortConnSetting { mode, message_bytes }: ShortConnSetting,
    figures: &Transactions,
) -> bool {
    let moved = |name: &str| figures.used.moved(name);
    let most = figures.count * 9 / 10;
    let ran = |count: u64, wanted: bool| if wanted { count >= most } else { count == 0 };
    let whole = moved("quasi_tcbs_promoted") <= figures.count / 10;
    // A response of several segments, or of more than an initial window, promotes the quasi-TCB.
    let quasi = mode != ConnOffloadMode::All || message_bytes > 1024 || whole;
    ran(moved("setup_accepted"), mode.sets_up())
        && ran(moved("handed_over"), mode.tears_down())
        && quasi
}

fn fields(ShortConnRow { setting, figures }: &ShortConnRow, baseline: &ShortConnRow) -> Fields {
    Fields::new()
        .show("bytes", "message_bytes", setting.message_bytes)
        .show("path", "path", setting.mode.name())
        .append(figures.fields())
        .column("baseline", baseline.figures.host_cycles() / figures.host_cycles())
        .counters(&figures.used.counters)
}

fn headline(rows: &[ShortConnRow]) -> Value {
    let cycles = |mode| {
        let found = find_figures(rows, |s| s.mode == mode && s.message_bytes == SIZES[0]);
        found.map(Transactions::host_cycles)
    };
    let all = cycles(ConnOffloadMode::All);
    // Shares of a connection's cycles: what a run saves (AccelTCP, table 1).
    let saved = |mode| {
        ratio(cycles(mode), cycles(ConnOffloadMode::Baseline)).map(|remaining| 1.0 - remaining)
    };
    json!({
        "ratio_all": ratio(cycles(ConnOffloadMode::Baseline), all),
        "host_cycles_all": all,
        "vs_persistent": ratio(all, cycles(ConnOffloadMode::Persistent)),
        "connection_share": saved(ConnOffloadMode::Persistent),
        "setup_share": saved(ConnOffloadMode::Setup),
        "teardown_share": saved(ConnOffloadMode::Teardown),
    })
}

fn build(
    mode: ConnOffloadMode,
    agreed: TransactionParams,
) -> Result<AccountedPair<ShortServer, ShortClient>, Failure> {
    let (server_link, client_link) = memory_link_pair(&testbed::link_config(TRANSMIT_RING));
    let mut server = MachineConfig::new(1);
    server.host.setup_offload = testbed::offload(mode.sets_up());
    server.host.teardown_offload = testbed::offload(mode.tears_down());
    server.host.lazy_tcb = mode == ConnOffloadMode::All;
    let options = [
        ListenerOption::DeferAccept(mode == ConnOffloadMode::All),
        ListenerOption::TeardownOffload(mode.tears_down()),
        ListenerOption::SetupOffload(mode.sets_up()),
    ];
    let server =
        server.start(Box::new(server_link), |host| Ok(ShortServer::new(agreed, host, &options)))?;
    let app = ShortClient::new(agreed, testbed::endpoint(1, 80));
    let client = MachineConfig::new(2).start(Box::new(client_link), |_| Ok(app))?;
    Ok(AccountedPair::new(server, client, MODERATION))
}
