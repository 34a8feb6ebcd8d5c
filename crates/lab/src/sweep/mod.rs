//! `outboard-lab sweep`: runs the points of a grid, on one machine or many, and merges the results.
//!
//! Every point is a run of this program with `--json` ([`grid`]), and its result is a file
//! ([`results`]). Workers share nothing but, perhaps, the folder: shard K of N runs every N-th
//! point, and skips points whose results are there. So a worker that was killed is started again
//! with the same arguments. `jobs/` has job files for Slurm, Kubernetes and GNU parallel.

mod grid;
mod results;

use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use cli::Failure;

use crate::child::{ChildOutput, run_json};
use crate::shard::Shard;
use grid::{GridPoint, SweepGrid};
use results::SweepTable;

/// Arguments of `outboard-lab sweep`.
#[derive(Debug, Args)]
pub(crate) struct SweepArgs {
    /// TOML file with the parameters, such as sweeps/io-tcp.toml
    grid: PathBuf,
    /// Folder for the results; points whose results are there are skipped
    #[arg(long, value_name = "DIR", required_unless_present = "merge")]
    out: Option<PathBuf>,
    /// Run only every N-th point, beginning with the K-th, from 1
    #[arg(long, value_name = "K/N", conflicts_with = "merge")]
    shard: Option<Shard>,
    /// Print the table of all points, with results from these folders
    #[arg(long, value_name = "DIR", num_args = 1.., conflicts_with = "out")]
    merge: Vec<PathBuf>,
    /// Print JSON instead of CSV
    #[arg(long, requires = "merge")]
    json: bool,
}

/// Runs `outboard-lab sweep`.
///
/// # Errors
/// Reports an invalid grid, points that failed, and results that are missing.
pub(crate) fn run(args: &SweepArgs) -> Result<(), Failure> {
    let grid = SweepGrid::load(&args.grid)?;
    match &args.out {
        Some(folder) => run_points(&grid, folder, args.shard.unwrap_or(Shard::WHOLE)),
        None => print_table(&SweepTable::merge(&grid, &args.merge)?, args.json),
    }
}

/// Runs the points of a shard. A point that fails does not keep the others from running.
fn run_points(grid: &SweepGrid, folder: &Path, shard: Shard) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).map_err(|error| {
        Failure::NoInput(format!("cannot create folder {}: {error}", folder.display()))
    })?;
    let program = std::env::current_exe()
        .map_err(|error| Failure::System(format!("cannot find this program: {error}")))?;
    let points = grid.points();
    let points: Vec<_> = points.iter().filter(|point| shard.contains(point.index)).collect();
    let mut failed = Vec::new();
    for (done, point) in points.iter().enumerate() {
        let arguments = grid.arguments(point);
        let name = format!("point {} ({} of {})", point.index, done + 1, points.len());
        if results::load(folder, grid, point)?.is_some() {
            eprintln!("{name}: there");
            continue;
        }
        eprintln!("{name}: {}", arguments.join(" "));
        match run_json(&program, &arguments) {
            ChildOutput { json: Some(result), failure: None } => {
                results::store(folder, grid, point, &result)?;
            }
            ChildOutput { failure, .. } => {
                eprintln!("{name}: {}", failure.unwrap_or_default());
                failed.push(point);
            }
        }
    }
    match failed.len() {
        0 => Ok(()),
        count => Err(Failure::System(format!(
            "{count} of {} points failed: {:?}",
            points.len(),
            failed.iter().take(20).map(|point: &&&GridPoint| point.index).collect::<Vec<_>>()
        ))),
    }
}

fn print_table(table: &SweepTable, json: bool) -> Result<(), Failure> {
    let text = if json { format!("{:#}\n", table.to_json()) } else { table.to_csv() };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .map_err(|error| Failure::System(format!("cannot write the table: {error}")))?;
    if !json {
        table.sums().iter().for_each(|(column, sum)| eprintln!("sum of {column}: {sum}"));
    }
    Ok(())
}
