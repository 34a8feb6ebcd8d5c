//! One run of a client against one server, and the CPU time it cost. The client is wrk, or a
//! program that prints the same numbers.
//!
//! The counters in /proc advance 100 times a second, which is precise enough for runs of seconds.

use std::fs;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use super::LoadRow;
use super::environment::{
    CoreList, LiveServer, LiveTestbed, MIX_VARIABLE, UPLOAD_VARIABLE, command_in_namespace,
};
use super::tools::output;
use cli::Failure;

/// Ticks per second of the times in /proc: USER_HZ, which is 100 on the supported architectures.
const TICKS_PER_S: f64 = 100.0;

/// Result and cost of one run.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadRun {
    /// Duration in seconds.
    pub(crate) seconds: f64,
    /// Number of responses.
    pub(crate) requests: f64,
    /// Bytes that the client read, header sections included.
    pub(crate) bytes: f64,
    /// Median and 99th percentile of the latency, in microseconds.
    pub(crate) latency_us: (f64, f64),
    /// Description of errors; empty if there are none.
    pub(crate) errors: String,
    /// CPU seconds of the server, all threads.
    pub(crate) server_s: f64,
    /// CPU seconds of the server's host threads.
    pub(crate) host_s: f64,
    /// Seconds during which the server's cores were busy with any work.
    pub(crate) core_s: f64,
    /// Seconds of `core_s` that were spent in interrupts.
    pub(crate) interrupts_s: f64,
    /// Fraction of the time during which the client's cores were busy; near 1, the client is the
    /// bottleneck.
    pub(crate) client_busy: f64,
    /// Context switches of the server's threads, voluntary and involuntary.
    pub(crate) switches: f64,
}

impl LoadRun {
    /// Sets the CPU times to those between two snapshots.
    fn add_times(&mut self, before: &Snapshot, after: &Snapshot, bed: &LiveTestbed) {
        self.server_s = after.server_s - before.server_s;
        self.host_s = after.host_s - before.host_s;
        self.core_s = after.core.busy_s - before.core.busy_s;
        self.interrupts_s = after.core.interrupts_s - before.core.interrupts_s;
        let client_s = after.client.busy_s - before.client.busy_s;
        self.client_busy = client_s / self.seconds / bed.client_cores.0.len() as f64;
        self.switches = after.switches - before.switches;
    }

    pub(crate) fn requests_per_s(&self) -> f64 {
        self.requests / self.seconds
    }

    pub(crate) fn bytes_per_s(&self) -> f64 {
        self.bytes / self.seconds
    }

    pub(crate) fn server_s_per_request(&self) -> f64 {
        self.server_s / self.requests
    }

    pub(crate) fn host_s_per_request(&self) -> f64 {
        self.host_s / self.requests
    }

    pub(crate) fn core_s_per_request(&self) -> f64 {
        self.core_s / self.requests
    }

    pub(crate) fn server_s_per_byte(&self) -> f64 {
        self.server_s / self.bytes
    }

    pub(crate) fn core_s_per_byte(&self) -> f64 {
        self.core_s / self.bytes
    }
}

/// Runs wrk for a number of seconds, with a thread for each of the client's cores and the row's
/// connections for each of them.
pub(crate) fn run(
    server: &LiveServer,
    bed: &LiveTestbed,
    row: LoadRow,
    seconds: u32,
) -> Result<LoadRun, Failure> {
    let mut wrk = wrk(server, bed, row, (server.addr, seconds));
    measure(&mut wrk, server, bed, row)
}

/// Runs wrk against each of these addresses at the same time, as [`run`] does against one. The CPU
/// times are those of all runs; their latencies are not combined.
pub(crate) fn run_side_by_side(
    server: &LiveServer,
    bed: &LiveTestbed,
    rows: &[(LoadRow, Ipv4Addr)],
    seconds: u32,
) -> Result<Vec<LoadRun>, Failure> {
    let before = Snapshot::take(server, bed)?;
    let start = |&(row, addr): &(LoadRow, Ipv4Addr)| {
        let mut wrk = wrk(server, bed, row, (addr, seconds));
        wrk.stdout(Stdio::piped()).stderr(Stdio::null());
        wrk.spawn().map_err(|e| Failure::System(format!("cannot run wrk: {e}")))
    };
    let running = rows.iter().map(start).collect::<Result<Vec<_>, _>>()?;
    let mut runs = Vec::new();
    for (client, (row, _)) in running.into_iter().zip(rows) {
        let said = client.wait_with_output();
        let said = said.map_err(|e| Failure::System(format!("cannot read from wrk: {e}")))?;
        let run = parse_wrk(&String::from_utf8_lossy(&said.stdout), *row);
        runs.push(run.ok_or_else(|| Failure::System("cannot parse wrk's report".to_owned()))?);
    }
    let after = Snapshot::take(server, bed)?;
    runs.iter_mut().for_each(|run| run.add_times(&before, &after, bed));
    Ok(runs)
}

/// Returns the command of wrk for an address.
fn wrk(
    server: &LiveServer,
    bed: &LiveTestbed,
    row: LoadRow,
    (addr, seconds): (Ipv4Addr, u32),
) -> Command {
    let mut wrk = command_in_namespace(server.client_namespace(), "taskset");
    let threads = u32::try_from(bed.client_cores.0.len()).unwrap_or(u32::MAX);
    wrk.arg("--cpu-list").arg(bed.client_cores.to_string());
    wrk.arg("wrk").arg("--threads").arg(threads.to_string());
    wrk.arg("--connections").arg(row.connections.saturating_mul(threads).to_string());
    wrk.arg("--duration").arg(format!("{seconds}s")).arg("--script").arg(bed.script());
    if row.upload {
        wrk.env(UPLOAD_VARIABLE, bed.site().join(row.name));
    }
    if !row.mix.is_empty() {
        wrk.env(MIX_VARIABLE, row.mix.len().to_string());
    }
    if row.close {
        wrk.args(["--header", "Connection: close"]);
    }
    let scheme = if row.tls { "https" } else { "http" };
    wrk.arg(format!("{scheme}://{addr}/{}", row.name));
    wrk
}

/// Runs a client that prints the line of our wrk script.
pub(crate) fn measure(
    client: &mut Command,
    server: &LiveServer,
    bed: &LiveTestbed,
    row: LoadRow,
) -> Result<LoadRun, Failure> {
    let before = Snapshot::take(server, bed)?;
    let said = output(client)?;
    let after = Snapshot::take(server, bed)?;
    let mut run = parse_wrk(&said, row)
        .ok_or_else(|| Failure::System("cannot parse the client's report".to_owned()))?;
    run.add_times(&before, &after, bed);
    Ok(run)
}

/// Parses the line of our wrk script.
fn parse_wrk(said: &str, row: LoadRow) -> Option<LoadRun> {
    let line = said.lines().find_map(|line| line.strip_prefix("numbers "))?;
    let numbers: Vec<f64> = line.split(' ').filter_map(|n| n.parse().ok()).collect();
    let &[us, requests, bytes, connect, read, write, status, timeout, p50, p99] = &numbers[..]
    else {
        return None;
    };
    let mut errors: Vec<String> = ["connect", "read", "write", "status", "timeout"]
        .into_iter()
        .zip([connect, read, write, status, timeout])
        .filter(|&(_, count)| count > 0.0)
        .map(|(kind, count)| format!("{count} {kind} errors"))
        .collect();
    if requests == 0.0 {
        errors.push("no responses".to_owned());
    }
    if bytes < requests * row.response_bytes() as f64 {
        errors.push("truncated responses".to_owned());
    }
    Some(LoadRun {
        seconds: us / 1e6,
        requests,
        bytes,
        latency_us: (p50, p99),
        errors: errors.join(", "),
        ..LoadRun::default()
    })
}

/// Time of a core, or of several.
#[derive(Clone, Copy, Default)]
struct CoreTime {
    busy_s: f64,
    interrupts_s: f64,
}

/// Beginning of the names of host threads.
const HOST_THREAD: &str = "host";

struct Snapshot {
    server_s: f64,
    host_s: f64,
    switches: f64,
    core: CoreTime,
    client: CoreTime,
}

impl Snapshot {
    fn take(server: &LiveServer, bed: &LiveTestbed) -> Result<Self, Failure> {
        let read = |path: String| {
            let gone = |e| Failure::System(format!("server exited: cannot read {path}: {e}"));
            fs::read_to_string(&path).map_err(gone)
        };
        let (mut server_s, mut host_s, mut switches) = (0.0, 0.0, 0.0);
        for pid in server.pids() {
            let stat = read(format!("/proc/{pid}/stat"))?;
            server_s += process_time(&stat).unwrap_or_default();
            let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            for thread in threads {
                let read = |name| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
                switches += context_switches(&read("status"));
                if read("comm").starts_with(HOST_THREAD) {
                    host_s += process_time(&read("stat")).unwrap_or_default();
                }
            }
        }
        let cores = read("/proc/stat".to_owned())?;
        Ok(Self {
            server_s,
            host_s,
            switches,
            core: cores_time(&cores, &bed.server_cores),
            client: cores_time(&cores, &bed.client_cores),
        })
    }
}

/// Parses utime + stime of /proc/PID/stat: all threads, including those that have ended.
fn process_time(stat: &str) -> Option<f64> {
    // The name, in parentheses, may contain any character; the field after it has number 3.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
    Some((ticks(14)? + ticks(15)?) / TICKS_PER_S)
}

/// Returns the sum of the times of these cores.
fn cores_time(stat: &str, cores: &CoreList) -> CoreTime {
    let mut sum = CoreTime::default();
    for core in cores.0.iter().filter_map(|&core| core_time(stat, core)) {
        sum.busy_s += core.busy_s;
        sum.interrupts_s += core.interrupts_s;
    }
    sum
}

/// Parses a core's line of /proc/stat: user nice system idle iowait irq softirq steal.
fn core_time(stat: &str, core: usize) -> Option<CoreTime> {
    let name = format!("cpu{core} ");
    let line = stat.lines().find_map(|line| line.strip_prefix(&name))?;
    let ticks: Vec<f64> = line.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    let &[user, nice, system, _, _, irq, softirq, ..] = &ticks[..] else { return None };
    Some(CoreTime {
        busy_s: (user + nice + system + irq + softirq) / TICKS_PER_S,
        interrupts_s: (irq + softirq) / TICKS_PER_S,
    })
}

fn context_switches(status: &str) -> f64 {
    let counts = status.lines().filter_map(|line| {
        let (name, count) = line.split_once(':')?;
        name.ends_with("voluntary_ctxt_switches").then(|| count.trim().parse::<f64>().ok())?
    });
    counts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::live::LoadRow;

    #[test]
    fn reads_what_wrk_prints() {
        let said = "Running 1s test\nnumbers 2000000 100 1000000 0 0 0 0 0 500 900\n";
        let run = parse_wrk(said, LoadRow::new("4k", 4 << 10, 64)).unwrap();
        assert_eq!((run.requests_per_s(), run.bytes_per_s()), (50.0, 500_000.0));
        assert_eq!((run.latency_us, run.errors.as_str()), ((500.0, 900.0), ""));
        let short = "numbers 2000000 100 1000 0 3 0 1 0 500 900";
        let errors = parse_wrk(short, LoadRow::new("4k", 4 << 10, 64)).unwrap().errors;
        assert_eq!(errors, "3 read errors, 1 status errors, truncated responses");
        let none = parse_wrk("numbers 2000000 0 0 0 0 0 0 0 0 0", LoadRow::new("4k", 4 << 10, 64))
            .unwrap()
            .errors;
        assert_eq!(none, "no responses");
        assert!(parse_wrk("Requests/sec: 5", LoadRow::new("4k", 4 << 10, 64)).is_none());
    }

    #[test]
    fn reads_proc() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 1 0 1 1 1";
        assert_eq!(process_time(stat), Some(2.0));
        let cores = "cpu  1 1 1 1 1 1 1 0 0 0\ncpu1 100 0 200 5 5 0 100 9 0 0\n";
        let core = core_time(cores, 1).unwrap();
        assert_eq!((core.busy_s, core.interrupts_s), (4.0, 1.0));
        assert!(core_time(cores, 2).is_none());
        let twice = cores_time(cores, &CoreList(vec![1, 1, 2]));
        assert_eq!((twice.busy_s, twice.interrupts_s), (8.0, 2.0));
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t3\nnonvoluntary_ctxt_switches:\t4\n";
        assert_eq!(context_switches(status), 7.0);
    }
}
