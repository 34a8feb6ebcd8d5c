//! `outboard-lab bench proxy-live`: wrk through `outboard proxy`, through HAProxy with
//! `splice-auto` and through nginx, on one core each, to an nginx that serves the files.
//!
//! All three proxies run during the whole benchmark, each in a network namespace ([`servers`]), and
//! take turns, so that other load on the machine affects all alike. Client and backend share the
//! other core and can be the bottleneck: if the client's core is busy, the CPU time per request
//! says more than requests per second. A row's result is the median over rounds of the ratio within
//! a round.
//!
//! `outboard proxy` reads the first request of a connection and relays the rest, like the paper's
//! proxies; HAProxy and nginx parse every request. Needs root, for the namespaces' interfaces. All
//! processes that it starts end with it.

mod servers;

use clap::Args;
use serde_json::{Map, Value, json};

use super::experiment::{BenchReport, Benchmark};
use super::live::comparison::{Measured, Rounds, RunValue, report};
use super::live::load::{self, LoadRun};
use super::live::machine::machine;
use super::live::outboard::LiveLink;
use super::live::{LoadRow, named, tools};
use cli::Failure;
use servers::ProxyLiveServers;

/// Arguments of `outboard-lab bench proxy-live`.
#[derive(Debug, Args)]
pub(crate) struct ProxyLiveArgs {
    #[command(flatten)]
    rounds: Rounds,
    /// Rows to measure
    #[arg(long, value_delimiter = ',', value_parser = |name: &str| named(&ROWS, name),
        default_values_t = ROWS)]
    rows: Vec<LoadRow>,
    /// Link of outboard. The others, and all links but `tap`, use a pair of virtual Ethernet
    /// interfaces
    #[arg(long, value_enum, default_value_t)]
    link: LiveLink,
    /// Pass an option to `outboard proxy`, such as `--proxy-option=--splice=off`; repeatable
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    proxy_option: Vec<String>,
}

/// Sizes of files like those of SPECweb2009 in AccelTCP, section 6.2: 30 to 5,670 bytes, 728 on
/// average. The logarithm of a size grows with a power of its position that leads to this average.
const SPECWEB_SIZES: [u64; 16] =
    [30, 30, 32, 34, 39, 47, 58, 77, 107, 157, 245, 406, 714, 1337, 2666, 5670];

const ROWS: [LoadRow; 5] = [
    LoadRow::new("4k", 4 << 10, 64),
    LoadRow::new("256k", 256 << 10, 64),
    LoadRow { close: true, ..LoadRow::new("4k-close", 4 << 10, 64) },
    LoadRow { close: true, ..LoadRow::new("256k-close", 256 << 10, 64) },
    LoadRow { mix: &SPECWEB_SIZES, ..LoadRow::new("specweb", SPECWEB_SIZES[0], 1024) },
];

/// Seconds of a warm-up run.
const WARM_UP_S: u32 = 1;
/// Proxies, in the order in which they run.
const NAMES: [&str; 3] = ["outboard", "haproxy", "nginx"];

impl Benchmark for ProxyLiveArgs {
    fn run(&self, to: &mut BenchReport) -> Result<(), Failure> {
        tools::check_root()?;
        tools::check_programs()?;
        tools::check(&[("haproxy", "haproxy")])?;
        let lab = ProxyLiveServers::start(&ROWS, self.link, &self.proxy_option)?;
        let servers = lab.servers();
        for &row in &self.rows {
            for server in servers {
                load::run(server, &lab.bed, row, WARM_UP_S)?;
            }
        }
        let measured = self.rounds.compare(&self.rows, |row, server, seconds, _| {
            load::run(&servers[server], &lab.bed, row, seconds)
        })?;
        let [spliced, relayed] = lab.relayed()?;
        let values: [RunValue; 3] = [
            ("requests", LoadRun::requests_per_s),
            ("CPU", LoadRun::server_s_per_request),
            ("core", LoadRun::core_s_per_request),
        ];
        report(to, NAMES, &measured, &values, fields);
        to.line(format!(
            "outboard's connections: {spliced} relayed by the device, {relayed} by the host"
        ));
        to.set("connections_spliced", spliced);
        to.set("connections_relayed", relayed);
        let mut headline = Map::new();
        for m in &measured {
            for (other, name) in NAMES.iter().enumerate().skip(1) {
                for (what, value) in &values {
                    let what = format!("{}_ratio_to_{name}_{}", what.to_lowercase(), m.row.name);
                    headline.insert(what, m.ratio(other, *value).into());
                }
            }
        }
        to.set("headline", headline);
        to.set("link", format!("{:?}", self.link).to_lowercase());
        to.set("machine", machine(&lab.bed, &["haproxy", "nginx", "wrk"]));
        Ok(())
    }
}

fn fields(m: &Measured<3>) -> Value {
    let ratios = |other| {
        json!({
            "requests": m.ratio(other, LoadRun::requests_per_s),
            "cpu_per_request": m.ratio(other, LoadRun::server_s_per_request),
            "core_per_request": m.ratio(other, LoadRun::core_s_per_request),
        })
    };
    json!({
        "body_bytes": m.row.mean_bytes(),
        "connection_close": m.row.close,
        "connections": m.row.connections,
        "ratio_to_haproxy": ratios(1),
        "ratio_to_nginx": ratios(2),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AccelTCP, section 6.2: "30 to 5,670 bytes with an average file size of 728 bytes".
    #[test]
    fn sizes_are_those_of_the_paper() {
        let ends = (SPECWEB_SIZES.iter().min(), SPECWEB_SIZES.iter().max());
        assert_eq!(ends, (Some(&30), Some(&5670)));
        let row = ROWS.iter().find(|row| row.name == "specweb").expect("a row");
        assert_eq!(row.mean_bytes(), 728);
        assert!(ROWS.iter().all(|row| row.mix.iter().all(|&size| size >= row.bytes)));
    }
}
