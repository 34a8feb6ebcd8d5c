//! Reads the file of `--deny-patterns`.
//!
//! Used by `serve` and `proxy`, before they start.

use std::path::Path;
use std::sync::Arc;

use apps::pattern_rules::PatternRules;
use cli::Failure;

/// Returns the rules of a file.
///
/// # Errors
/// Fails if the file cannot be read, or names its invalid line.
pub(crate) fn read(path: Option<&Path>) -> Result<Option<Arc<PatternRules>>, Failure> {
    let Some(path) = path else { return Ok(None) };
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|e| Failure::NoInput(format!("cannot read --deny-patterns {name}: {e}")))?;
    let rules = PatternRules::parse(&text)
        .map_err(|e| Failure::NoInput(format!("--deny-patterns {name}: {e}")))?;
    Ok(Some(Arc::new(rules)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_file_and_line() {
        assert!(matches!(read(None), Ok(None)));
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("rules");
        let message = || read(Some(&path)).expect_err("invalid").to_string();
        assert!(message().starts_with("cannot read --deny-patterns "), "{}", message());
        std::fs::write(&path, "good\nbad\\q\n").expect("a file");
        assert!(message().contains("rules: line 2: unknown escape"), "{}", message());
        std::fs::write(&path, "good\ncount:other\n").expect("a file");
        assert_eq!(read(Some(&path)).expect("valid").map(|rules| rules.count()), Some(2));
    }
}
