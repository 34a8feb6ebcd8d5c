//! Permitted dependencies between crates: the architecture as one table, checked against the
//! manifests.
//!
//! Called by `ci`. Reads `[dependencies]` for every target; dependencies of tests are not
//! restricted, and neither are indirect ones (see `noos` for these).

use crate::report::CheckReport;
use crate::tree;

/// Dependencies that a crate may have.
#[derive(Clone, Copy, Debug)]
enum AllowedDeps {
    /// Only these.
    Only(&'static [&'static str]),
    /// Any except these.
    AllBut(&'static [&'static str]),
}

struct Rule {
    krate: &'static str,
    may: AllowedDeps,
    why: &'static str,
}

const fn only(krate: &'static str, names: &'static [&'static str], why: &'static str) -> Rule {
    Rule { krate, may: AllowedDeps::Only(names), why }
}

const fn all_but(krate: &'static str, names: &'static [&'static str], why: &'static str) -> Rule {
    Rule { krate, may: AllowedDeps::AllBut(names), why }
}

const RULES: &[Rule] = &[
    only("base", &[], "the base of all other crates has no dependencies"),
    only("structures", &[], "general data structures are independent of packets"),
    only(
        "patterns",
        &["aho-corasick"],
        "host and device inspect with the same automaton, which knows neither of them",
    ),
    only(
        "wire",
        &["base", "smoltcp"],
        "packet formats are independent of protocol implementations",
    ),
    only(
        "tcp-rules",
        &["base", "siphasher", "wire"],
        "rules shared by host and device depend on neither, nor on the contract between them",
    ),
    only(
        "abi",
        &["base", "bytes", "loom", "patterns", "smallvec", "wire", "zeroize"],
        "the contract describes shared memory and depends on neither side",
    ),
    only(
        "crypto",
        &["abi", "aes", "aws-lc-rs", "aws-lc-sys", "base", "crc-fast", "ctr", "polyval", "zeroize"],
        "library ciphers and digests, injected into device and host",
    ),
    only(
        "decompress",
        &["abi", "flate2", "zstd-safe"],
        "library decoders, injected into applications",
    ),
    only(
        "nic",
        &[
            "abi",
            "base",
            "bytes",
            "hashbrown",
            "patterns",
            "smallvec",
            "structures",
            "tcp-rules",
            "wire",
        ],
        "the device depends on the contract, and not on the host, an OS, ciphers or decoders",
    ),
    only(
        "host",
        &[
            "abi",
            "base",
            "bytes",
            "hashbrown",
            "libm",
            "patterns",
            "rustls",
            "siphasher",
            "smallvec",
            "structures",
            "tcp-rules",
            "thiserror",
            "wire",
            "zeroize",
        ],
        "the host depends on the contract, and not on the device or an OS",
    ),
    only(
        "node",
        &["abi", "base", "bytes", "host", "nic", "patterns", "tcp-rules", "wire"],
        "the driver connects host and device, and leaves threads, clocks and I/O to its caller",
    ),
    only(
        "ladder",
        &["abi", "base", "node", "serde_json", "wire"],
        "a page of a record is independent of the program that was recorded",
    ),
    only(
        "quic",
        &["abi", "base", "bytes", "host", "quinn-proto", "rustls", "smallvec", "wire", "zeroize"],
        "QUIC runs above the host's sockets and uses the device only through the contract",
    ),
    all_but(
        "apps",
        &["decompress", "io", "libc", "nic", "outboard", "sim", "testkit"],
        "applications use only the host's sockets, so that the simulator can run them",
    ),
    all_but(
        "io",
        &["apps", "host", "nic", "outboard", "sim", "testkit"],
        "packet and disk I/O serve both sides and depend on neither",
    ),
    all_but(
        "sim",
        &["libc", "outboard"],
        "a simulation depends on its seed, and not on the machine",
    ),
    only(
        "nvme-psk",
        &["aws-lc-rs", "base64", "crc-fast", "thiserror", "zeroize"],
        "keys and their derivation are independent of configuration and use",
    ),
    only(
        "tls-psk",
        &["abi", "libc", "s2n-tls", "thiserror", "wire", "zeroize"],
        "a handshake is independent of the code that transports its bytes",
    ),
    all_but(
        "testkit",
        &["io", "libc", "outboard", "sim"],
        "tests of hosts and devices must not need an OS",
    ),
    only(
        "cli",
        &["clap", "thiserror"],
        "only failures, exit codes and reference pages of the programs",
    ),
    all_but(
        "stack",
        &["apps", "crypto", "decompress", "outboard", "sim", "testkit"],
        "threads, links and signals are independent of applications",
    ),
    all_but(
        "outboard",
        &["hierarchical_hash_wheel_timer", "sim", "splay_tree", "testkit"],
        "code that only measures, simulates or tests is not shipped",
    ),
    all_but(
        "lab",
        &["outboard", "testkit"],
        "measurements and simulations do not depend on the product binary or test helpers",
    ),
];

/// Runs the check on the tree.
///
/// # Errors
/// Reports a tree that cannot be read.
pub(crate) fn run() -> Result<CheckReport, String> {
    let crates = tree::crates(&tree::files()?);
    let mut report = CheckReport::default();
    for name in &crates {
        let path = format!("crates/{name}/Cargo.toml");
        check(name, &path, &dependencies(&tree::read(&path)?), &mut report);
    }
    report.summary = format!("{} crates", crates.len());
    Ok(report)
}

fn check(name: &str, path: &str, dependencies: &[Dependency], report: &mut CheckReport) {
    let Some(rule) = RULES.iter().find(|rule| rule.krate == name) else {
        report.error(path, 0, "no rule for this crate; add one with a reason to xtask/src/deps.rs");
        return;
    };
    for dependency in dependencies {
        let known = dependency.package.as_str();
        let allowed = match rule.may {
            AllowedDeps::Only(names) => names.contains(&known),
            AllowedDeps::AllBut(names) => !names.contains(&known),
        };
        if !allowed {
            let message = format!("{name} must not depend on {known}: {}", rule.why);
            report.error(path, dependency.line, message);
        }
        if !dependency.from_workspace {
            let message = format!(
                "{known}: use `{known}.workspace = true`, so that all crates share one version"
            );
            report.error(path, dependency.line, message);
        }
    }
}

/// A dependency that a manifest names.
#[derive(Debug, Default, PartialEq, Eq)]
struct Dependency {
    package: String,
    line: usize,
    from_workspace: bool,
}

/// Reads the dependencies of a manifest. Parses just enough TOML for the forms that cargo accepts.
fn dependencies(manifest: &str) -> Vec<Dependency> {
    let mut found = Vec::<Dependency>::new();
    let mut section = Section::Other;
    for (index, line) in manifest.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if let Some(header) = line.strip_prefix('[') {
            section = Section::of(header.trim_end_matches(']'));
            if let Section::Dependency(name) = &section {
                found.push(dependency(name, "", index + 1));
            }
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let (key, value) = (key.trim(), value.trim());
        match &section {
            Section::Dependencies => found.push(dependency(key, value, index + 1)),
            Section::Dependency(_) => {
                if let Some(last) = found.last_mut() {
                    last.from_workspace |= key == "workspace" && value == "true";
                    if key == "package" {
                        value.trim_matches('"').clone_into(&mut last.package);
                    }
                }
            }
            Section::Other => {}
        }
    }
    found
}

enum Section {
    /// A table of dependencies.
    Dependencies,
    /// The table of one dependency.
    Dependency(String),
    Other,
}

impl Section {
    fn of(header: &str) -> Self {
        // `[target.'cfg(..)'.dependencies]` counts too; `[dev-dependencies]` does not.
        let table = match header.rsplit_once("'.") {
            Some((target, rest)) if target.starts_with("target.") => rest,
            _ => header,
        };
        match table.strip_prefix("dependencies") {
            Some("") => Self::Dependencies,
            Some(name) if name.starts_with('.') => Self::Dependency(name[1..].to_owned()),
            _ => Self::Other,
        }
    }
}

fn dependency(key: &str, value: &str, line: usize) -> Dependency {
    let (name, from_workspace) = match key.split_once('.') {
        Some((name, "workspace")) => (name, value == "true"),
        Some((name, _)) => (name, false),
        None => (key, value.replace(' ', "").contains("workspace=true")),
    };
    // A renamed dependency is identified by its package name.
    let package = value
        .split_once("package")
        .and_then(|(_, rest)| rest.split('"').nth(1))
        .unwrap_or_else(|| name.trim_matches('"'));
    Dependency { package: package.to_owned(), line, from_workspace }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(name: &str, manifest: &str) -> Vec<String> {
        let mut report = CheckReport::default();
        check(name, "Cargo.toml", &dependencies(manifest), &mut report);
        report.errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn reads_all_ways_to_write_a_dependency() {
        let manifest = r#"
[package]
name = "x"
[dependencies]
a.workspace = true # why
b = { workspace = true, features = ["x"] }
c = "1"
d = { version = "1", package = "real-d" }
[dev-dependencies]
no = "1"
[target.'cfg(loom)'.dependencies]
e.workspace = true
[dependencies.f]
workspace = true
[dependencies.g]
package = "real-g"
[target.'cfg(unix)'.dev-dependencies]
no.workspace = true
[build-dependencies]
no = "1"
"#;
        let got: Vec<_> =
            dependencies(manifest).into_iter().map(|d| (d.package, d.from_workspace)).collect();
        let want = [
            ("a", true),
            ("b", true),
            ("c", false),
            ("real-d", false),
            ("e", true),
            ("f", true),
            ("real-g", false),
        ];
        assert_eq!(got, want.map(|(name, ws)| (name.to_owned(), ws)));
    }

    #[test]
    fn nic_and_host_do_not_see_each_other() {
        assert_eq!(errors("nic", "[dependencies]\nabi.workspace = true\n"), [""; 0]);
        assert_eq!(errors("nic", "[dependencies]\nhost.workspace = true\n").len(), 1);
        assert_eq!(errors("host", "[dependencies]\nnic.workspace = true\n").len(), 1);
        assert_eq!(errors("host", "[dependencies]\nlibc.workspace = true\n").len(), 1);
        assert_eq!(errors("io", "[dependencies]\nhost.workspace = true\n").len(), 1);
        assert_eq!(errors("io", "[dependencies]\nlibc.workspace = true\n"), [""; 0]);
        assert_eq!(errors("host", "[dev-dependencies]\nnic.workspace = true\n"), [""; 0]);
    }

    #[test]
    fn unknown_crates_and_own_versions_are_errors() {
        assert_eq!(errors("shim", "").len(), 1);
        assert_eq!(errors("apps", "[dependencies]\nhttparse = \"1\"\n").len(), 1);
    }

    #[test]
    fn rules_name_each_crate_once() {
        for (index, rule) in RULES.iter().enumerate() {
            assert!(RULES[..index].iter().all(|r| r.krate != rule.krate), "{}", rule.krate);
        }
    }
}
