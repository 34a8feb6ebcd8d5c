//! The access log of a queue: written by its host thread, opened again when a signal asks for it.
//!
//! Programs that rotate logs rename the file and send SIGUSR1; until then, and if the file cannot
//! be opened again, lines go to the old one.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cli::Failure;

/// The access log of a queue.
pub(crate) struct AccessLog {
    target: Target,
    /// The number of requests to open the file again.
    asked: Arc<AtomicUsize>,
    /// The number of them that were met.
    done: usize,
}

enum Target {
    Stdout,
    File { path: PathBuf, file: BufWriter<File> },
}

/// Opens the access log of a queue, and again each time that `asked` moves.
///
/// # Errors
/// Fails with the file that cannot be written, and why.
pub(crate) fn open_access_log(
    path: &Path,
    index: usize,
    asked: &Arc<AtomicUsize>,
) -> Result<AccessLog, Failure> {
    let target = if path.as_os_str() == "-" {
        Target::Stdout
    } else {
        let mut path = path.to_owned();
        if index > 0 {
            path.as_mut_os_string().push(format!(".{index}"));
        }
        let file = append_to(&path).map_err(Failure::NoInput)?;
        Target::File { path, file }
    };
    Ok(AccessLog { target, asked: Arc::clone(asked), done: asked.load(Ordering::Acquire) })
}

fn append_to(path: &Path) -> Result<BufWriter<File>, String> {
    let file = File::options().create(true).append(true).open(path);
    file.map(BufWriter::new)
        .map_err(|e| format!("cannot write --access-log {}: {e}", path.display()))
}

impl AccessLog {
    /// Writes a line.
    pub(crate) fn write(&mut self, line: &str) {
        // A full disk does not stop the service.
        let _ = match &mut self.target {
            Target::Stdout => writeln!(std::io::stdout(), "{line}"),
            Target::File { file, .. } => writeln!(file, "{line}"),
        };
    }

    /// Hands the lines to the system.
    pub(crate) fn flush(&mut self) {
        let _ = match &mut self.target {
            Target::Stdout => std::io::stdout().flush(),
            Target::File { file, .. } => file.flush(),
        };
    }

    /// Opens the file again if that was asked for since the last time.
    pub(crate) fn reopen_if_asked(&mut self) {
        let asked = self.asked.load(Ordering::Acquire);
        if asked == self.done {
            return;
        }
        self.done = asked;
        self.flush();
        if let Target::File { path, file } = &mut self.target {
            match append_to(path) {
                Ok(new) => *file = new,
                Err(why) => eprintln!("outboard: {why}; the log goes where it went"),
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
            log.reopen_if_asked();
            log.write(line);
            log.flush();
        };
        write("one");
        std::fs::rename(&path, &old).unwrap();
        write("two");
        asked.fetch_add(1, Ordering::Release);
        write("three");
        // A name that cannot be opened leaves the file in use.
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
