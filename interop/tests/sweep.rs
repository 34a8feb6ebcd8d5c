//! `jobs/parallel.sh`: GNU parallel runs the shards of a grid, and starts a killed worker again.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use interop::{Files, outboard_lab, run_for_output};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const GRID: &str = "command = ['sim', '--seeds', '5', '--threads', '1']\n\
    columns = ['seeds', 'events', 'counters.bytes', 'counters.net_lost']\n\
    [[parameters]]\noption = 'first'\nrange = { first = 0, end = 80, step = 5 }\n";

#[test]
fn parallel_runs_all_shards_although_a_worker_is_killed() {
    let files = Files::new(TMP);
    let grid = files.write("grid.toml", GRID);
    let [parts, whole, killed] = ["parts", "whole", "killed"].map(|name| files.path().join(name));
    // The worker of shard 3 is killed at its first start.
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *' 3/8') [ -e {killed} ] || {{ touch {killed}; kill -9 $$; }};; \
         esac\nexec {lab} \"$@\"\n",
        killed = killed.display(),
        lab = outboard_lab().display(),
    );
    let worker = files.write("worker", script);
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&worker, executable).expect("it may be run");
    let runner = Path::new(env!("CARGO_MANIFEST_DIR")).join("../jobs/parallel.sh");
    let mut parallel = Command::new(runner);
    parallel.arg(&grid).arg(&parts).args(["8", "--jobs", "3"]);
    let output = parallel.env("OUTBOARD_LAB", worker).output();
    let output = output.expect("GNU parallel: `make setup` installs it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(killed.exists(), "a worker was killed");

    let lab = |option: &str, folder: &Path| {
        let mut command = Command::new(outboard_lab());
        run_for_output(command.arg("sweep").arg(&grid).arg(option).arg(folder))
    };
    lab("--out", &whole);
    let table = lab("--merge", &whole);
    assert_eq!(table.lines().count(), 17, "{table}");
    assert_eq!(lab("--merge", &parts), table);
}
