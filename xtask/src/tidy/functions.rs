//! The length of functions: at most 70 lines, with a shrinking list of exceptions.
//!
//! A longer function must be in [`LIST`] with its exact number of lines and a reason. An entry
//! whose function changed its length, disappeared or no longer exceeds the limit is an error too.
//! Test code is exempt.

use super::RustSource;
use crate::report::CheckReport;
use crate::scan;

/// List of functions that may be longer.
pub(crate) const LIST: &str = "xtask/long-functions.txt";

/// Limit of a function's lines, from `fn` to the closing brace.
const FUNCTION_LINES_MAX: usize = 70;

#[derive(Debug)]
struct Allowed<'a> {
    path: &'a str,
    function: &'a str,
    lines: usize,
    listed_at: usize,
}

/// Checks all files against the list.
pub(crate) fn check(sources: &[RustSource], list: &str, report: &mut CheckReport) {
    let allowed = parse(list, report);
    let mut used = vec![false; allowed.len()];
    for source in sources {
        for function in scan::functions(&source.code) {
            if function.lines <= FUNCTION_LINES_MAX || source.is_test(function.line) {
                continue;
            }
            let entry = allowed.iter().position(|a| {
                a.path == source.path && a.function == function.name && a.lines == function.lines
            });
            match entry {
                Some(entry) => used[entry] = true,
                None => {
                    let message = format!(
                        "function `{}` has {} lines; split it, at most {FUNCTION_LINES_MAX}",
                        function.name, function.lines
                    );
                    report.error(&source.path, function.line, message);
                }
            }
        }
    }
    for (entry, _) in allowed.iter().zip(used).filter(|(_, used)| !used) {
        let message = format!(
            "no function `{}` of {} lines in {}; correct or remove the entry",
            entry.function, entry.lines, entry.path
        );
        report.error(LIST, entry.listed_at, message);
    }
}

fn parse<'a>(list: &'a str, report: &mut CheckReport) -> Vec<Allowed<'a>> {
    let mut allowed = Vec::new();
    for (index, line) in list.lines().enumerate() {
        let mut fields = line.splitn(4, ' ');
        match (fields.next(), fields.next(), fields.next(), fields.next()) {
            (Some(first), ..) if first.is_empty() || first.starts_with('#') => {}
            (Some(path), Some(function), Some(lines), Some(reason)) if !reason.is_empty() => {
                match lines.parse() {
                    Ok(lines) => {
                        allowed.push(Allowed { path, function, lines, listed_at: index + 1 });
                    }
                    Err(_) => report.error(LIST, index + 1, "the third field is not a number"),
                }
            }
            _ => report.error(LIST, index + 1, "expected: PATH FUNCTION LINES REASON"),
        }
    }
    allowed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(lines: usize, test: bool, list: &str) -> Vec<String> {
        let text = format!("fn f() {{\n{}}}\n", "x;\n".repeat(lines - 2));
        let mut report = CheckReport::default();
        check(&[RustSource::new("a.rs", text, test)], list, &mut report);
        report.errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn limit_holds_outside_tests() {
        assert_eq!(errors(70, false, ""), [""; 0]);
        assert_eq!(errors(71, true, ""), [""; 0]);
        assert_eq!(
            errors(71, false, ""),
            ["a.rs:1: function `f` has 71 lines; split it, at most 70"]
        );
    }

    #[test]
    fn list_is_a_ratchet() {
        assert_eq!(errors(80, false, "# why\n\na.rs f 80 one long table\n"), [""; 0]);
        // Grown, shrunk or gone: each is an error.
        assert_eq!(errors(81, false, "a.rs f 80 one long table\n").len(), 2);
        assert_eq!(errors(79, false, "a.rs f 80 one long table\n").len(), 2);
        assert_eq!(errors(10, false, "a.rs f 80 one long table\n").len(), 1);
        assert_eq!(errors(80, false, "a.rs f 80\n").len(), 2);
        assert_eq!(errors(80, false, "a.rs f many lines\n").len(), 2);
    }
}
