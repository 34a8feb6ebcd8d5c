//! Rules for single lines and whole files: width, tabs, trailing spaces, module head, file length.

use super::RustSource;
use crate::report::CheckReport;

/// Limit of a line's width in characters. Lines with a URL are exempt, because a URL cannot be
/// broken.
const WIDTH_MAX: usize = 100;
/// Number of lines above which a file causes a warning: it may have more than one purpose.
const FILE_LINES_SOFT: usize = 600;
/// Number of lines above which a file must be split.
const FILE_LINES_HARD: usize = 1200;

/// Checks one file.
pub(crate) fn check(source: &RustSource, report: &mut CheckReport) {
    for (index, line) in source.text.lines().enumerate() {
        let mut error = |message: &str| report.error(&source.path, index + 1, message);
        let width = line.chars().count();
        if width > WIDTH_MAX && !line.contains("://") {
            error(&format!("line of {width} characters; at most {WIDTH_MAX}"));
        }
        if line.contains('\t') {
            error("tab character; use spaces, or \\t in a literal");
        }
        if line.ends_with([' ', '\r']) {
            error("space or carriage return at the end of the line");
        }
    }
    if !source.text.starts_with("//!") {
        let message = "missing module head; begin with `//!` and state purpose, callers, \
                       invariants, and what it does not do";
        report.error(&source.path, 1, message);
    }
    if !source.text.ends_with('\n') {
        report.error(&source.path, 0, "no newline at the end of the file");
    }
    length(source, report);
}

fn length(source: &RustSource, report: &mut CheckReport) {
    // Tests do not count, so that thorough tests are not discouraged.
    let lines = source.test_lines.iter().filter(|&&test| !test).count();
    if lines > FILE_LINES_HARD {
        let message =
            format!("{lines} lines without tests; split the file, at most {FILE_LINES_HARD}");
        report.error(&source.path, 0, message);
    } else if lines > FILE_LINES_SOFT {
        let message = format!(
            "{lines} lines without tests, more than {FILE_LINES_SOFT}; consider splitting the file"
        );
        report.warning(&source.path, 0, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> Vec<(usize, String)> {
        let mut report = CheckReport::default();
        check(&RustSource::new("crates/x/src/a.rs", text.to_owned(), false), &mut report);
        report.errors.into_iter().map(|f| (f.line, f.message)).collect()
    }

    #[test]
    fn good_file_passes() {
        let wide_url = format!("//! A.\n// https://example.com/{}\n", "a".repeat(100));
        assert_eq!(errors(&wide_url), []);
        assert_eq!(errors(&format!("//! A.\n//{}\n", "ü".repeat(98))), []);
    }

    #[test]
    fn each_line_rule_fires() {
        let lines = |text: &str| errors(text).into_iter().map(|e| e.0).collect::<Vec<_>>();
        assert_eq!(lines(&format!("//! A.\n//{}\n", "a".repeat(99))), [2]);
        assert_eq!(lines("//! A.\n\tfn\n"), [2]);
        assert_eq!(lines("//! A. \n"), [1]);
        assert!(lines("//! A.\r\n").is_empty());
        assert_eq!(lines("use a;\n"), [1]);
        assert_eq!(lines("//! A."), [0]);
    }

    #[test]
    fn tests_do_not_count_towards_the_length() {
        let of = |code: usize, test: usize| {
            let text = format!(
                "//! A.\n{}#[cfg(test)]\nmod tests {{\n{}}}\n",
                "x\n".repeat(code - 1),
                "y\n".repeat(test)
            );
            let mut report = CheckReport::default();
            check(&RustSource::new("a.rs", text, false), &mut report);
            (report.errors.len(), report.warnings.len())
        };
        assert_eq!(of(FILE_LINES_SOFT, 5000), (0, 0));
        assert_eq!(of(FILE_LINES_SOFT + 1, 0), (0, 1));
        assert_eq!(of(FILE_LINES_HARD, 0), (0, 1));
        assert_eq!(of(FILE_LINES_HARD + 1, 0), (1, 0));
    }
}
