//! `outboard-lab bench`: the papers' tables, and comparisons with other programs.
//!
//! A benchmark is a file or a folder: it implements [`experiment::Benchmark`] and hands its tables
//! to [`experiment::BenchReport`].
//!
//! - Accounted benchmarks ([`io_tcp`], [`memory`], [`tls`], [`tls_loss`], [`tls_scale`],
//!   [`short_connections`], [`splice`], [`quic`], [`quic_reorder`], [`nvme`], [`nvme_loss`],
//!   [`remote_storage`]) run client, link, device and host in turn on one thread
//!   ([`cycle_accounting`]) and sum the cycles of each. [`testbed`] and the modules whose names end
//!   in `_pair` build the machines that several of them run.
//! - Live benchmarks ([`serve_live`], [`device_process`], [`device_programs`], [`proxy_live`],
//!   [`quic_live`], [`quic_relay`]) run the program as users do, in turn with other programs or
//!   arrangements ([`live::comparison`]).
//! - [`splice_frames`] runs the device alone on XDP sockets, beside programs of the kernel.
//! - [`connections`], [`tls_engine`], [`aead_workers`], [`timer_wheel`] and [`carriers`] measure a
//!   device, a data structure or a carrier alone.
//!
//! Every claim is a ratio measured within one run, because machines differ.

mod aead_workers;
mod carriers;
mod client;
mod connections;
mod content_pair;
mod cycle_accounting;
mod device_process;
mod device_programs;
mod disk;
mod experiment;
mod faults;
mod io_tcp;
mod live;
mod memory;
mod nvme;
mod nvme_loss;
mod nvme_pair;
mod proxy_live;
mod queue_balance;
mod queue_scaling;
mod quic;
mod quic_live;
mod quic_pair;
mod quic_relay;
mod quic_reorder;
mod remote_storage;
mod serve_live;
mod short_conn_apps;
mod short_connections;
mod splice;
mod splice_frames;
mod stream;
mod stream_pair;
mod testbed;
mod timed_crypto;
mod timer_wheel;
mod tls;
mod tls_configs;
mod tls_engine;
mod tls_loss;
mod tls_scale;

use clap::{Args, Subcommand};

use cli::Failure;
use experiment::{BenchReport, Benchmark};
pub(crate) use experiment::{Fields, TextTable, median};

/// Arguments of `outboard-lab bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    bench: Bench,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

/// Benchmarks.
#[derive(Debug, Subcommand)]
enum Bench {
    /// Measure host and device cycles per byte and per request, against reading files on the host
    IoTcp(io_tcp::IoTcpArgs),
    /// Measure host cycles per byte of plain TCP, of TLS by the host, and of TLS by the device
    Tls(tls::TlsArgs),
    /// Measure the device's TLS encryption and decryption rates, against single calls of aws-lc
    TlsEngine(tls_engine::TlsEngineArgs),
    /// Measure the device's encryption and decryption rates with crypto workers, against the device
    /// alone
    AeadWorkers(aead_workers::AeadWorkersArgs),
    /// Measure TLS offload under loss and reordering: the paper's algorithm and ours
    TlsLoss(tls_loss::TlsLossArgs),
    /// Measure TLS offload with 64 to 128 K flows and a small context memory
    TlsScale(tls_scale::TlsScaleArgs),
    /// Measure host cycles and packets of small transactions, with and without connection set-up
    /// and tear-down by the device
    ShortConnections(short_connections::ShortConnectionsArgs),
    /// Measure host cycles and packets of a proxy: relayed in software, and spliced by the device
    Splice(splice::SpliceArgs),
    /// Measure frames per second that the device splices between XDP sockets, against the kernel's
    /// XDP
    SpliceFrames(splice_frames::SpliceFramesArgs),
    /// Measure the device's connection set-up rate, and the cost of floods
    Connections(connections::ConnectionsArgs),
    /// Measure host cycles per byte of QUIC: in software, and with offload to the device
    Quic(quic::QuicArgs),
    /// Measure QUIC throughput under reordering and loss, with and without reordering by the
    /// device; compare its window with a splay tree and a list
    QuicReorder(quic_reorder::QuicReorderArgs),
    /// Compare `outboard serve --http3` with quinn over kernel UDP, on one core each
    QuicLive(quic_live::QuicLiveArgs),
    /// Compare `outboard serve --http3` with quic-go and ngtcp2 over a path with loss and
    /// reordering
    QuicRelay(quic_relay::QuicRelayArgs),
    /// Measure host cycles of NVMe/TCP reads and writes: in software, with digests and placement by
    /// the device, over TLS, and from a target's file
    Nvme(nvme::NvmeArgs),
    /// Measure NVMe/TCP offload under loss and reordering: the paper's algorithm and ours
    NvmeLoss(nvme_loss::NvmeLossArgs),
    /// Measure host cycles of a content server whose files are on an NVMe/TCP target, with the
    /// offloads of TLS and NVMe/TCP added one by one
    RemoteStorage(remote_storage::RemoteStorageArgs),
    /// Compare the timer bitmap wheel, the device's wheel of lists and a hashed timing wheel
    TimerWheel(timer_wheel::TimerWheelArgs),
    /// Measure the cost of carrying operations and events within a process, and through memory
    /// shared by two
    Carriers(carriers::CarriersArgs),
    /// Measure bytes of host memory per idle established connection
    Memory(memory::MemoryArgs),
    /// Compare `outboard proxy` with HAProxy and nginx, on one core each
    ProxyLive(proxy_live::ProxyLiveArgs),
    /// Compare `outboard serve` with nginx, on one core each, under load from wrk
    ServeLive(serve_live::ServeLiveArgs),
    /// Compare `outboard serve` attached to `outboard nic` with itself in one process, under load
    /// from wrk
    DeviceProcess(device_process::DeviceProcessArgs),
    /// Measure several programs on one device process, and one beside another that is killed
    DevicePrograms(device_programs::DeviceProgramsArgs),
    /// Measure connections that the hash leads to one queue of two, with and without balance
    QueueBalance(queue_balance::QueueBalanceArgs),
    /// Measure how `outboard serve` and nginx scale over queues and cores, under load from wrk
    QueueScaling(queue_scaling::QueueScalingArgs),
}

/// Runs a benchmark.
///
/// # Errors
/// Reports a set-up that failed, or an error during the run.
pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let benchmark: &dyn Benchmark = match &args.bench {
        Bench::IoTcp(args) => args,
        Bench::Tls(args) => args,
        Bench::TlsEngine(args) => args,
        Bench::AeadWorkers(args) => args,
        Bench::TlsLoss(args) => args,
        Bench::TlsScale(args) => args,
        Bench::ShortConnections(args) => args,
        Bench::Splice(args) => args,
        Bench::SpliceFrames(args) => args,
        Bench::Connections(args) => args,
        Bench::Quic(args) => args,
        Bench::QuicReorder(args) => args,
        Bench::QuicLive(args) => args,
        Bench::QuicRelay(args) => args,
        Bench::Nvme(args) => args,
        Bench::NvmeLoss(args) => args,
        Bench::RemoteStorage(args) => args,
        Bench::TimerWheel(args) => args,
        Bench::Carriers(args) => args,
        Bench::Memory(args) => args,
        Bench::ProxyLive(args) => args,
        Bench::ServeLive(args) => args,
        Bench::DeviceProcess(args) => args,
        Bench::DevicePrograms(args) => args,
        Bench::QueueBalance(args) => args,
        Bench::QueueScaling(args) => args,
    };
    let mut report = BenchReport::new(args.json);
    benchmark.run(&mut report)?;
    report.finish()
}
