//! `outboard`: the command line. One program; each subcommand has a module.
//!
//! Exit codes: 0 for success, 2 for usage errors (clap's), and those of `sysexits.h` if a resource
//! is missing or refused: see [`cli::Failure`]. Failed transfers of `outboard get` have those of
//! curl. An error is one line on stderr that says what to do.
#![forbid(unsafe_code)]

mod alarms;
mod args;
mod doctor;
mod entropy;
mod file_args;
mod get;
mod interrupt;
mod nic;
mod nvme;
mod pattern_file;
mod progress;
mod proxy;
mod query;
mod remote_args;
mod serve;
mod tls;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, CliSubcommand};

fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        CliSubcommand::Serve(args) => serve::run(&args),
        CliSubcommand::Proxy(args) => proxy::run(&args),
        CliSubcommand::Get(args) => get::run(&args),
        CliSubcommand::Nvme(verb) => nvme::run(&verb),
        CliSubcommand::Nic(args) => nic::run(&args),
        CliSubcommand::Doctor(args) => doctor::run(&args),
        CliSubcommand::Stat(args) => query::stat(&args),
        CliSubcommand::Ss(args) => query::ss(&args),
    };
    cli::exit_code("outboard", result)
}
