//! Planted faults: whether the simulator or a test finds them (`make mutants`).
//!
//! Called by `main`. [`check`] checks that each fault of the list still applies. [`run`] plants all
//! faults in a copy of the tree, each behind a switch, builds the simulator and the named tests
//! once, checks that they pass without a fault, and then tries one fault after another. It prints a
//! table that shows how each fault was found, and fails if one was not.

mod copy;
mod hunt;
mod list;
mod plant;
mod tokens;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::report::CheckReport;
use crate::{tidy, tree};
use copy::{Programs, TreeCopy};
use hunt::{Hunt, HuntResult};
use list::{FaultTest, PlantedFault};
use plant::{FaultAnchor, TokenizedSource};

/// Minimum number of faults in the list.
const FAULTS_MIN: usize = 40;

/// Command-line options.
#[derive(Debug)]
struct MutantsArgs {
    /// Only faults whose names contain this.
    only: String,
    seeds: u64,
    json: bool,
    /// Runs the simulator first for faults that have a test, too.
    simulate: bool,
}

/// Outcome of a fault that was tried.
#[derive(Debug)]
struct FaultOutcome<'a> {
    fault: &'a PlantedFault,
    verdict: HuntResult,
    seconds: f64,
}

/// Checks that each fault of the list applies.
///
/// # Errors
/// Reports a tree or list that cannot be read.
pub(crate) fn check() -> Result<CheckReport, String> {
    let files = tree::files()?;
    let faults = list::read(&files)?;
    let sources = tidy::sources(&files)?;
    let mut report = CheckReport::default();
    check_list(&faults, &mut report);
    for fault in &faults {
        if let Some(message) = missing_test(fault, &sources) {
            report.error(&fault.listed_in, 0, format!("{}: {message}", fault.name));
        }
    }
    let mut at = Vec::new();
    let tokenised = TokenizedSource::all(&sources);
    for fault in &faults {
        match plant::locate(fault, &tokenised) {
            Ok(anchor) => at.push((anchor, fault)),
            Err(e) => report.error(&fault.listed_in, 0, format!("{}: {e}", fault.name)),
        }
    }
    for (index, (anchor, fault)) in at.iter().enumerate() {
        let overlaps = |(other, _): &&(FaultAnchor, &PlantedFault)| {
            other.path == anchor.path
                && other.at != anchor.at
                && other.at.start < anchor.at.end
                && anchor.at.start < other.at.end
        };
        if let Some((_, other)) = at[..index].iter().find(overlaps) {
            let message = format!("{} overlaps {}", fault.name, other.name);
            report.error(&fault.listed_in, 0, message);
        }
    }
    report.summary = format!("{} faults", faults.len());
    Ok(report)
}

fn check_list(faults: &[PlantedFault], report: &mut CheckReport) {
    if faults.len() < FAULTS_MIN {
        let message = format!("only {} faults; at least {FAULTS_MIN} are required", faults.len());
        report.error("xtask/faults", 0, message);
    }
    let mut names = BTreeSet::new();
    for fault in faults {
        if !names.insert(&fault.name) {
            report.error(&fault.listed_in, 0, format!("{}: duplicate name", fault.name));
        }
        if fault.code.replace(['«', '»'], "").trim() == fault.faulty.trim() {
            report.error(&fault.listed_in, 0, format!("{}: changes nothing", fault.name));
        }
    }
}

/// Returns an error message if the test that a fault names does not exist.
fn missing_test(fault: &PlantedFault, sources: &[tidy::RustSource]) -> Option<String> {
    let test = match fault.test() {
        Ok(test) => test?,
        Err(message) => return Some(message),
    };
    let krate = tree::folder(&test.package);
    let folder = match &test.file {
        None => format!("crates/{krate}/src/"),
        Some(file) => format!("crates/{krate}/tests/{file}"),
    };
    let function = format!("fn {}(", test.name.rsplit("::").next().unwrap_or_default());
    // A filter with a wrong module runs no test, and finds no fault.
    let has_it = |s: &tidy::RustSource| {
        let rest = s.path.strip_prefix(&folder);
        rest.is_some_and(|rest| format!("{}::", test.name).starts_with(&modules_of(rest)))
            && s.text.contains(&function)
    };
    let is_missing = !sources.iter().any(has_it);
    is_missing.then(|| format!("test {} not found below {folder}", test.name))
}

/// Returns the modules of a file, by its path below a crate's or a test's root: each with `::`.
fn modules_of(path: &str) -> String {
    let names = path.trim_end_matches(".rs").split('/');
    let names = names.filter(|name| !["", "lib", "main", "mod"].contains(name));
    names.map(|name| format!("{name}::")).collect()
}

/// Runs the verb `mutants`.
pub(crate) fn run(args: &[&str]) -> ExitCode {
    let Some(args) = parse(args) else {
        eprintln!(
            "usage: cargo run -p xtask -- mutants [--only NAME] [--seeds N] [--json] [--simulate]"
        );
        return ExitCode::from(64);
    };
    match try_all(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("mutants: {message}");
            ExitCode::FAILURE
        }
    }
}

fn parse(args: &[&str]) -> Option<MutantsArgs> {
    let mut parsed =
        MutantsArgs { only: String::new(), seeds: 1_000, json: false, simulate: false };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match *arg {
            "--only" => (*args.next()?).clone_into(&mut parsed.only),
            "--seeds" => parsed.seeds = args.next()?.parse().ok()?,
            "--json" => parsed.json = true,
            "--simulate" => parsed.simulate = true,
            _ => return None,
        }
    }
    Some(parsed)
}

/// Tries the selected faults; returns whether all of them were found.
fn try_all(args: &MutantsArgs) -> Result<bool, String> {
    let files = tree::files()?;
    let faults = list::read(&files)?;
    let sources = tidy::sources(&files)?;
    let tokenised = TokenizedSource::all(&sources);
    let mut anchors = Vec::new();
    for fault in &faults {
        let anchor = plant::locate(fault, &tokenised);
        anchors.push(anchor.map_err(|e| format!("{}: {e}", fault.name))?);
    }
    let wanted: Vec<&PlantedFault> =
        faults.iter().filter(|fault| fault.name.contains(&args.only)).collect();
    let mut tests = BTreeSet::new();
    for fault in &wanted {
        tests.extend(fault.test()?);
    }
    eprintln!("building the simulator and {} tests with {} faults", tests.len(), faults.len());
    let programs = TreeCopy::write(&files, &faults, &anchors)?.build(&tests)?;
    baseline(&programs, &tests, args)?;
    let tried = parallel_map(&wanted, |fault| try_one(fault, &programs, args));
    if args.json {
        println!("{}", json(&tried));
    } else {
        print!("{}", table(&tried));
    }
    let found = tried.iter().filter(|tried| is_found(&tried.verdict)).count();
    eprintln!("{found} of {} planted faults were found", tried.len());
    Ok(found == tried.len())
}

const fn is_found(verdict: &HuntResult) -> bool {
    matches!(verdict, HuntResult::Seed { .. } | HuntResult::Test)
}

/// Checks that nothing fails without a fault.
fn baseline(
    programs: &Programs,
    tests: &BTreeSet<FaultTest>,
    args: &MutantsArgs,
) -> Result<(), String> {
    const PART: u64 = 50;
    let firsts: Vec<u64> = (0..args.seeds.div_ceil(PART)).map(|part| part * PART).collect();
    let hunt = |seeds| Hunt { programs, seeds, fault: None };
    let verdicts =
        parallel_map(&firsts, |&first| hunt(args.seeds.min(first + PART)).simulate(first));
    let tests: Vec<&FaultTest> = tests.iter().collect();
    let of_tests = parallel_map(&tests, |test| match hunt(0).test(test) {
        HuntResult::Test => HuntResult::NotTried(format!("{} fails", test.name)),
        verdict => verdict,
    });
    let is_well = |verdict: &&HuntResult| !matches!(verdict, HuntResult::NotReached);
    match verdicts.iter().chain(&of_tests).find(is_well) {
        None => Ok(()),
        Some(verdict) => Err(format!("failed without a fault: {verdict:?}")),
    }
}

#[expect(clippy::disallowed_methods, reason = "shows people how long a fault took")]
fn try_one<'a>(
    fault: &'a PlantedFault,
    programs: &Programs,
    args: &MutantsArgs,
) -> FaultOutcome<'a> {
    let start = std::time::Instant::now();
    let hunt = Hunt { programs, seeds: args.seeds, fault: Some(fault) };
    let verdict = match fault.test() {
        Err(message) => HuntResult::NotTried(message),
        Ok(None) => hunt.simulate(0),
        Ok(Some(test)) if args.simulate => match hunt.simulate(0) {
            HuntResult::Missed | HuntResult::NotReached => hunt.test(&test),
            verdict => verdict,
        },
        Ok(Some(test)) => hunt.test(&test),
    };
    let tried = FaultOutcome { fault, verdict, seconds: start.elapsed().as_secs_f64() };
    eprintln!("{:6.1} s  {:<40} {}", tried.seconds, fault.name, describe_result(&tried.verdict));
    tried
}

/// Maps each item on all processors, and returns the results in the order of the items.
fn parallel_map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((at, item)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    items.get(at).map(|item| (at, item))
                } {
                    let result = work(item);
                    done.lock().unwrap_or_else(|e| e.into_inner()).push((at, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(|e| e.into_inner());
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

fn describe_result(verdict: &HuntResult) -> String {
    match verdict {
        HuntResult::Seed { seed, said } => format!("seed {seed}: {said}"),
        HuntResult::Test => "the test fails".to_owned(),
        HuntResult::Missed => "MISSED".to_owned(),
        HuntResult::NotReached => "NOT REACHED".to_owned(),
        HuntResult::NotTried(why) => format!("NOT TRIED: {why}"),
    }
}

/// Returns the results as a Markdown table.
fn table(tried: &[FaultOutcome<'_>]) -> String {
    let mut text = String::from("| area | fault | effect | found by |\n|---|---|---|---|\n");
    for FaultOutcome { fault, verdict, .. } in tried {
        let by = match verdict {
            HuntResult::Test => format!("test: `{}`", fault.test.as_deref().unwrap_or_default()),
            HuntResult::Seed { .. } => format!("simulator: {}", describe_result(verdict)),
            _ => format!("**{}**", describe_result(verdict)),
        };
        let cells =
            [&fault.area, &fault.name, &fault.what, &by].map(|cell| cell.replace('|', "\\|"));
        text.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    text
}

/// Returns the results as JSON.
fn json(tried: &[FaultOutcome<'_>]) -> String {
    let row = |FaultOutcome { fault, verdict, seconds }: &FaultOutcome<'_>| {
        let seed = match verdict {
            HuntResult::Seed { seed, .. } => Some(*seed),
            _ => None,
        };
        serde_json::json!({
            "name": fault.name,
            "area": fault.area,
            "what": fault.what,
            "found": is_found(verdict),
            "seed": seed,
            "test": fault.test,
            "said": describe_result(verdict),
            "seconds": seconds,
        })
    };
    let rows: Vec<_> = tried.iter().map(row).collect();
    serde_json::Value::from(rows).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_modules() {
        assert_eq!(modules_of("engine/l5o/mod.rs"), "engine::l5o::");
        assert_eq!(["lib.rs", ".rs", "/main.rs"].map(modules_of), ["", "", ""]);
        assert_eq!(modules_of("/order.rs"), "order::");
    }

    #[test]
    fn arguments_are_all_or_nothing() {
        let args = parse(&["--only", "tls", "--seeds", "7", "--json"]).unwrap();
        assert_eq!((args.only.as_str(), args.seeds, args.json), ("tls", 7, true));
        assert_eq!(parse(&[]).unwrap().seeds, 1_000);
        assert!(parse(&["--seeds"]).is_none() && parse(&["all"]).is_none());
    }

    #[test]
    fn work_keeps_its_order() {
        let items: Vec<u32> = (0..100).collect();
        assert_eq!(parallel_map(&items, |&item| item * 2), (0..200).step_by(2).collect::<Vec<_>>());
    }
}
