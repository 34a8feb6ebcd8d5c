//! Rules about byte patterns that peers send: some end the connection or fail the command, others
//! are only counted.
//!
//! [`PatternRules::parse`] reads the file of `--deny-patterns`. `pattern_inspection`
//! applies the rules.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use patterns::{PatternSet, PatternSetError};

/// A rule about a pattern. The order is that of the lines.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PatternRule {
    /// Line of the file that has the rule.
    line: usize,
    /// A match ends the connection.
    pub(crate) denies: bool,
    pattern: Vec<u8>,
    /// Name of the counter of its matches.
    pub(crate) counter: &'static str,
}

/// A set of rules.
#[derive(Debug)]
pub struct PatternRules {
    pub(crate) patterns: Arc<PatternSet>,
    /// The rules in the order of their lines, which is that of the patterns.
    pub(crate) rules: Vec<PatternRule>,
}

/// Names of the counters of rules, by line. Names are never freed: a program that reads its rules
/// several times keeps them, so that a line is named once.
#[derive(Debug, Default)]
pub struct RuleCounterNames(BTreeMap<usize, &'static str>);

impl RuleCounterNames {
    /// Returns the name of the counter of a line.
    fn of_line(&mut self, line: usize) -> &'static str {
        self.0.entry(line).or_insert_with(|| format!("pattern_line_{line}_matches").leak())
    }
}

/// Reason for which a file of rules is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternRuleError {
    /// Number of the line, from 1; `None` if the file as a whole is invalid.
    pub line: Option<usize>,
    /// The reason.
    pub reason: String,
}

impl fmt::Display for PatternRuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

impl std::error::Error for PatternRuleError {}

impl PatternRules {
    /// Reads rules, one in a line: `PATTERN` or `deny:PATTERN` to end connections, `count:PATTERN`
    /// to count only. Spaces around a pattern, empty lines and lines that begin with `#` are
    /// ignored. A pattern is text with the escapes `\\`, `\n`, `\r`, `\t` and `\xNN`.
    /// The counter of line N is named `pattern_line_N_matches`.
    ///
    /// # Errors
    /// [`PatternRuleError`]: a line is invalid, repeats another, or a limit of
    /// [`patterns`] is exceeded.
    pub fn parse(text: &str, names: &mut RuleCounterNames) -> Result<Self, PatternRuleError> {
        let mut rules = Vec::<PatternRule>::new();
        for (line, content) in (1..).zip(text.lines()) {
            let content = content.trim();
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            let fail = |reason: String| PatternRuleError { line: Some(line), reason };
            let (denies, pattern) = match content.strip_prefix("count:") {
                Some(pattern) => (false, pattern),
                None => (true, content.strip_prefix("deny:").unwrap_or(content)),
            };
            let pattern = unescape(pattern.trim_start()).map_err(fail)?;
            if let Some(same) = rules.iter().find(|known| known.pattern == pattern) {
                return Err(fail(format!("repeats the pattern of line {}", same.line)));
            }
            rules.push(PatternRule { line, denies, pattern, counter: names.of_line(line) });
        }
        let line = |error: PatternSetError| match error {
            PatternSetError::BadLength(index) => rules.get(index).map(|rule| rule.line),
            _ => None,
        };
        let patterns: Vec<_> = rules.iter().map(|rule| &rule.pattern).collect();
        let patterns = PatternSet::new(&patterns)
            .map_err(|error| PatternRuleError { line: line(error), reason: error.to_string() })?;
        Ok(Self { patterns: Arc::new(patterns), rules })
    }

    /// Returns the patterns, in the order of the rules.
    #[must_use]
    pub const fn patterns(&self) -> &Arc<PatternSet> {
        &self.patterns
    }

    /// Calls `f` with the number of each rule's line and the name of its counter.
    pub fn for_each(&self, f: &mut dyn FnMut(usize, &'static str)) {
        self.rules.iter().for_each(|rule| f(rule.line, rule.counter));
    }

    /// Returns the number of rules.
    #[must_use]
    pub fn count(&self) -> usize {
        self.rules.len()
    }
}

/// Returns the bytes of a pattern with escapes.
fn unescape(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let Some((&escape, after)) = rest.split_first() else {
            return Err("ends with `\\`; write `\\\\` for a backslash".to_owned());
        };
        rest = after;
        bytes.push(match escape {
            b'\\' => b'\\',
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'x' => {
                let digits = rest.split_at_checked(2);
                let value = digits.and_then(|(digits, _)| hexadecimal(digits));
                rest = digits.map_or(rest, |(_, after)| after);
                value.ok_or("`\\x` needs two hexadecimal digits")?
            }
            _ => {
                let escape = char::from(escape);
                return Err(format!(
                    "unknown escape `\\{escape}`; expected \\\\, \\n, \\r, \\t or \\xNN"
                ));
            }
        });
    }
    Ok(bytes)
}

fn hexadecimal(digits: &[u8]) -> Option<u8> {
    let value = |digit: u8| char::from(digit).to_digit(16);
    let &[high, low] = digits else { return None };
    u8::try_from(value(high)? << 4 | value(low)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<PatternRules, PatternRuleError> {
        PatternRules::parse(text, &mut RuleCounterNames::default())
    }

    #[test]
    fn a_line_is_named_once() {
        let mut names = RuleCounterNames::default();
        let mut name = |text| PatternRules::parse(text, &mut names).unwrap().rules[0].counter;
        let first = name("\nevil");
        assert_eq!(first, "pattern_line_2_matches");
        assert!(core::ptr::eq(first, name("#\ncount:other")));
    }

    #[test]
    fn files_of_rules_are_read() {
        let text = "# comment\n\nevil\n  deny: a\\x20b\\\\ \r\ncount:\\x00\\xfF\\n\\r\\t\n";
        let rules = parse(text).unwrap();
        let about = |line, denies| (line, denies, format!("pattern_line_{line}_matches"));
        let parsed: Vec<_> =
            rules.rules.iter().map(|r| (r.line, r.denies, r.counter.to_owned())).collect();
        assert_eq!(parsed, [about(3, true), about(4, true), about(5, false)]);
        let mut found = Vec::new();
        let stream = b"evil a b\\ \x00\xff\n\r\t";
        rules.patterns.scan(rules.patterns.start(), stream, &mut |pattern, end| {
            found.push((pattern, end));
        });
        assert_eq!(found, [(0, 4), (1, 9), (2, 15)]);
    }

    #[test]
    fn invalid_lines_are_named() {
        let long = format!("x\n{}", "y".repeat(257));
        for (text, line, reason) in [
            ("", None, "no patterns"),
            ("# only\n", None, "no patterns"),
            ("a\ndeny:", Some(2), "a pattern must have 1 to 256 bytes"),
            (&long, Some(2), "a pattern must have 1 to 256 bytes"),
            ("a\n\ncount:a", Some(3), "repeats the pattern of line 1"),
            ("a\\", Some(1), "ends with `\\`; write `\\\\` for a backslash"),
            ("\\x4", Some(1), "`\\x` needs two hexadecimal digits"),
            ("\\xg0", Some(1), "`\\x` needs two hexadecimal digits"),
            ("\\q", Some(1), "unknown escape `\\q`; expected \\\\, \\n, \\r, \\t or \\xNN"),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error, PatternRuleError { line, reason: reason.to_owned() }, "{text:?}");
        }
        let many: String = (0..1025).map(|n| format!("p{n}\n")).collect();
        assert_eq!(parse(&many).unwrap_err().to_string(), "more than 1024 patterns");
    }
}
