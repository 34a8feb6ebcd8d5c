//! `outboard-lab report`: runs all benchmarks, and writes their results, with the figures and
//! tables of the papers, as HTML pages that need no network.
//!
//! - [`runs`]: benchmarks, their options and aims; [`execute`] runs them as child processes.
//! - [`results`]: the folder with raw results; [`compare`] and [`statistics`] compare two.
//! - [`catalogue`]: figures and tables of the papers; [`plot_data`] and [`plot`] draw ours.
//! - [`pages`] and [`page`]: HTML. [`machine`]: where and with what the results were made.
//!
//! A report measures nothing itself: every number is one of `outboard-lab bench`.

mod catalogue;
mod compare;
mod execute;
mod machine;
mod page;
mod pages;
mod plot;
mod plot_data;
mod results;
mod runs;
mod statistics;

use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use cli::Failure;

use crate::shard::Shard;
use catalogue::PaperCatalogue;
use execute::ExecuteOptions;
use pages::ReportContents;
use results::ResultsFolder;
use runs::ReportRun;

/// Arguments of `outboard-lab report`.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Run fewer settings of each benchmark: minutes instead of hours
    #[arg(long)]
    quick: bool,
    /// Folder for the pages, raw results and tables
    #[arg(long, value_name = "DIR", default_value = "report")]
    out: PathBuf,
    /// Run each benchmark N times; figures are medians, with the range in plots [default: 1; with
    /// --quick 3 or 5 for the short ones]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    repeat: Option<u16>,
    /// Run only what this figure, table or benchmark needs: `io-tcp/fig-11`, `bench/tls`
    #[arg(long, value_name = "PAPER/FIGURE")]
    only: Vec<String>,
    /// Skip benchmarks whose results are in the folder
    #[arg(long)]
    resume: bool,
    /// Run only every N-th benchmark, beginning with the K-th, from 1
    #[arg(long, value_name = "K/N")]
    shard: Option<Shard>,
    /// Print the figures, tables and benchmarks, and run nothing
    #[arg(long, conflicts_with_all = ["only", "merge", "compare"])]
    list: bool,
    /// Join the results of these folders, and run nothing
    #[arg(
        long,
        value_name = "DIR",
        num_args = 1..,
        conflicts_with_all = ["only", "shard", "compare"],
    )]
    merge: Vec<PathBuf>,
    /// Compare the headline figures of two reports, or of two versions of this program, which take
    /// turns
    #[arg(long, value_names = ["A", "B"], num_args = 2)]
    compare: Vec<PathBuf>,
    /// Print the comparison as JSON
    #[arg(long, requires = "compare")]
    json: bool,
}

/// Runs `outboard-lab report`.
///
/// # Errors
/// Reports benchmarks that failed, after the report was written, and files that cannot be used.
pub(crate) fn run(args: &ReportArgs) -> Result<(), Failure> {
    let (runs, papers) = (runs::all_runs(), catalogue::all_papers());
    if args.list {
        return print(&list(&runs, &papers));
    }
    if let [a, b] = &args.compare[..] {
        return compare_two(args, &runs, &papers, a, b);
    }
    let folder = ResultsFolder::create(&args.out)?;
    if args.merge.is_empty() {
        let program = this_program()?;
        let mut selected = select(&runs, &papers, args)?;
        if args.only.is_empty() {
            selected.retain(|run| has_cores(run));
        }
        execute::run_all(&selected, args.execute_options(&program), &folder)?;
    } else {
        merge(&args.merge, &runs, &folder)?;
    }
    write_pages(args, &runs, &papers, &folder)
}

impl ReportArgs {
    fn execute_options<'a>(&self, program: &'a Path) -> ExecuteOptions<'a> {
        let &Self { quick, resume, repeat, .. } = self;
        ExecuteOptions { program, quick, repeat: repeat.map(usize::from), resume }
    }
}

fn this_program() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|error| Failure::System(format!("cannot find this program: {error}")))
}

fn print(text: &str) -> Result<(), Failure> {
    std::io::stdout()
        .lock()
        .write_all(text.as_bytes())
        .map_err(|error| Failure::System(format!("cannot write the output: {error}")))
}

/// Returns all figures and tables, and the benchmarks.
fn list(runs: &[ReportRun], papers: &[PaperCatalogue]) -> String {
    let items = papers.iter().flat_map(|paper| {
        let name = &paper.paper;
        paper.items.iter().map(move |item| {
            format!("{name}/{}\t{}\t{}\n", item.id, item.status.text(), item.title)
        })
    });
    let benches =
        runs.iter().map(|run| format!("bench/{}\tbenchmark\t{}\n", run.name, run.question));
    items.chain(benches).collect()
}

/// Returns the runs that `--only` and `--shard` select.
///
/// # Errors
/// Reports an unknown name, and an item that no benchmark reproduces.
fn select<'a>(
    runs: &'a [ReportRun],
    papers: &[PaperCatalogue],
    args: &ReportArgs,
) -> Result<Vec<&'a ReportRun>, Failure> {
    let mut wanted = Vec::new();
    for name in &args.only {
        wanted.extend(runs_of(name, runs, papers)?);
    }
    let shard = args.shard.unwrap_or(Shard::WHOLE);
    let selected = runs.iter().filter(|run| args.only.is_empty() || wanted.contains(&run.name));
    let selected = selected.enumerate().filter(|(index, _)| shard.contains(*index));
    Ok(selected.map(|(_, run)| run).collect())
}

/// Returns whether this process may use the cores that a benchmark needs; says so if it may not.
fn has_cores(run: &ReportRun) -> bool {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if cores < run.cores {
        eprintln!("{} is left out: it needs {} cores, and there are {cores}", run.name, run.cores);
    }
    cores >= run.cores
}

/// Returns the runs that a figure, table or benchmark needs.
fn runs_of(
    name: &str,
    runs: &[ReportRun],
    papers: &[PaperCatalogue],
) -> Result<Vec<String>, Failure> {
    let unknown = || Failure::Usage(format!("no `{name}`; `report --list` prints all names"));
    let (group, id) = name.split_once('/').ok_or_else(unknown)?;
    if group == "bench" {
        let run = runs.iter().find(|run| run.name == id).ok_or_else(unknown)?;
        return Ok(vec![run.name.clone()]);
    }
    let paper = papers.iter().find(|paper| paper.paper == group).ok_or_else(unknown)?;
    let item = paper.items.iter().find(|item| item.id == id).ok_or_else(unknown)?;
    let plots = item.plot.iter().map(|plot| plot.run.clone());
    let figures = item.compare.iter().map(|figure| figure.source().0.to_owned());
    let needed: Vec<_> = plots.chain(figures).collect();
    match needed.is_empty() {
        true => Err(Failure::Usage(format!("{name} is {}: {}", item.status.text(), item.note))),
        false => Ok(needed),
    }
}

/// Copies the results of other folders.
///
/// # Errors
/// Reports results that cannot be read or written.
fn merge(from: &[PathBuf], runs: &[ReportRun], to: &ResultsFolder) -> Result<(), Failure> {
    for path in from {
        let results = ResultsFolder::open(path)?.load_all(runs.iter().map(|run| &run.name[..]))?;
        for (name, result) in results {
            to.store(&name, &result)?;
        }
    }
    Ok(())
}

/// Writes the pages, and reports benchmarks that failed.
fn write_pages(
    args: &ReportArgs,
    runs: &[ReportRun],
    papers: &[PaperCatalogue],
    folder: &ResultsFolder,
) -> Result<(), Failure> {
    let results = folder.load_all(runs.iter().map(|run| &run.name[..]))?;
    let mut machine = machine::describe();
    machine["options"] = options_text(args).into();
    machine["written"] = http_date().into();
    let contents = ReportContents { runs, papers, results: &results, machine: &machine };
    for (file, html) in contents.pages().map_err(Failure::System)? {
        folder.write(&file, &html)?;
    }
    folder.write("raw/machine.json", &format!("{machine:#}\n"))?;
    eprintln!("{}", folder.path().join("index.html").display());
    let failed = results.iter().filter(|(_, result)| result.failure.is_some());
    let failed: Vec<_> = failed.map(|(name, _)| name.as_str()).collect();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Failure::Unavailable(format!(
            "{} of {} benchmarks failed: {}; the summary has their reasons",
            failed.len(),
            results.len(),
            failed.join(", ")
        ))),
    }
}

fn options_text(args: &ReportArgs) -> String {
    let quick = args.quick.then(|| "--quick".to_owned());
    let repeat = args.repeat.map(|count| format!("--repeat {count}"));
    quick.into_iter().chain(repeat).collect::<Vec<_>>().join(" ")
}

/// Returns the time of day as in HTTP (RFC 9110 section 5.6.7).
#[expect(
    clippy::disallowed_methods,
    reason = "a report names its date, and no result depends on it"
)]
fn http_date() -> String {
    httpdate::fmt_http_date(std::time::SystemTime::now())
}

/// Compares two results folders, or runs two programs in turn and compares their results.
fn compare_two(
    args: &ReportArgs,
    runs: &[ReportRun],
    papers: &[PaperCatalogue],
    a: &Path,
    b: &Path,
) -> Result<(), Failure> {
    let folders = match (a.is_dir(), b.is_dir()) {
        (true, true) => [ResultsFolder::open(a)?, ResultsFolder::open(b)?],
        (false, false) => run_in_turns(args, &select(runs, papers, args)?, [a, b])?,
        _ => {
            return Err(Failure::Usage(
                "--compare needs two results folders or two programs".to_owned(),
            ));
        }
    };
    let names = || runs.iter().map(|run| &run.name[..]);
    let [a, b] = [folders[0].load_all(names())?, folders[1].load_all(names())?];
    let compared = compare::compare(runs, &a, &b);
    match args.json {
        true => print(&format!("{:#}\n", compare::to_json(&compared))),
        false => print(&compare::to_text(&compared)),
    }
}

/// Runs each benchmark with both programs in turn, as often as `--repeat` says.
fn run_in_turns(
    args: &ReportArgs,
    runs: &[&ReportRun],
    programs: [&Path; 2],
) -> Result<[ResultsFolder; 2], Failure> {
    let folders =
        [ResultsFolder::create(&args.out.join("a"))?, ResultsFolder::create(&args.out.join("b"))?];
    for run in runs {
        for _ in 0..args.repeat.unwrap_or(1) {
            for (folder, program) in folders.iter().zip(programs) {
                let once = ExecuteOptions { repeat: Some(1), ..args.execute_options(program) };
                let before = folder.load(&run.name)?;
                execute::run_all(&[run], once, folder)?;
                let after = folder.load(&run.name)?;
                if let (Some(mut before), Some(after)) = (before, after) {
                    before.repetitions.extend(after.repetitions);
                    before.seconds += after.seconds;
                    folder.store(&run.name, &before)?;
                }
            }
        }
    }
    Ok(folders)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;
    use serde_json::{Value, json};

    fn args(words: &[&str]) -> ReportArgs {
        let words = ["outboard-lab", "report"].iter().chain(words);
        match crate::args::Cli::try_parse_from(words).expect("valid").verb {
            crate::args::Verb::Report(args) => args,
            other => panic!("{other:?}"),
        }
    }

    fn selected(words: &[&str]) -> Result<Vec<String>, String> {
        let (runs, papers) = (runs::all_runs(), catalogue::all_papers());
        let selected =
            select(&runs, &papers, &args(words)).map_err(|failure| failure.to_string())?;
        Ok(selected.into_iter().map(|run| run.name.clone()).collect())
    }

    #[test]
    fn runs_are_selected_by_figure_benchmark_and_shard() {
        let figure = ["--only", "autonomous-nic-offloads/fig-17"];
        assert_eq!(selected(&figure), Ok(vec!["tls-loss".to_owned()]));
        let both = ["--only", "bench/tls", "--only", "bench/memory"];
        assert_eq!(selected(&both).unwrap().len(), 2);
        let parts: Vec<_> = ["1/3", "2/3", "3/3"]
            .iter()
            .map(|part| selected(&["--shard", part]).unwrap())
            .collect();
        let mut joined = parts.concat();
        joined.sort_unstable();
        let mut all = selected(&[]).unwrap();
        all.sort_unstable();
        assert_eq!(joined, all);
        for name in ["tls", "bench/none", "io-tcp/fig-99", "none/fig-1"] {
            assert!(selected(&["--only", name]).unwrap_err().contains("--list"), "{name}");
        }
        let why = selected(&["--only", "acceltcp/table-6"]).unwrap_err();
        assert!(why.starts_with("acceltcp/table-6 is not applicable: "), "{why}");
    }

    #[test]
    fn merged_folders_have_the_results_of_all() {
        let folder = results::tests::TestFolder::new("merge");
        let [a, b, joined] = ["a", "b", "joined"].map(|name| folder.0.join(name));
        let store = |path: &Path, run: &str| {
            let result = results::tests::result(vec![json!({ "headline": { "n": 1 } })]);
            ResultsFolder::create(path).unwrap().store(run, &result).unwrap();
        };
        store(&a, "tls");
        store(&b, "memory");
        let text = joined.to_str().unwrap();
        let merge = ["--out", text, "--merge", a.to_str().unwrap(), b.to_str().unwrap()];
        run(&args(&merge)).unwrap();
        let index = std::fs::read_to_string(joined.join("index.html")).unwrap();
        assert_eq!(index.matches("<td>n</td>").count(), 2);
        let machine = std::fs::read_to_string(joined.join("raw/machine.json")).unwrap();
        assert!(serde_json::from_str::<Value>(&machine).is_ok());
    }
}
