//! Reads the file of `--deny-patterns`.
//!
//! Used by `serve`, `proxy` and `nvme target`, before they start and on SIGHUP; if the new file is
//! invalid, the old rules stay in use. `nvme read` reads it once.

use std::path::PathBuf;
use std::sync::Arc;

use apps::pattern_rules::{PatternRules, RuleCounterNames};
use cli::Failure;

/// The file of `--deny-patterns`.
pub(crate) struct PatternFile {
    path: PathBuf,
    names: RuleCounterNames,
}

impl PatternFile {
    /// Returns the file that an option names.
    pub(crate) fn of_option(path: Option<&PathBuf>) -> Option<Self> {
        path.map(|path| Self { path: path.clone(), names: RuleCounterNames::default() })
    }

    /// Returns the rules of the file.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or names its invalid line.
    pub(crate) fn read(&mut self) -> Result<Arc<PatternRules>, Failure> {
        let name = self.path.display();
        let text = std::fs::read_to_string(&self.path)
            .map_err(|e| Failure::NoInput(format!("cannot read --deny-patterns {name}: {e}")))?;
        let rules = PatternRules::parse(&text, &mut self.names)
            .map_err(|e| Failure::NoInput(format!("--deny-patterns {name}: {e}")))?;
        Ok(Arc::new(rules))
    }

    /// Reads the file again and passes its rules to `apply`. Prints the result on standard error.
    pub(crate) fn reload(&mut self, apply: impl FnOnce(Arc<PatternRules>)) {
        match self.read() {
            Ok(rules) => {
                let count = cli::counted(rules.count(), "pattern");
                apply(rules);
                eprintln!("outboard: SIGHUP: reloaded {count}");
            }
            Err(why) => eprintln!("outboard: SIGHUP: {why}; keeping the old patterns"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_file_and_line() {
        assert!(PatternFile::of_option(None).is_none());
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("rules");
        let mut file = PatternFile::of_option(Some(&path)).expect("a file");
        let mut message = || file.read().expect_err("invalid").to_string();
        assert!(message().starts_with("cannot read --deny-patterns "), "{}", message());
        std::fs::write(&path, "good\nbad\\q\n").expect("a file");
        assert!(message().contains("rules: line 2: unknown escape"), "{}", message());
        let mut applied = Vec::new();
        file.reload(|rules| applied.push(rules.count()));
        std::fs::write(&path, "good\ncount:other\n").expect("a file");
        file.reload(|rules| applied.push(rules.count()));
        assert_eq!(applied, [2], "an invalid file is not applied");
    }
}
