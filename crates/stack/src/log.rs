//! Access log of a queue: written by its host thread, and reopened at a signal.
//!
//! Programs that rotate logs rename the file and send SIGUSR1. Until then, and if the file cannot
//! be reopened, lines are written to the old file.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cli::Failure;

/// Access log of a queue.
pub(crate) struct AccessLog {
    target: LogTarget,
    /// Number of requests to reopen the file.
    reopen_requests: Arc<AtomicUsize>,
    /// Number of requests that were handled.
    reopens_done: usize,
}

enum LogTarget {
    Stdout,
    File { path: PathBuf, file: BufWriter<File> },
}

/// Opens the access log of a queue. Each increment of `reopen_requests` is a request to reopen it.
///
/// # Errors
/// Fails if the file cannot be opened for writing.
pub(crate) fn open_access_log(
    path: &Path,
    index: usize,
    asked: &Arc<AtomicUsize>,
) -> Result<AccessLog, Failure> {
    let target = if path.as_os_str() == "-" {
        LogTarget::Stdout
    } else {
        let mut path = path.to_owned();
        if index > 0 {
            path.as_mut_os_string().push(format!(".{index}"));
        }
        let file = append_to(&path).map_err(Failure::NoInput)?;
        LogTarget::File { path, file }
    };
    Ok(AccessLog {
        target,
        reopen_requests: Arc::clone(asked),
        reopens_done: asked.load(Ordering::Acquire),
    })
}

fn append_to(path: &Path) -> Result<BufWriter<File>, String> {
    let file = File::options().create(true).append(true).open(path);
    file.map(BufWriter::new)
        .map_err(|e| format!("cannot open --access-log {}: {e}", path.display()))
}

impl AccessLog {
    /// Writes a line.
    pub(crate) fn write(&mut self, line: &str) {
        // Write errors are ignored: a full disk does not stop the service.
        let _ = match &mut self.target {
            LogTarget::Stdout => writeln!(std::io::stdout(), "{line}"),
            LogTarget::File { file, .. } => writeln!(file, "{line}"),
        };
    }

    /// Writes buffered lines to the file.
    pub(crate) fn flush(&mut self) {
        let _ = match &mut self.target {
            LogTarget::Stdout => std::io::stdout().flush(),
            LogTarget::File { file, .. } => file.flush(),
        };
    }

    /// Reopens the file if that was requested since the last call.
    pub(crate) fn reopen_if_requested(&mut self) {
        let asked = self.reopen_requests.load(Ordering::Acquire);
        if asked == self.reopens_done {
            return;
        }
        self.reopens_done = asked;
        self.flush();
        if let LogTarget::File { path, file } = &mut self.target {
            match append_to(path) {
                Ok(new) => *file = new,
                Err(why) => eprintln!("outboard: {why}; keeping the old file"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_follow_the_name_once_asked() {
        let folder = std::env::temp_dir().join(format!("outboard-log-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (path, old) = (folder.join("log"), folder.join("log.1"));
        let asked = Arc::new(AtomicUsize::new(5));
        let mut log = open_access_log(&path, 0, &asked).unwrap();
        let mut write = |line: &str| {
            log.reopen_if_requested();
            log.write(line);
            log.flush();
        };
        write("one");
        std::fs::rename(&path, &old).unwrap();
        write("two");
        asked.fetch_add(1, Ordering::Release);
        write("three");
        // If the name cannot be opened, the file stays in use.
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        asked.fetch_add(1, Ordering::Release);
        write("four");
        std::fs::remove_dir(&path).unwrap();
        asked.fetch_add(1, Ordering::Release);
        write("five");
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "one\ntwo\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "five\n");
        assert!(open_access_log(&folder, 0, &asked).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
