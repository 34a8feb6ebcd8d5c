//! `outboard-lab bench`: the papers' tables, and the comparisons with what people would run
//! instead.
//!
//! Accounted benchmarks ([`io_tcp`], [`memory`], [`tls`] and its two, [`short_connections`],
//! [`splice`], [`quic`], [`quic_reorder`], [`nvme`], [`nvme_loss`]) run client, link, device and
//! host in one thread in turn ([`accounted`]) and sum each part's cycles apart. Live ones
//! ([`serve_live`], [`proxy_live`], [`quic_live`], [`quic_relay`]) run the program as users do,
//! beside another program, in one run. Every claim is a ratio measured in one run, because machines
//! differ.

mod accounted;
mod client;
mod connections;
mod disk;
mod io_tcp;
mod live;
mod memory;
mod nvme;
mod nvme_loss;
mod proxy_live;
mod quic;
mod quic_live;
mod quic_relay;
mod quic_reorder;
mod serve_live;
mod short;
mod short_connections;
mod splice;
mod stream;
mod timer_wheel;
mod tls;
mod tls_engine;
mod tls_loss;
mod tls_scale;

use std::path::Path;

use clap::Subcommand;

use cli::Failure;

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
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
pub(crate) fn run(bench: &Bench) -> Result<(), Failure> {
    match bench {
        Bench::IoTcp(args) => io_tcp::run(args),
        Bench::Tls(args) => tls::run(args),
        Bench::TlsEngine(args) => tls_engine::run(args),
        Bench::TlsLoss(args) => tls_loss::run(args),
        Bench::TlsScale(args) => tls_scale::run(args),
        Bench::ShortConnections(args) => short_connections::run(args),
        Bench::Splice(args) => splice::run(args),
        Bench::Connections(args) => connections::run(args),
        Bench::Quic(args) => quic::run(args),
        Bench::QuicReorder(args) => quic_reorder::run(args),
        Bench::QuicLive(args) => quic_live::run(args),
        Bench::QuicRelay(args) => quic_relay::run(args),
        Bench::Nvme(args) => nvme::run(args),
        Bench::NvmeLoss(args) => nvme_loss::run(args),
        Bench::TimerWheel(args) => timer_wheel::run(args),
        Bench::Memory(args) => memory::run(args),
        Bench::ProxyLive(args) => proxy_live::run(args),
        Bench::ServeLive(args) => serve_live::run(args),
    }
}

/// A failure of a benchmark's own set-up.
fn failed(what: &str) -> impl Fn(std::io::Error) -> Failure + '_ {
    move |e| Failure::System(format!("{what}: {e}"))
}

/// Runs a benchmark with the path of a folder that it may make. Nothing of it is left, whatever
/// happened.
fn in_temp_folder<T>(run: impl FnOnce(&Path) -> Result<T, Failure>) -> Result<T, Failure> {
    let folder = std::env::temp_dir().join(format!("outboard-bench-{}", std::process::id()));
    let result = run(&folder);
    let _ = std::fs::remove_dir_all(&folder);
    result
}
