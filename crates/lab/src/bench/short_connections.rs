//! `outboard-lab bench short-connections`: host cost of small transactions (AccelTCP section 6.1.1:
//! figures 10 and 11, table 3).
//!
//! 16,000 concurrent transactions of 64 bytes in each direction, on a connection each: without
//! offload, with connection set-up by the device, with tear-down, with both, and with quasi-TCBs in
//! addition; and persistent connections, which need neither. Then messages up to 8 KB.

use clap::{Args, ValueEnum};
use host::ListenerOption;
use io::mem::link;
use serde_json::{Value, json};

use super::accounted::Pair;
use super::experiment::{self, Benchmark, Experiment, Fields, Report, find, median_by, ratio};
use super::short::{
    Agreed, Closes, MODERATION, ShortClient, ShortServer, TRANSMIT_RING, Transactions,
};
use super::testbed::{self, Machine};
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
    paths: Option<Vec<Mode>>,
    /// Number of concurrent transactions
    #[arg(long, default_value_t = CONCURRENT, value_name = "N")]
    concurrent: u32,
}

/// Offloads that the server uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
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

impl Mode {
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
struct Setting {
    mode: Mode,
    message_bytes: usize,
}

type Row = experiment::Row<Setting, Transactions>;

impl Benchmark for ShortConnectionsArgs {
    fn run(&self, report: &mut Report) -> Result<(), Failure> {
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
    fn groups(&self) -> Vec<Vec<Setting>> {
        let sizes = if self.quick { &SIZES[..1] } else { &SIZES };
        let sizes = self.sizes.as_deref().unwrap_or(sizes);
        let modes = self.paths.as_deref().unwrap_or_else(|| Mode::value_variants());
        let group = |&message_bytes: &usize| {
            modes.iter().map(|&mode| Setting { mode, message_bytes }).collect()
        };
        sizes.iter().map(group).collect()
    }
}

fn measure(
    Setting { mode, message_bytes }: Setting,
    concurrent: u32,
) -> Result<Transactions, Failure> {
    let per_connection = if mode == Mode::Persistent { u32::MAX } else { 1 };
    let agreed = Agreed { concurrent, message_bytes, per_connection, closes: Closes::Server };
    let mut pair = build(mode, agreed)?;
    pair.start();
    let done = |p: &Pair<ShortServer, ShortClient>| p.client.app.transactions;
    pair.run_until(|p| p.client.app.is_full())?;
    let full = done(&pair);
    pair.run_until(|p| done(p) >= full + 3 * u64::from(concurrent))?;
    let (from, before) = (done(&pair), pair.server_usage());
    pair.run_until(|p| done(p) >= from + 12 * u64::from(concurrent))?;
    Ok(Transactions { count: done(&pair) - from, used: pair.server_usage().since(&before) })
}

/// Checks at least nine in ten connections.
fn took_path(Setting { mode, message_bytes }: Setting, figures: &Transactions) -> bool {
    let moved = |name: &str| figures.used.moved(name);
    let most = figures.count * 9 / 10;
    let ran = |count: u64, wanted: bool| if wanted { count >= most } else { count == 0 };
    let whole = moved("quasi_made_whole") <= figures.count / 10;
    // A response of several segments, or of more than an initial window, promotes the quasi-TCB.
    let quasi = mode != Mode::All || message_bytes > 1024 || whole;
    ran(moved("setup_accepted"), mode.sets_up())
        && ran(moved("handed_over"), mode.tears_down())
        && quasi
}

fn fields(Row { setting, figures }: &Row, baseline: &Row) -> Fields {
    Fields::new()
        .show("bytes", "message_bytes", setting.message_bytes)
        .show("path", "path", setting.mode.name())
        .and(figures.fields())
        .column("baseline", baseline.figures.host_cycles() / figures.host_cycles())
        .counters(&figures.used.counters)
}

fn headline(rows: &[Row]) -> Value {
    let cycles = |mode| {
        let found = find(rows, |s| s.mode == mode && s.message_bytes == SIZES[0]);
        found.map(Transactions::host_cycles)
    };
    let all = cycles(Mode::All);
    json!({
        "ratio_all": ratio(cycles(Mode::Baseline), all),
        "host_cycles_all": all,
        "vs_persistent": ratio(all, cycles(Mode::Persistent)),
    })
}

fn build(mode: Mode, agreed: Agreed) -> Result<Pair<ShortServer, ShortClient>, Failure> {
    let (server_wire, client_wire) = link(&testbed::link_config(TRANSMIT_RING));
    let mut server = Machine::new(1);
    server.host.setup_offload = testbed::offload(mode.sets_up());
    server.host.teardown_offload = testbed::offload(mode.tears_down());
    server.host.lazy_tcb = mode == Mode::All;
    let options = [
        ListenerOption::DeferAccept(mode == Mode::All),
        ListenerOption::TeardownOffload(mode.tears_down()),
        ListenerOption::SetupOffload(mode.sets_up()),
    ];
    let server =
        server.start(Box::new(server_wire), |host| Ok(ShortServer::new(agreed, host, &options)))?;
    let app = ShortClient::new(agreed, testbed::endpoint(1, 80));
    let client = Machine::new(2).start(Box::new(client_wire), |_| Ok(app))?;
    Ok(Pair::new(server, client, MODERATION))
}
