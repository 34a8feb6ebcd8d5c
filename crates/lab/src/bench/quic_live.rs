//! `outboard-lab bench quic-live`: HTTP/3 from `outboard serve` and from quinn over kernel UDP with
//! segmentation and receive offload (`UDP_SEGMENT`, `UDP_GRO`), on one core each.
//!
//! Both servers run during the whole benchmark, each in a network namespace ([`servers`]), and take
//! turns, so that other load on the machine affects both. Client, cipher suite, certificate,
//! congestion control and the other transport parameters are the same. The client, also quinn, has
//! a core of its own. A row's result is the median over rounds of the ratio within a round.
//!
//! The other end of both links is the kernel, whose receive processing for the client runs on the
//! server's core: with the TAP, in our process's time; with the pair of virtual Ethernet
//! interfaces, in soft interrupts, which are charged to no process. The core's busy time is
//! therefore the value to compare, besides the CPU time of the server's threads
//! ([`crate::bench::live::load`]).
//!
//! Reference server and client are programs of crate `interop`, because quinn, h3 and tokio are not
//! dependencies of the product; they are expected in this program's folder. Needs root, for the
//! namespaces' interfaces. All processes that it starts end with it.

mod servers;

use clap::Args;
use serde_json::{Map, Value, json};

use super::experiment::{BenchReport, Benchmark};
use super::live::comparison::{Measured, Rounds, RunValue, report};
use super::live::load::LoadRun;
use super::live::machine::machine;
use super::live::outboard::LiveServeOptions;
use super::live::{LoadRow, named, tools};
use cli::Failure;
use servers::{ByDevice, QuicLiveServers};

/// Arguments of `outboard-lab bench quic-live`.
#[derive(Debug, Args)]
pub(crate) struct QuicLiveArgs {
    #[command(flatten)]
    rounds: Rounds,
    /// Rows to measure
    #[arg(long, value_delimiter = ',', value_parser = |name: &str| named(&ROWS, name),
        default_values_t = ROWS)]
    rows: Vec<LoadRow>,
    #[command(flatten)]
    serve: LiveServeOptions,
}

const ROWS: [LoadRow; 3] = [
    LoadRow::over_tls("large", 256 << 20, 1),
    LoadRow::over_tls("many", 8 << 20, 16),
    LoadRow { streams: 16, ..LoadRow::over_tls("small", 4 << 10, 8) },
];

/// Seconds of a warm-up run.
const WARM_UP_S: u32 = 1;

impl Benchmark for QuicLiveArgs {
    fn run(&self, to: &mut BenchReport) -> Result<(), Failure> {
        tools::check_root()?;
        tools::check_programs()?;
        let lab = QuicLiveServers::start(&ROWS, self.serve.link, &self.serve.options)?;
        let servers = [&lab.outboard, &lab.quinn];
        for &row in &self.rows {
            eprintln!("warming up: {row}");
            for server in servers {
                lab.run(server, row, WARM_UP_S)?;
            }
        }
        let measured = self.rounds.compare(&self.rows, |row, server, seconds, _| {
            lab.run(servers[server], row, seconds)
        })?;
        let values: [RunValue; 3] = [
            ("bytes per second", LoadRun::bytes_per_s),
            ("CPU per byte", LoadRun::server_s_per_byte),
            ("core", LoadRun::core_s_per_byte),
        ];
        report(to, ["outboard", "quinn"], &measured, &values, fields);
        let ByDevice { sealed, opened, file_bytes, datagrams } = lab.by_device()?;
        to.line(format!(
            "outboard's device encrypted {sealed} of {datagrams} datagrams, decrypted {opened}, \
             and sent \
             {file_bytes} bytes of files into them."
        ));
        to.set("device_sealed", sealed);
        to.set("device_opened", opened);
        to.set("device_file_bytes", file_bytes);
        to.set("datagrams_sent", datagrams);
        let mut headline = Map::new();
        for m in &measured {
            let mut put = |what: &str, value| {
                let name = format!("{what}_ratio_to_quinn_{}", m.row.name);
                headline.insert(name, m.ratio(1, value).into());
            };
            put("bytes_per_s", LoadRun::bytes_per_s);
            put("server_cpu_per_byte", LoadRun::server_s_per_byte);
            put("core_busy_per_byte", LoadRun::core_s_per_byte);
        }
        to.set("headline", headline);
        to.set("link", format!("{:?}", self.serve.link).to_lowercase());
        to.set("machine", machine(&lab.bed, &[]));
        Ok(())
    }
}

fn fields(m: &Measured<2>) -> Value {
    json!({
        "file_bytes": m.row.bytes,
        "requests_at_one_time_per_connection": m.row.streams,
        "bytes_per_s_ratio": m.ratio(1, LoadRun::bytes_per_s),
        "server_cpu_per_byte_ratio": m.ratio(1, LoadRun::server_s_per_byte),
        "server_cpu_per_byte_ratio_of_rounds": m.ratios(1, LoadRun::server_s_per_byte),
        "core_busy_per_byte_ratio": m.ratio(1, LoadRun::core_s_per_byte),
        "core_busy_per_byte_ratio_of_rounds": m.ratios(1, LoadRun::core_s_per_byte),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_names() {
        let small = named(&ROWS, "small").unwrap();
        assert_eq!((small.bytes, small.connections, small.streams), (4096, 8, 16));
        assert!(named(&ROWS, "tiny").is_err());
    }
}
