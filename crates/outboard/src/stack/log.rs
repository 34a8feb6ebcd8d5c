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

/// The destination of the lines of an access log.
pub(crate) struct Log {
    target: Target,
    /// The number of requests of the main thread to open the file again, and how many were met.
    asked: Arc<AtomicUsize>,
    done: usize,
}

enum Target {
    Stdout,
    File { path: PathBuf, file: BufWriter<File> },
}

/// Opens the access log of a queue, if one was asked for.
///
/// # Errors
/// The file that cannot be written, and why.
pub(crate) fn open_log(path: Option<&Path>, index: usize) -> Result<Option<Log>, Failure> {
    let Some(path) = path else { return Ok(None) };
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
    Ok(Some(Log { target, asked: Arc::default(), done: 0 }))
}

fn append_to(path: &Path) -> Result<BufWriter<File>, String> {
    let file = File::options().create(true).append(true).open(path);
    file.map(BufWriter::new)
        .map_err(|e| format!("cannot write --access-log {}: {e}", path.display()))
}

impl Log {
    /// The same log, opened again each time that `asked` moves.
    pub(super) fn watching(self, asked: &Arc<AtomicUsize>) -> Self {
        Self { asked: Arc::clone(asked), done: asked.load(Ordering::Acquire), ..self }
    }

    /// Writes a line.
    pub(super) fn write(&mut self, line: &str) {
        // A full disk does not stop the service.
        let _ = match &mut self.target {
            Target::Stdout => writeln!(std::io::stdout(), "{line}"),
            Target::File { file, .. } => writeln!(file, "{line}"),
        };
    }

    /// Gives the system what was written.
    pub(super) fn flush(&mut self) {
        let _ = match &mut self.target {
            Target::Stdout => std::io::stdout().flush(),
            Target::File { file, .. } => file.flush(),
        };
    }

    /// Opens the file again if that was asked for since the last time.
    pub(super) fn reopen_if_asked(&mut self) {
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
        let mut log = open_log(Some(&path), 0).unwrap().unwrap().watching(&asked);
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
        assert!(open_log(None, 0).unwrap().is_none());
        assert!(open_log(Some(&folder), 0).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
