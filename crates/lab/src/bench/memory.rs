//! `outboard-lab bench memory`: bytes of memory per idle established connection.
//!
//! Opens so many connections, lets each fetch a file and then be idle for a while, takes everything
//! away but the server's host stack and application, and counts what the heap loses when those go
//! too: TCB, tables, timers, whatever holds them, and the allocator's own overhead.

use base::Duration;
use clap::Args;
use io::heap::allocated_bytes;
use serde_json::json;

use super::accounted::World;
use super::io_tcp;
use cli::Failure;

/// How long the connections are idle before they are counted: less than the server's keep-alive.
const IDLE: Duration = Duration::from_secs(10);

/// `outboard-lab bench memory`.
#[derive(Debug, Args)]
pub(crate) struct MemoryArgs {
    /// Connections to open
    #[arg(
        long,
        default_value_t = 10_000,
        value_parser = clap::value_parser!(u32).range(100..=15_000)
    )]
    connections: u32,
    /// For machines
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark.
///
/// # Errors
/// Where the connections cannot be opened.
pub(crate) fn run(args: &MemoryArgs) -> Result<(), Failure> {
    let idle = super::in_temp_folder(|folder| measure(args, folder))?;
    if args.json {
        println!(
            "{:#}",
            json!({
                "headline": { "host_bytes_per_idle_connection": idle },
                "connections": args.connections,
            })
        );
    } else {
        println!("{} idle established connections, each after one request", args.connections);
        println!("host memory per connection: {idle:.0} bytes (stack, application, timers)");
    }
    Ok(())
}

/// Host bytes per idle connection: what goes away with host and application once nothing else is
/// left.
fn measure(args: &MemoryArgs, folder: &std::path::Path) -> Result<f64, Failure> {
    let files = io_tcp::make_files(folder, 10_000, 0)?;
    let mut world = io_tcp::build(io_tcp::idle_setting(args.connections), &files, folder)?;
    world.start();
    let served = world.run_until(|w| w.load_ref().is_warm());
    world.load().draining = true;
    let quiet = world.now + IDLE;
    world.run_until(|w| w.now >= quiet);
    let established = world.load_ref().writable(&world.client.host.host);
    if !served || established != args.connections as usize {
        let what = world.load_ref().errors.first().cloned().unwrap_or_default();
        return Err(Failure::System(format!("only {established} connections are there: {what}")));
    }
    let World { server, client, .. } = world;
    drop(client);
    let host = server.into_host();
    let with = allocated_bytes();
    drop(host);
    Ok((with - allocated_bytes()) as f64 / f64::from(args.connections))
}
