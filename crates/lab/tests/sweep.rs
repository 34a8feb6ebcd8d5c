//! A grid that eight workers run, of which one is killed and started again, merges to the table of
//! an unsharded run.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const SHARDS: usize = 8;
/// Three points for each shard.
const GRID: &str = "command = ['sim', '--seeds', '3', '--threads', '1']\n\
    columns = ['seeds', 'events', 'virtual_seconds', 'counters.bytes', 'counters.net_lost']\n\
    sums = ['seeds', 'events']\n\
    [[parameters]]\noption = 'first'\nrange = { first = 0, end = 72, step = 3 }\n";

fn sweep(grid: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outboard-lab"));
    command.arg("sweep").arg(grid);
    command
}

fn start(grid: &Path, out: &Path, shard: usize) -> Child {
    let mut command = sweep(grid);
    command.arg("--out").arg(out).args(["--shard", &format!("{shard}/{SHARDS}")]);
    command.stderr(Stdio::piped()).spawn().expect("it runs")
}

/// Waits for a worker; returns its messages.
fn finish(worker: Child) -> String {
    let output = worker.wait_with_output().expect("it ends");
    let text = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.success(), "{text}");
    text
}

/// Kills a worker while it runs its second point.
fn kill_at_second_point(mut worker: Child) {
    let messages = BufReader::new(worker.stderr.take().expect("a pipe"));
    let second = messages.lines().any(|line| line.expect("text").contains("(2 of 3)"));
    assert!(second, "it began its second point");
    worker.kill().expect("it is killed");
    assert!(!worker.wait().expect("it ends").success());
}

/// Returns the merged table.
fn table(grid: &Path, folders: &[&Path]) -> String {
    let output = sweep(grid).arg("--merge").args(folders).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn shards_of_killed_workers_merge_to_the_table_of_an_unsharded_run() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("sweep");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    let [grid, parts, whole] = ["grid.toml", "parts", "whole"].map(|name| folder.join(name));
    std::fs::write(&grid, GRID).expect("a grid");

    let workers: Vec<_> = (2..=SHARDS).map(|shard| start(&grid, &parts, shard)).collect();
    kill_at_second_point(start(&grid, &parts, 1));
    workers.into_iter().for_each(|worker| drop(finish(worker)));
    let early = sweep(&grid).arg("--merge").arg(&parts).output().expect("it runs");
    assert_eq!(early.status.code(), Some(69));
    let text = String::from_utf8_lossy(&early.stderr);
    assert!(text.contains("of 24 points have no result"), "{text}");

    let again = finish(start(&grid, &parts, 1));
    assert!(again.contains("point 0 (1 of 3): there"), "{again}");
    assert!(sweep(&grid).arg("--out").arg(&whole).status().expect("it runs").success());
    let expected = table(&grid, &[&whole]);
    assert_eq!(expected.lines().count(), 25, "{expected}");
    assert_eq!(table(&grid, &[&parts]), expected);
    assert_eq!(table(&grid, &[&parts, &whole]), expected, "results may be there twice");
    std::fs::remove_dir_all(&folder).expect("removed");
}
