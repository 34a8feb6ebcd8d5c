//! Banned idioms, each with its replacement, as one table.

use super::RustSource;
use super::attributes::{UNSAFE, UNSAFE_SHIM};
use crate::report::CheckReport;
use crate::scan;

/// Crates that get time, randomness and I/O from their callers only.
const SANS_IO: [&str; 9] = [
    "crates/abi",
    "crates/apps",
    "crates/base",
    "crates/host",
    "crates/nic",
    "crates/node",
    "crates/quic",
    "crates/tcp-rules",
    "crates/wire",
];

/// Code in which an idiom is banned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BanScope {
    /// In every file.
    Everywhere,
    /// Test code, and crates that only serve tests.
    Tests,
    /// [`SANS_IO`] crates. Tests of `abi` may use threads and clocks, because they test a ring
    /// between threads.
    SansIo,
    /// [`SANS_IO`] crates, and the simulator, whose runs must not depend on the machine.
    SansIoAndSim,
    /// All crates except [`UNSAFE`].
    SafeCrates,
}

struct Ban {
    pattern: &'static str,
    scope: BanScope,
    instead: &'static str,
}

const fn ban(pattern: &'static str, place: BanScope, instead: &'static str) -> Ban {
    Ban { pattern, scope: place, instead }
}

const CLOCK: &str = "take the time as a base::Instant parameter";
const HASHER: &str = "use BTreeMap, or hashbrown with a seeded hasher; runs must be reproducible";
const OUTPUT: &str = "increment a counter or return an event; only binaries print";

const BANS: &[Ban] = &[
    ban(
        "todo!",
        BanScope::Everywhere,
        "implement it, or return an error that names the missing feature",
    ),
    ban("unimplemented!", BanScope::Everywhere, "return an error that names the missing feature"),
    ban("dbg!", BanScope::Everywhere, "use a counter or a trace"),
    ban("static mut", BanScope::Everywhere, "give the state an owner"),
    ban(
        "thread::sleep",
        BanScope::Tests,
        "wait for the event itself: a pipe, a channel, or a child process",
    ),
    ban("unsafe", BanScope::SafeCrates, "wrap it in a safe function of crates/abi or crates/io"),
    ban("std::net", BanScope::SansIo, "use the addresses of core::net, and sockets only in io"),
    ban("std::fs", BanScope::SansIo, "use abi::disk"),
    ban("std::thread", BanScope::SansIo, "leave threads to the binary"),
    ban("println!", BanScope::SansIo, OUTPUT),
    ban("print!", BanScope::SansIo, OUTPUT),
    ban("eprintln!", BanScope::SansIo, OUTPUT),
    ban("eprint!", BanScope::SansIo, OUTPUT),
    ban("Instant::now", BanScope::SansIoAndSim, CLOCK),
    ban("SystemTime::now", BanScope::SansIoAndSim, CLOCK),
    ban("RandomState", BanScope::SansIoAndSim, HASHER),
    ban("collections::HashMap", BanScope::SansIoAndSim, HASHER),
    ban("collections::HashSet", BanScope::SansIoAndSim, HASHER),
];

/// Checks one file.
pub(crate) fn check(source: &RustSource, report: &mut CheckReport) {
    for ban in BANS {
        for at in scan::words(&source.code, ban.pattern) {
            let line = scan::line_of(&source.code, at);
            if applies(ban.scope, source, line) {
                let message = format!("`{}` is banned here: {}", ban.pattern, ban.instead);
                report.error(&source.path, line, message);
            }
        }
    }
    check_attribute_reasons(source, report);
}

fn applies(place: BanScope, source: &RustSource, line: usize) -> bool {
    let krate = source.krate();
    let test = source.is_test(line);
    let sans_io = SANS_IO.contains(&krate) && !(krate == "crates/abi" && test);
    match place {
        BanScope::Everywhere => true,
        BanScope::Tests => test || krate == "interop" || krate == "crates/testkit",
        BanScope::SansIo => sans_io,
        BanScope::SansIoAndSim => sans_io || krate == "crates/sim",
        BanScope::SafeCrates => !UNSAFE.contains(&krate) && !source.path.starts_with(UNSAFE_SHIM),
    }
}

/// Checks that `#[allow]` and `#[expect]` have a reason. `#[expect]` is preferred, because it warns
/// when it is no longer needed.
fn check_attribute_reasons(source: &RustSource, report: &mut CheckReport) {
    for attribute in ["allow", "expect"] {
        for at in scan::words(&source.code, attribute) {
            let before = source.code[..at].trim_end();
            if !before.ends_with("#[") && !before.ends_with("#![") {
                continue;
            }
            let end = source.code[at..].find(']').map_or(source.code.len(), |end| at + end);
            if scan::words(&source.code[at..end], "reason").next().is_none() {
                let message = format!(
                    "`#[{attribute}(..)]` without a reason: write #[expect(.., reason = \"..\")]"
                );
                report.error(&source.path, scan::line_of(&source.code, at), message);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(path: &str, text: &str) -> Vec<usize> {
        let mut report = CheckReport::default();
        check(&RustSource::new(path, text.to_owned(), false), &mut report);
        report.errors.into_iter().map(|f| f.line).collect()
    }

    const NIC: &str = "crates/nic/src/a.rs";
    const SIM: &str = "crates/sim/src/a.rs";
    const IO: &str = "crates/io/src/a.rs";

    #[test]
    fn every_pattern_is_found_in_code_and_only_there() {
        for ban in BANS {
            let text =
                format!("// {0}\nlet a = \"{0}\";\n#[cfg(test)] mod t {{ {0} }}\n", ban.pattern);
            let path = if ban.scope == BanScope::Tests { IO } else { NIC };
            assert_eq!(hits(path, &text), [3], "{}", ban.pattern);
        }
    }

    #[test]
    fn places_differ() {
        assert_eq!(hits(IO, "unsafe { std::fs::x(Instant::now()) }"), [0; 0]);
        assert_eq!(hits(NIC, "unsafe {}"), [1]);
        assert_eq!(hits(SIM, "std::thread::x(); println!();\nInstant::now()"), [2]);
        assert_eq!(hits("crates/abi/src/a.rs", "std::thread::spawn"), [1]);
        assert_eq!(
            hits("crates/abi/src/a.rs", "#[cfg(test)]\nmod t { std::thread::spawn }"),
            [0; 0]
        );
        assert_eq!(hits(IO, "thread::sleep(x)\n#[cfg(test)]\nmod t { thread::sleep(x) }"), [3]);
        assert_eq!(hits("interop/src/lib.rs", "thread::sleep(x)"), [1]);
        assert_eq!(hits("xtask/noos/src/main.rs", "unsafe {}"), [0; 0]);
    }

    #[test]
    fn allow_needs_a_reason() {
        assert_eq!(hits(NIC, "#[allow(dead_code)]\n#![allow(x)]\nfn allow() {}"), [1, 2]);
        assert_eq!(hits(NIC, "#[expect(\n  a::b,\n  reason = \"c ] d\"\n)]"), [0; 0]);
        assert_eq!(hits(NIC, "#[expect(a)]\nx.expect(\"y\")"), [1]);
        assert_eq!(hits(NIC, "#[cfg_attr(x, allow(a))]"), [0; 0]);
    }
}
