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

use crate::report::Report;
use crate::{tidy, tree};
use copy::{Copy, Programs};
use hunt::{Hunt, Verdict};
use list::{Fault, Test};
use plant::{Anchor, Tokenised};

/// Least number of faults in the list.
const FAULTS_MIN: usize = 40;

/// Command-line options.
#[derive(Debug)]
struct Args {
    /// Only faults whose names contain this.
    only: String,
    seeds: u64,
    json: bool,
    /// Runs the simulator first for faults that have a test, too.
    simulate: bool,
}

/// Outcome of a fault that was tried.
#[derive(Debug)]
struct Tried<'a> {
    fault: &'a Fault,
    verdict: Verdict,
    seconds: f64,
}

/// Checks that each fault of the list applies.
///
/// # Errors
/// Reports a tree or list that cannot be read.
pub(crate) fn check() -> Result<Report, String> {
    let files = tree::files()?;
    let faults = list::read(&files)?;
    let sources = tidy::sources(&files)?;
    let mut report = Report::default();
    check_list(&faults, &mut report);
    for fault in &faults {
        if let Some(message) = missing_test(fault, &sources) {
            report.error(&fault.listed_in, 0, format!("{}: {message}", fault.name));
        }
    }
    let mut at = Vec::new();
    let tokenised = Tokenised::all(&sources);
    for fault in &faults {
        match plant::locate(fault, &tokenised) {
            Ok(anchor) => at.push((anchor, fault)),
            Err(e) => report.error(&fault.listed_in, 0, format!("{}: {e}", fault.name)),
        }
    }
    for (index, (anchor, fault)) in at.iter().enumerate() {
        let overlaps = |(other, _): &&(Anchor, &Fault)| {
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
    report.looked_at = format!("{} faults", faults.len());
    Ok(report)
}

fn check_list(faults: &[Fault], report: &mut Report) {
    if faults.len() < FAULTS_MIN {
        let message = format!("{} faults: at least {FAULTS_MIN}", faults.len());
        report.error("xtask/faults", 0, message);
    }
    let mut names = BTreeSet::new();
    for fault in faults {
        if !names.insert(&fault.name) {
            report.error(&fault.listed_in, 0, format!("{}: a second one", fault.name));
        }
        if fault.code.replace(['«', '»'], "").trim() == fault.faulty.trim() {
            report.error(&fault.listed_in, 0, format!("{}: changes nothing", fault.name));
        }
    }
}

/// Returns an error message if the test that a fault names does not exist.
fn missing_test(fault: &Fault, sources: &[tidy::Source]) -> Option<String> {
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
    let has_it = |s: &tidy::Source| s.path.starts_with(&folder) && s.text.contains(&function);
    let is_missing = !sources.iter().any(has_it);
    is_missing.then(|| format!("there is no test {} below {folder}", test.name))
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

fn parse(args: &[&str]) -> Option<Args> {
    let mut parsed = Args { only: String::new(), seeds: 1_000, json: false, simulate: false };
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
fn try_all(args: &Args) -> Result<bool, String> {
    let files = tree::files()?;
    let faults = list::read(&files)?;
    let sources = tidy::sources(&files)?;
    let tokenised = Tokenised::all(&sources);
    let mut anchors = Vec::new();
    for fault in &faults {
        let anchor = plant::locate(fault, &tokenised);
        anchors.push(anchor.map_err(|e| format!("{}: {e}", fault.name))?);
    }
    let wanted: Vec<&Fault> =
        faults.iter().filter(|fault| fault.name.contains(&args.only)).collect();
    let mut tests = BTreeSet::new();
    for fault in &wanted {
        tests.extend(fault.test()?);
    }
    eprintln!("building the simulator and {} tests with {} faults", tests.len(), faults.len());
    let programs = Copy::write(&files, &faults, &anchors)?.build(&tests)?;
    baseline(&programs, &tests, args)?;
    let tried = each(&wanted, |fault| try_one(fault, &programs, args));
    if args.json {
        println!("{}", json(&tried));
    } else {
        print!("{}", table(&tried));
    }
    let found = tried.iter().filter(|tried| is_found(&tried.verdict)).count();
    eprintln!("{found} of {} planted faults were found", tried.len());
    Ok(found == tried.len())
}

const fn is_found(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Seed { .. } | Verdict::Test)
}

/// Checks that nothing fails without a fault.
fn baseline(programs: &Programs, tests: &BTreeSet<Test>, args: &Args) -> Result<(), String> {
    const PART: u64 = 50;
    let firsts: Vec<u64> = (0..args.seeds.div_ceil(PART)).map(|part| part * PART).collect();
    let hunt = |seeds| Hunt { programs, seeds, fault: None };
    let verdicts = each(&firsts, |&first| hunt(args.seeds.min(first + PART)).simulate(first));
    let tests: Vec<&Test> = tests.iter().collect();
    let of_tests = each(&tests, |test| match hunt(0).test(test) {
        Verdict::Test => Verdict::Untried(format!("{} fails", test.name)),
        verdict => verdict,
    });
    let is_well = |verdict: &&Verdict| !matches!(verdict, Verdict::NotReached);
    match verdicts.iter().chain(&of_tests).find(is_well) {
        None => Ok(()),
        Some(verdict) => Err(format!("without any fault: {verdict:?}")),
    }
}

#[expect(clippy::disallowed_methods, reason = "shows people how long a fault took")]
fn try_one<'a>(fault: &'a Fault, programs: &Programs, args: &Args) -> Tried<'a> {
    let start = std::time::Instant::now();
    let hunt = Hunt { programs, seeds: args.seeds, fault: Some(fault) };
    let verdict = match fault.test() {
        Err(message) => Verdict::Untried(message),
        Ok(None) => hunt.simulate(0),
        Ok(Some(test)) if args.simulate => match hunt.simulate(0) {
            Verdict::Missed | Verdict::NotReached => hunt.test(&test),
            verdict => verdict,
        },
        Ok(Some(test)) => hunt.test(&test),
    };
    let tried = Tried { fault, verdict, seconds: start.elapsed().as_secs_f64() };
    eprintln!("{:6.1} s  {:<40} {}", tried.seconds, fault.name, words(&tried.verdict));
    tried
}

/// Maps each item on all processors, and returns the results in the order of the items.
fn each<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
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

fn words(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Seed { seed, said } => format!("seed {seed}: {said}"),
        Verdict::Test => "the test fails".to_owned(),
        Verdict::Missed => "MISSED".to_owned(),
        Verdict::NotReached => "NOT REACHED".to_owned(),
        Verdict::Untried(why) => format!("NOT TRIED: {why}"),
    }
}

/// Returns the results as a Markdown table.
fn table(tried: &[Tried<'_>]) -> String {
    let mut text = String::from("| area | fault | what is wrong | found by |\n|---|---|---|---|\n");
    for Tried { fault, verdict, .. } in tried {
        let by = match verdict {
            Verdict::Test => format!("test: `{}`", fault.test.as_deref().unwrap_or_default()),
            Verdict::Seed { .. } => format!("simulator: {}", words(verdict)),
            _ => format!("**{}**", words(verdict)),
        };
        let cells =
            [&fault.area, &fault.name, &fault.what, &by].map(|cell| cell.replace('|', "\\|"));
        text.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    text
}

/// Returns the results as JSON.
fn json(tried: &[Tried<'_>]) -> String {
    let row = |Tried { fault, verdict, seconds }: &Tried<'_>| {
        let seed = match verdict {
            Verdict::Seed { seed, .. } => Some(*seed),
            _ => None,
        };
        serde_json::json!({
            "name": fault.name,
            "area": fault.area,
            "what": fault.what,
            "found": is_found(verdict),
            "seed": seed,
            "test": fault.test,
            "said": words(verdict),
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
    fn arguments_are_all_or_nothing() {
        let args = parse(&["--only", "tls", "--seeds", "7", "--json"]).unwrap();
        assert_eq!((args.only.as_str(), args.seeds, args.json), ("tls", 7, true));
        assert_eq!(parse(&[]).unwrap().seeds, 1_000);
        assert!(parse(&["--seeds"]).is_none() && parse(&["all"]).is_none());
    }

    #[test]
    fn work_keeps_its_order() {
        let items: Vec<u32> = (0..100).collect();
        assert_eq!(each(&items, |&item| item * 2), (0..200).step_by(2).collect::<Vec<_>>());
    }
}
