//! `outboard-lab bench remote-storage`: a content server whose files are on an NVMe/TCP target, in
//! accounted mode (ANO section 6.3, configuration C1: figures 12 and 14, table 5).
//!
//! Each request reads its file from the target. Host cycles of the server per request and per byte
//! are measured with offloads added one by one, in the order of table 5: TLS to the clients,
//! placement ("copy"), digests ("crc"). Three series: HTTP over NVMe/TCP (figure 12), HTTPS over
//! NVMe/TCP (table 5), and HTTPS over NVMe-TLS (figure 14), where TLS of the storage is offloaded
//! with that of the clients. Placed blocks are sent from where they lie, so that TLS offload is the
//! paper's "offload+zc": the last column shows the bytes that the host copies for each byte of
//! content.
//!
//! No device places data without checking digests, so "copy" discards the device's digest results
//! before the host sees them. Clients compare the length of each body and sample its bytes.

mod pair;

use std::collections::BTreeMap;
use std::path::Path;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::cycle_accounting::CounterMap;
use super::experiment::{
    self, BenchReport, Benchmark, Experiment, Fields, TempFolder, find_figures, median, ratio,
};
use super::testbed::Files;
use cli::Failure;
use pair::{RemotePair, make_image, remote_pair};

/// File sizes of the paper's table 5.
const SIZES: [u64; 4] = [4 << 10, 16 << 10, 64 << 10, 256 << 10];
/// Those of `--quick`.
const QUICK_SIZES: [u64; 2] = [16 << 10, 256 << 10];
/// Runs of each setting.
const REPEATS: usize = 3;
/// Limit of the body bytes that a run measures.
const MEASURED_BYTES_MAX: u64 = 192 << 20;
/// Limit of the requests that a run measures.
const REQUESTS_MAX: u64 = 4_000;
/// Slices of a run; the median over the slices of all runs is not disturbed by an interruption.
const SLICES: u64 = 16;

/// Arguments of `outboard-lab bench remote-storage`.
#[derive(Debug, Args)]
pub(crate) struct RemoteStorageArgs {
    /// Run only 16 and 256 KiB, once
    #[arg(long)]
    quick: bool,
    /// File sizes in bytes, multiples of 4096 up to 1048576 [default: all]
    #[arg(long, value_delimiter = ',', value_name = "BYTES",
        value_parser = clap::value_parser!(u64).range(4096..=1_048_576))]
    sizes: Option<Vec<u64>>,
    /// Protocols to measure [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SERIES")]
    series: Option<Vec<RemoteSeries>>,
    /// Number of connections, each of which requests one file after another
    #[arg(long, default_value_t = 16, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=64))]
    connections: u32,
}

/// Protocols of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RemoteSeries {
    /// HTTP, and storage over NVMe/TCP
    Http,
    /// HTTPS, and storage over NVMe/TCP
    Https,
    /// HTTPS, and storage over NVMe-TLS
    NvmeTls,
}

/// Protocol of the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StorageProtocol {
    NvmeTcp,
    NvmeTls,
}

impl RemoteSeries {
    const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::NvmeTls => "nvme-tls",
        }
    }

    const fn is_https(self) -> bool {
        !matches!(self, Self::Http)
    }

    const fn port(self) -> u16 {
        if self.is_https() { 443 } else { 80 }
    }

    const fn storage(self) -> StorageProtocol {
        match self {
            Self::Http | Self::Https => StorageProtocol::NvmeTcp,
            Self::NvmeTls => StorageProtocol::NvmeTls,
        }
    }

    /// Returns the offloads that are compared, each with all before it.
    const fn steps(self) -> &'static [RemoteOffloads] {
        match self {
            Self::Http => &[SOFTWARE, COPY, COPY_CRC],
            Self::Https | Self::NvmeTls => &[SOFTWARE, TLS, TLS_COPY, TLS_COPY_CRC],
        }
    }
}

/// Work of the server's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RemoteOffloads {
    /// Name in the report.
    name: &'static str,
    /// It encrypts and decrypts TLS.
    tls: bool,
    /// It places data in the buffers of reads.
    copy: bool,
    /// It verifies data digests.
    crc: bool,
}

const SOFTWARE: RemoteOffloads =
    RemoteOffloads { name: "software", tls: false, copy: false, crc: false };
const COPY: RemoteOffloads = RemoteOffloads { name: "+copy", copy: true, ..SOFTWARE };
const COPY_CRC: RemoteOffloads = RemoteOffloads { name: "+crc", crc: true, ..COPY };
const TLS: RemoteOffloads = RemoteOffloads { name: "+tls", tls: true, ..SOFTWARE };
const TLS_COPY: RemoteOffloads = RemoteOffloads { tls: true, ..COPY };
const TLS_COPY_CRC: RemoteOffloads = RemoteOffloads { tls: true, ..COPY_CRC };

/// Configuration of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RemoteSetting {
    series: RemoteSeries,
    offloads: RemoteOffloads,
    size: u64,
}

/// Cycles of a slice of a run, per request.
#[derive(Clone, Copy, Debug)]
struct RemoteSlice {
    host: f64,
    device: f64,
}

/// Result of a run, or of several runs of one setting.
#[derive(Debug)]
struct RemoteFigures {
    requests: u64,
    body_bytes: u64,
    slices: Vec<RemoteSlice>,
    /// Counters of the server's machine.
    counters: CounterMap,
}

type RemoteRow = experiment::ResultRow<RemoteSetting, RemoteFigures>;

impl Benchmark for RemoteStorageArgs {
    fn run(&self, report: &mut BenchReport) -> Result<(), Failure> {
        let folder = TempFolder::new();
        let mut images = RemoteImages::new(folder.path());
        let experiment = Experiment {
            groups: self.groups()?,
            repeats: if self.quick { 1 } else { REPEATS },
            measure: &mut |setting: RemoteSetting| {
                let measured = (MEASURED_BYTES_MAX / setting.size).min(REQUESTS_MAX);
                measure(setting, self.connections, measured, &mut images)
            },
            took_path: &took_path,
            combine: &RemoteFigures::of_all,
            fields: &fields,
        };
        let rows = report.measure("rows", experiment)?;
        report.set("headline", headline(&rows));
        Ok(())
    }
}

impl RemoteStorageArgs {
    /// Returns the settings, those that are compared in one group.
    fn groups(&self) -> Result<Vec<Vec<RemoteSetting>>, Failure> {
        let all: &[u64] = if self.quick { &QUICK_SIZES } else { &SIZES };
        let sizes = self.sizes.as_deref().unwrap_or(all);
        if let Some(size) = sizes.iter().find(|size| *size % 4096 != 0) {
            let line = format!("--sizes: {size} is no multiple of 4096, the size of a block");
            return Err(Failure::Usage(line));
        }
        let every = [RemoteSeries::Http, RemoteSeries::Https, RemoteSeries::NvmeTls];
        let series = self.series.as_deref().unwrap_or(&every);
        let group = |(size, series): (u64, RemoteSeries)| {
            let of = |&offloads| RemoteSetting { series, offloads, size };
            series.steps().iter().map(of).collect()
        };
        let pairs = sizes.iter().flat_map(|&size| series.iter().map(move |&one| (size, one)));
        Ok(pairs.map(group).collect())
    }
}

/// The file system of the runs, for one size of files at a time.
struct RemoteImages<'a> {
    folder: &'a Path,
    files: Option<Files>,
}

impl<'a> RemoteImages<'a> {
    const fn new(folder: &'a Path) -> Self {
        Self { folder, files: None }
    }

    fn of_size(&mut self, size: u64) -> Result<Files, Failure> {
        if let Some(files) = self.files.as_ref().filter(|files| files.size == size) {
            return Ok(files.clone());
        }
        Ok(self.files.insert(make_image(self.folder, size)?).clone())
    }
}

impl RemoteFigures {
    fn moved(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or_default()
    }

    fn host_per_request(&self) -> f64 {
        median(self.slices.iter().map(|slice| slice.host))
    }

    fn device_per_request(&self) -> f64 {
        median(self.slices.iter().map(|slice| slice.device))
    }

    /// Combines the figures of several runs of one setting.
    fn of_all(mut runs: Vec<Self>) -> Self {
        let mut all = runs.swap_remove(0);
        for run in runs {
            all.requests += run.requests;
            all.body_bytes += run.body_bytes;
            all.slices.extend(run.slices);
            for (name, value) in run.counters {
                *all.counters.entry(name).or_default() += value;
            }
        }
        all
    }
}

/// Executes a run: warms up until every file is open, and measures this number of requests.
fn measure(
    setting: RemoteSetting,
    connections: u32,
    measured: u64,
    images: &mut RemoteImages<'_>,
) -> Result<RemoteFigures, Failure> {
    let files = images.of_size(setting.size)?;
    let warm = u64::from(files.count + 2 * connections);
    let mut pair = remote_pair(setting, connections, files, images.folder)?;
    pair.start();
    let done = |p: &RemotePair| p.client.app.client.responses;
    pair.run_until(|p| done(p) >= warm)?;
    let (before, from) = (pair.server_usage(), done(&pair));
    let bytes = pair.client.app.client.body_bytes;
    let mut slices = Vec::new();
    for part in 1..=SLICES {
        let (mark, cycles) = (done(&pair), pair.server.cycles);
        let until = from + measured * part / SLICES;
        pair.run_until(|p| done(p) >= until)?;
        let requests = (done(&pair) - mark) as f64;
        if requests > 0.0 {
            let after = pair.server.cycles;
            slices.push(RemoteSlice {
                host: (after.host - cycles.host) as f64 / requests,
                device: (after.device - cycles.device) as f64 / requests,
            });
        }
    }
    Ok(RemoteFigures {
        requests: done(&pair) - from,
        body_bytes: pair.client.app.client.body_bytes - bytes,
        slices,
        counters: pair.server_usage().since(&before).counters,
    })
}

/// Returns whether the device did the work of the setting, and the host the rest, and whether all
/// content came from the target.
fn took_path(setting: RemoteSetting, figures: &RemoteFigures) -> bool {
    let RemoteSetting { series, offloads, .. } = setting;
    let moved = |name: &str| figures.moved(name) > 0;
    let only =
        |wanted: bool, device: &str, host: &str| moved(device) == wanted && moved(host) != wanted;
    let encrypts = offloads.tls && series.is_https();
    let decrypts = offloads.tls && series.storage() == StorageProtocol::NvmeTls;
    let has_come_from_target =
        figures.moved("remote_fetched_bytes") * 100 >= figures.body_bytes * 95;
    only(offloads.crc, "nvme_rx_digests_device", "nvme_rx_digests_host")
        && only(offloads.copy, "nvme_rx_placed_bytes", "nvme_rx_copied_bytes")
        && moved("tx_tls_encrypted_bytes") == encrypts
        // Requests are decrypted, too, but they are short.
        && (figures.moved("rx_tls_decrypted_bytes") >= figures.body_bytes) == decrypts
        && has_come_from_target
}

/// Returns the bytes that the host copied for each byte of content.
fn copied_share(figures: &RemoteFigures) -> f64 {
    let copied = figures.moved("nvme_rx_copied_bytes") + figures.moved("remote_copied_bytes");
    copied as f64 / figures.body_bytes as f64
}

fn fields(row: &RemoteRow, first: &RemoteRow) -> Fields {
    let RemoteRow { setting, figures } = row;
    let size = setting.size as f64;
    let relative = figures.host_per_request() / first.figures.host_per_request();
    Fields::new()
        .show("series", "series", setting.series.name())
        .show("file", "file_bytes", setting.size)
        .show("offloads", "offloads", setting.offloads.name)
        .field("requests", figures.requests)
        .show("host c/req", "host_cycles_per_request", figures.host_per_request())
        .show("host c/B", "host_cycles_per_byte", figures.host_per_request() / size)
        .show("relative", "host_cycles_relative", relative)
        .show("dev c/B", "device_cycles_per_byte", figures.device_per_request() / size)
        .show("copied", "copied_bytes_per_byte", copied_share(figures))
        .counters(&figures.counters)
}

/// Returns, for each series and its largest files, the ratio of host cycles without offload to
/// those with all.
fn headline(rows: &[RemoteRow]) -> Value {
    let largest = rows.iter().map(|row| row.setting.size).max().unwrap_or(0);
    let mut ratios = BTreeMap::new();
    for series in [RemoteSeries::Http, RemoteSeries::Https, RemoteSeries::NvmeTls] {
        let cost = |offloads: Option<&RemoteOffloads>| {
            let wanted =
                offloads.map(|&offloads| RemoteSetting { series, offloads, size: largest });
            find_figures(rows, |&setting| Some(setting) == wanted)
                .map(RemoteFigures::host_per_request)
        };
        let steps = series.steps();
        ratios.insert(series.name(), ratio(cost(steps.first()), cost(steps.last())));
    }
    json!({ "file_bytes": largest, "host_cycles_ratio": ratios })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_takes_its_path() {
        let folder = std::env::temp_dir().join(format!("outboard-remote-{}", std::process::id()));
        let mut images = RemoteImages::new(&folder);
        for size in [4 << 10, 256 << 10] {
            for series in [RemoteSeries::Http, RemoteSeries::Https, RemoteSeries::NvmeTls] {
                for &offloads in series.steps() {
                    let setting = RemoteSetting { series, offloads, size };
                    let figures = measure(setting, 4, 40, &mut images).unwrap();
                    // Checked by the counters that moved.
                    assert!(took_path(setting, &figures), "{setting:?}: {figures:?}");
                    assert_eq!(figures.body_bytes / size, figures.requests, "whole files");
                }
            }
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn sizes_are_multiples_of_a_block() {
        let args = RemoteStorageArgs {
            quick: true,
            sizes: Some(vec![5000]),
            series: None,
            connections: 1,
        };
        assert!(args.groups().is_err_and(|e| e.to_string().contains("5000 is no multiple")));
        let all = RemoteStorageArgs { sizes: None, ..args };
        assert_eq!(all.groups().unwrap().iter().map(Vec::len).sum::<usize>(), 2 * 11);
    }
}
