//! Rule against let chains (`if let Some(x) = y && z`): they need Rust 1.88, and the oldest
//! supported compiler is older. Neither a newer compiler nor clippy reports them.

use super::RustSource;
use crate::report::CheckReport;
use crate::scan;

/// Checks one file.
pub(crate) fn check(source: &RustSource, report: &mut CheckReport) {
    for at in scan::words(&source.code, "let").filter(|&at| is_chained(&source.code, at)) {
        let line = scan::line_of(&source.code, at);
        report.error(&source.path, line, "a let chain needs Rust 1.88; nest the conditions");
    }
}

/// Returns whether the `let` at an offset belongs to a chain: it follows `&&`, or it is that of an
/// `if` or `while` whose expression has `&&` outside of brackets.
fn is_chained(code: &str, at: usize) -> bool {
    let before = code[..at].trim_end();
    if before.ends_with("&&") {
        return true;
    }
    let is_condition = ["if", "while"].iter().any(|word| before.ends_with(word));
    let (mut depth, mut in_expression, mut previous) = (0_usize, false, ' ');
    let mut rest = code[at..].chars().peekable();
    while let Some(now) = rest.next().filter(|_| is_condition) {
        let next = rest.peek().copied().unwrap_or(' ');
        match now {
            '{' if depth == 0 && in_expression => return false,
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            '=' if depth == 0 && next != '=' && next != '>' && !"=!<>.".contains(previous) => {
                in_expression = true;
            }
            '&' if depth == 0 && in_expression && previous == '&' => return true,
            _ => {}
        }
        previous = now;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_found() {
        for (code, chains) in [
            ("if let Some(a) = b && c { d }", 1),
            ("if let S { x: 1..=2, .. } = b\n    && c {}", 1),
            ("if a && let Some(b) = c {}", 1),
            ("while let Some(a) = b && let Some(c) = a {}", 2),
            ("if let Some(a) = b.filter(|x| x.c && x.d) { e && f; }", 0),
            ("if let (Some(a), S { b }) = (c, d) { let e = f && g; }", 0),
            ("let a = b && c;", 0),
            ("let Some(a) = b else { return c && d };", 0),
        ] {
            let source = RustSource::new("crates/a/src/b.rs", code.to_owned(), false);
            let mut report = CheckReport::default();
            check(&source, &mut report);
            assert_eq!(report.errors.len(), chains, "{code}");
        }
    }
}
