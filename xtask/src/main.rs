//! Checks of the whole tree: `cargo run -p xtask -- VERB`.
//!
//! Called by `make test`, and by hand for single checks. Each verb reads the working tree and
//! prints one line per finding; the exit code tells if there were any. Only the build folders of
//! `noos` and `mutants` are written. Formatting, lints and tests are left to cargo; see the
//! `Makefile`.
#![forbid(unsafe_code)]

mod book;
mod ci;
mod comments;
mod deps;
mod docs;
mod imports;
mod limits;
mod mutants;
mod noos;
mod report;
mod scan;
mod tidy;
mod tree;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo run -p xtask -- VERB
  tidy   line, file and function lengths, module heads, banned idioms
  deps   which crate may depend on which
  imports
         files of a crate that import each other in a circle, or in a wrong direction
  imports --dot CRATE | --svg CRATE | --folders CRATE
         draws what the modules of a crate import from each other
  docs   paths, names and links in documents exist, pages are short, every crate is described
  limits docs/limits.md equals the constants; limits --write writes it
  book   builds docs/ as HTML in target/book
  faults each planted fault of xtask/faults still applies
  noos   links the crates that need no operating system into a program that has none
  ci     all of these in order, one line each
  mutants [--only NAME] [--seeds N] [--json] [--simulate]
         whether the simulator, or a test, finds each of the planted faults
  comments CRATE COUNT SEED
         draws comments of a crate at random, to be read against the code
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let verbs: Vec<&str> = args.iter().map(String::as_str).collect();
    match verbs.as_slice() {
        ["ci"] => ci::run(),
        ["imports", args @ ..] if !args.is_empty() => {
            imports::draw(args).unwrap_or_else(|message| {
                eprintln!("{message}");
                usage()
            })
        }
        ["book"] => book::run().unwrap_or_else(fail),
        ["limits", "--write"] => limits::write().unwrap_or_else(fail),
        ["comments", args @ ..] => comments::run(args).unwrap_or_else(|message| {
            eprintln!("{message}");
            usage()
        }),
        ["mutants", args @ ..] => mutants::run(args),
        [verb] => match ci::CHECKS.iter().find(|step| step.name == *verb) {
            Some(step) => ci::run_one(step),
            None => usage(),
        },
        _ => usage(),
    }
}

fn fail(message: String) -> ExitCode {
    eprintln!("xtask: {message}");
    ExitCode::FAILURE
}

fn usage() -> ExitCode {
    eprint!("{USAGE}");
    // `EX_USAGE` of sysexits.h.
    ExitCode::from(64)
}
