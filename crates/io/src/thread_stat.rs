//! CPU times of the threads of this process, from `/proc/self/task` (proc_pid_stat(5)).

use std::fs;

/// Ticks per second of the times in `stat`: `USER_HZ`, which is 100 on every architecture that
/// Linux supports for user space.
const TICKS_PER_SECOND: f64 = 100.0;

/// Returns the name and the CPU time in seconds of each thread, sorted by name. Threads that end
/// meanwhile are left out.
#[must_use]
pub fn thread_cpu_times() -> Vec<(String, f64)> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let stat = |task: fs::DirEntry| parse(&fs::read_to_string(task.path().join("stat")).ok()?);
    let mut times: Vec<_> = tasks.filter_map(stat).collect();
    times.sort_by(|a, b| a.0.cmp(&b.0));
    times
}

/// Parses a line: `PID (NAME) STATE ...`, where the name may contain anything.
fn parse(stat: &str) -> Option<(String, f64)> {
    let (_, rest) = stat.split_once('(')?;
    let (name, fields) = rest.rsplit_once(')')?;
    // The fields begin with the third one; utime and stime are the 14th and 15th.
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((name.to_owned(), (ticks()? + ticks()?) / TICKS_PER_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_contain_parentheses() {
        let stat = "17 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0";
        assert_eq!(parse(stat), Some(("a) b (c)".to_owned(), 3.0)));
        assert_eq!(parse("17 (a) S 1"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn this_thread_is_there() {
        assert!(!thread_cpu_times().is_empty());
    }
}
