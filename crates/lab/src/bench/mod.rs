//! `outboard-lab bench`: the papers' tables, and the comparisons with what people would run
//! instead.
//!
//! A benchmark is one file, or a folder: it implements [`experiment::Benchmark`] and hands its
//! tables to [`experiment::Report`]. Accounted benchmarks ([`io_tcp`], [`memory`], [`tls`] and its
//! two, [`short_connections`], [`splice`], [`quic`], [`quic_reorder`], [`nvme`], [`nvme_loss`]) run
//! client, link, device and host in one thread in turn ([`accounted`]) and sum each part's cycles
//! apart; [`testbed`] and the modules that end in `_pair` have what several of them run. Live ones
//! ([`serve_live`], [`proxy_live`], [`quic_live`], [`quic_relay`]) run the program as users do,
//! beside other programs in turn ([`live::comparison`]). Every claim is a ratio measured in one
//! run, because machines differ.

mod accounted;
mod client;
mod connections;
mod content_pair;
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
mod quic;
mod quic_live;
mod quic_pair;
mod quic_relay;
mod quic_reorder;
mod serve_live;
mod short;
mod short_connections;
mod splice;
mod stream;
mod stream_pair;
mod testbed;
mod timed_crypto;
mod timer_wheel;
mod tls;
mod tls_engine;
mod tls_loss;
mod tls_scale;

use clap::{Args, Subcommand};

use cli::Failure;
use experiment::{Benchmark, Report};

/// `outboard-lab bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    bench: Bench,
    /// For machines
    #[arg(long, global = true)]
    json: bool,
}

/// The benchmarks.
#[derive(Debug, Subcommand)]
enum Bench {
    /// Host and device cycles per byte and per request, against reading files on the host
    IoTcp(io_tcp::IoTcpArgs),
    /// Host cycles per byte of plain TCP, of TLS by the host, and of TLS by the device
    Tls(tls::TlsArgs),
    /// What the device's engine seals and opens per second, against aws-lc's one call
    TlsEngine(tls_engine::TlsEngineArgs),
    /// What loss and reordering leave of the offload of TLS: the paper's algorithm and ours
    TlsLoss(tls_loss::TlsLossArgs),
    /// The offload of TLS with 64 to 128 K flows and a small context memory
    TlsScale(tls_scale::TlsScaleArgs),
    /// Host cycles and packets of small transactions: with connection set-up and tear-down by the
    /// device, and without
    ShortConnections(short_connections::ShortConnectionsArgs),
    /// Host cycles and packets of what a proxy relays: in software, and spliced by the device
    Splice(splice::SpliceArgs),
    /// What the device does per connection: set-up, and forgers
    Connections(connections::ConnectionsArgs),
    /// Host cycles per byte of QUIC: in software, and with what the device does of it
    Quic(quic::QuicArgs),
    /// QUIC's throughput under reordering and loss, with the device's order and without; the window
    /// against a splay tree and a list
    QuicReorder(quic_reorder::QuicReorderArgs),
    /// `outboard serve --http3` against quinn over the kernel's UDP on one core
    QuicLive(quic_live::QuicLiveArgs),
    /// `outboard serve --http3` against quic-go and ngtcp2 over a path that loses and reorders
    QuicRelay(quic_relay::QuicRelayArgs),
    /// Host cycles of reads and writes over NVMe/TCP: in software, with digests and placement by
    /// the device, over TLS, and from a target's file
    Nvme(nvme::NvmeArgs),
    /// What loss and reordering leave of the offload of NVMe/TCP: the paper's algorithm and ours
    NvmeLoss(nvme_loss::NvmeLossArgs),
    /// The device's timer bitmap wheel against a hashed timing wheel, by 1 and 2 threads
    TimerWheel(timer_wheel::TimerWheelArgs),
    /// Bytes of host memory per idle established connection
    Memory(memory::MemoryArgs),
    /// `outboard proxy` against HAProxy and nginx on one core, with client and backend on another
    ProxyLive(proxy_live::ProxyLiveArgs),
    /// `outboard serve` against nginx on one core, asked by wrk on another
    ServeLive(serve_live::ServeLiveArgs),
}

/// Runs a benchmark.
///
/// # Errors
/// What could not be set up, or went wrong while it ran.
pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let benchmark: &dyn Benchmark = match &args.bench {
        Bench::IoTcp(args) => args,
        Bench::Tls(args) => args,
        Bench::TlsEngine(args) => args,
        Bench::TlsLoss(args) => args,
        Bench::TlsScale(args) => args,
        Bench::ShortConnections(args) => args,
        Bench::Splice(args) => args,
        Bench::Connections(args) => args,
        Bench::Quic(args) => args,
        Bench::QuicReorder(args) => args,
        Bench::QuicLive(args) => args,
        Bench::QuicRelay(args) => args,
        Bench::Nvme(args) => args,
        Bench::NvmeLoss(args) => args,
        Bench::TimerWheel(args) => args,
        Bench::Memory(args) => args,
        Bench::ProxyLive(args) => args,
        Bench::ServeLive(args) => args,
    };
    let mut report = Report::new(args.json);
    benchmark.run(&mut report)?;
    report.finish()
}
