//! A copy of the tree that contains all planted faults, and the programs built from it.
//!
//! Used by `mutants`. The copy is below the build folder. The switch is a crate `content_in_copy`
//! that exists only in the copy, so the product has no trace of it. Files are written only if they
//! differ, so that a second run rebuilds only changed crates. As in `make sim`, the product's
//! crates are built without assertions: a fault must be found by its effect.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::list::{FaultTest, PlantedFault};
use super::plant::{self, FaultAnchor};
use crate::tree;

/// Source code of the switch, without the list of fault names.
const SWITCH: &str = r#"
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const UNREAD: usize = usize::MAX;
const NONE: usize = usize::MAX - 1;
static CHOSEN: AtomicUsize = AtomicUsize::new(UNREAD);
static REACHED: AtomicBool = AtomicBool::new(false);

/// Returns whether the fault of this number is switched on. Its code is then reached.
#[inline]
pub fn fault(number: usize) -> bool {
    let mut chosen = CHOSEN.load(Ordering::Relaxed);
    if chosen == UNREAD {
        chosen = read();
    }
    chosen == number && reached()
}

#[cold]
fn read() -> usize {
    let chosen = match std::env::var("PLANTED_FAULT") {
        Err(_) => NONE,
        Ok(name) => NAMES.iter().position(|known| *known == name).unwrap_or_else(|| {
            eprintln!("unknown planted fault: {name}");
            std::process::exit(64)
        }),
    };
    CHOSEN.store(chosen, Ordering::Relaxed);
    chosen
}

fn reached() -> bool {
    if !REACHED.load(Ordering::Relaxed) && !REACHED.swap(true, Ordering::Relaxed) {
        // Not by a macro: a test's output would be kept back.
        let _ = std::io::stderr().write_all(b"planted fault reached\n");
    }
    true
}
"#;

/// Line that a program prints on standard error when it executes the code of its fault.
pub(crate) const REACHED: &str = "planted fault reached";

/// Folders of the copy and of its build.
#[derive(Debug)]
pub(crate) struct TreeCopy {
    tree: PathBuf,
    target: PathBuf,
}

/// Programs built from the copy.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    /// Path of the simulator.
    pub(crate) sim: PathBuf,
    /// Test executables by package and test file; the file is `None` for unit tests.
    pub(crate) tests: BTreeMap<(String, Option<String>), PathBuf>,
}

impl TreeCopy {
    /// Writes the copy.
    ///
    /// # Errors
    /// Reports a file that cannot be read or written, or two faults that overlap.
    pub(crate) fn write(
        files: &[String],
        faults: &[PlantedFault],
        anchors: &[FaultAnchor],
    ) -> Result<Self, String> {
        let outer =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
        let target = tree::root().join(outer).join("mutants");
        let copy = Self { tree: target.join("tree"), target };
        let mut kept = BTreeSet::new();
        for path in files {
            let bytes = std::fs::read(tree::root().join(path)).map_err(|e| error(path, &e))?;
            let bytes = content_in_copy(path, bytes, faults, anchors)?;
            kept.insert(copy.put(path, &bytes)?);
        }
        let names: Vec<&str> = faults.iter().map(|fault| fault.name.as_str()).collect();
        let switch = format!("const NAMES: &[&str] = &{names:?};\n{SWITCH}");
        let manifest = "[package]\nname = \"planted\"\nversion = \"0.0.0\"\nedition = \"2024\"\n";
        kept.insert(copy.put("crates/planted/src/lib.rs", switch.as_bytes())?);
        kept.insert(copy.put("crates/planted/Cargo.toml", manifest.as_bytes())?);
        remove_others(&copy.tree, &kept).map_err(|e| error("the copy of the tree", &e))?;
        Ok(copy)
    }

    /// Writes a file of the copy if it differs; returns its path.
    fn put(&self, path: &str, bytes: &[u8]) -> Result<PathBuf, String> {
        let path = self.tree.join(path);
        let write = || {
            if std::fs::read(&path).is_ok_and(|old| old == bytes) {
                return Ok(());
            }
            std::fs::create_dir_all(path.parent().unwrap_or(&self.tree))?;
            std::fs::write(&path, bytes)
        };
        write().map_err(|e: std::io::Error| error(&path.display().to_string(), &e))?;
        Ok(path)
    }

    /// Builds the simulator and the executables of `tests`.
    ///
    /// # Errors
    /// Reports a compile error; cargo has printed it.
    pub(crate) fn build(&self, tests: &BTreeSet<FaultTest>) -> Result<Programs, String> {
        let mut programs = Programs::default();
        for built in self.cargo(&["build", "-p", "outboard-lab"])? {
            if let (Some(path), "outboard-lab") = (built.executable, built.name.as_str()) {
                programs.sim = path;
            }
        }
        let mut packages: BTreeMap<&str, BTreeSet<Option<&str>>> = BTreeMap::new();
        for test in tests {
            packages.entry(&test.package).or_default().insert(test.file.as_deref());
        }
        for (package, files) in packages {
            let mut args = vec!["test", "--no-run", "-p", package];
            for file in &files {
                args.extend(file.map_or(vec!["--lib"], |file| vec!["--test", file]));
            }
            for built in self.cargo(&args)?.into_iter().filter(|built| built.is_test) {
                let file = built.kind.contains("test").then_some(built.name);
                let path = built.executable.unwrap_or_default();
                programs.tests.insert((package.to_owned(), file), path);
            }
        }
        Ok(programs)
    }

    fn cargo(&self, args: &[&str]) -> Result<Vec<CargoArtifact>, String> {
        let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(args)
            .args(["--quiet", "--message-format=json"])
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("CARGO_INCREMENTAL", "0")
            .stderr(Stdio::inherit())
            .output()
            .map_err(|e| error("cargo", &e))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let messages: Vec<serde_json::Value> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if !output.status.success() {
            // Warnings are not shown, since replaced code causes many.
            for message in messages.iter().filter(|m| m["message"]["level"] == "error") {
                eprint!("{}", message["message"]["rendered"].as_str().unwrap_or_default());
            }
            return Err(format!("cargo {} failed in {}", args.join(" "), self.tree.display()));
        }
        Ok(messages.iter().filter_map(CargoArtifact::of).collect())
    }
}

/// An artifact that cargo reported.
#[derive(Debug)]
struct CargoArtifact {
    name: String,
    kind: String,
    is_test: bool,
    executable: Option<PathBuf>,
}

impl CargoArtifact {
    fn of(message: &serde_json::Value) -> Option<Self> {
        Some(Self {
            executable: Some(message["executable"].as_str()?.into()),
            name: message["target"]["name"].as_str()?.to_owned(),
            kind: message["target"]["kind"][0].as_str()?.to_owned(),
            is_test: message["profile"]["test"].as_bool()?,
        })
    }
}

fn error(what: &str, e: &std::io::Error) -> String {
    format!("{what}: {e}")
}

/// Returns the content of a file in the copy.
fn content_in_copy(
    path: &str,
    bytes: Vec<u8>,
    faults: &[PlantedFault],
    anchors: &[FaultAnchor],
) -> Result<Vec<u8>, String> {
    let here: Vec<(usize, Range<usize>, &str)> = faults
        .iter()
        .zip(anchors)
        .enumerate()
        .filter(|(_, (_, anchor))| anchor.path == path)
        .map(|(number, (fault, anchor))| (number, anchor.at.clone(), fault.faulty.as_str()))
        .collect();
    let krate = path.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/Cargo.toml"));
    let has_faults = |krate: &str| faults.iter().any(|fault| fault.krate == krate);
    let is_workspace = path == "Cargo.toml";
    if here.is_empty() && !krate.is_some_and(has_faults) && !is_workspace {
        return Ok(bytes);
    }
    let text = String::from_utf8(bytes).map_err(|e| format!("{path}: {e}"))?;
    let text = if is_workspace {
        text + &profiles_without_assertions(faults)
    } else if krate.is_some() {
        let switch = "[dependencies]\nplanted = { path = \"../planted\" }";
        text.replacen("[dependencies]", switch, 1)
    } else {
        plant::plant(&text, &here).map_err(|e| format!("{path}: {e}"))?
    };
    Ok(text.into_bytes())
}

/// Returns cargo profiles that switch assertions off for the crates with faults.
fn profiles_without_assertions(faults: &[PlantedFault]) -> String {
    let crates: BTreeSet<&str> = faults.iter().map(|fault| fault.krate.as_str()).collect();
    let profile = |krate| {
        let package = tree::package(krate);
        format!(
            "\n[profile.dev.package.{package}]\ndebug-assertions = false\noverflow-checks = false\n"
        )
    };
    crates.into_iter().map(profile).collect()
}

/// Removes files of an older copy.
fn remove_others(folder: &Path, kept: &BTreeSet<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, kept)?;
        } else if !kept.contains(&path) {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault() -> PlantedFault {
        PlantedFault {
            name: "n".into(),
            what: "w".into(),
            krate: "a".into(),
            code: "1".into(),
            faulty: "2".into(),
            test: None,
            area: "x".into(),
            listed_in: "f.toml".into(),
        }
    }

    #[test]
    fn only_files_with_faults_change() {
        let (faults, path) = ([fault()], String::from("crates/a/src/b.rs"));
        let anchors = [FaultAnchor { path: path.clone(), at: 0..1 }];
        let change = |path: &str, text: &str| {
            String::from_utf8(content_in_copy(path, text.into(), &faults, &anchors).unwrap())
                .unwrap()
        };
        assert_eq!(change(&path, "1"), "(if ::planted::fault(0) { 2 } else { 1 })");
        assert_eq!(change("crates/a/src/c.rs", "1"), "1");
        let manifest = "[package]\n[dependencies]\n[dev-dependencies]\n";
        assert!(change("crates/a/Cargo.toml", manifest).contains("../planted"));
        assert_eq!(change("crates/b/Cargo.toml", manifest), manifest);
        assert!(change("Cargo.toml", "").contains("[profile.dev.package.outboard-a]"));
    }
}
