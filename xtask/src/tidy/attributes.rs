//! Attributes that the root of a crate must declare: `#![forbid(unsafe_code)]`, and `#![no_std]` in
//! crates for machines without an OS.

use super::RustSource;
use crate::report::CheckReport;

/// Crates for machines without an operating system.
pub(crate) const NO_STD: [&str; 7] = [
    "crates/abi",
    "crates/base",
    "crates/host",
    "crates/nic",
    "crates/node",
    "crates/tcp-rules",
    "crates/wire",
];

/// Crates that may contain `unsafe`, for memory shared by host and NIC, for system calls, for
/// functions of a crypto library in C, and for callbacks of a TLS library in C.
pub(crate) const UNSAFE: [&str; 4] = ["crates/abi", "crates/crypto", "crates/io", "crates/tls-psk"];
/// The shim of `xtask noos`, which provides its own entry point and allocator, and may contain
/// `unsafe` too.
pub(crate) const UNSAFE_SHIM: &str = "xtask/noos/";

/// Checks one file; only crate roots must declare attributes.
pub(crate) fn check(source: &RustSource, report: &mut CheckReport) {
    let is_root = source
        .path
        .strip_prefix(source.krate())
        .is_some_and(|file| file == "/src/lib.rs" || file == "/src/main.rs");
    if !is_root || source.path.starts_with(UNSAFE_SHIM) {
        return;
    }
    let code: String = source.code.split_whitespace().collect();
    if NO_STD.contains(&source.krate()) && !code.contains("#![no_std]") {
        report.error(
            &source.path,
            1,
            "missing #![no_std]: this crate must not need an operating system",
        );
    }
    let forbids = code.split("#![forbid(").skip(1).any(|rest| {
        rest.split(')').next().is_some_and(|lints| lints.split(',').any(|l| l == "unsafe_code"))
    });
    if !UNSAFE.contains(&source.krate()) && !forbids {
        let message =
            "missing #![forbid(unsafe_code)]: unsafe code belongs in crates/abi and crates/io";
        report.error(&source.path, 1, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(path: &str, text: &str) -> usize {
        let mut report = CheckReport::default();
        check(&RustSource::new(path, text.to_owned(), false), &mut report);
        report.errors.len()
    }

    #[test]
    fn roots_declare_what_they_are() {
        let both = "#![no_std]\n#![forbid(unused_must_use, unsafe_code)]\n";
        assert_eq!(errors("crates/nic/src/lib.rs", both), 0);
        assert_eq!(errors("crates/nic/src/lib.rs", "//! #![no_std]\n"), 2);
        assert_eq!(errors("crates/nic/src/lib.rs", "#![no_std]\n#![deny(unsafe_code)]\n"), 1);
        assert_eq!(errors("crates/nic/src/engine.rs", ""), 0);
        assert_eq!(errors("crates/abi/src/lib.rs", "#![no_std]\n"), 0);
        assert_eq!(errors("crates/io/src/lib.rs", ""), 0);
        assert_eq!(errors("crates/sim/src/lib.rs", "#![forbid(unsafe_code)]\n"), 0);
        assert_eq!(errors("crates/outboard/src/main.rs", ""), 1);
        assert_eq!(errors("xtask/noos/src/main.rs", ""), 0);
    }
}
