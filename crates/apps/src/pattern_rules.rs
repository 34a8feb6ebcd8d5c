//! Rules about byte patterns that clients send: some end the connection, others are only counted.
//!
//! [`PatternRules::parse`] reads the file of `--deny-patterns`. The content server and the proxy
//! own a `PatternInspection` each, and call it for every run of bytes before they use it. The
//! host inspects, or the device for it; both find the same.

use std::fmt;
use std::sync::Arc;

use base::Instant;
use patterns::{PatternSet, PatternSetError};

use crate::connections::Connections;

/// A rule about a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PatternRule {
    /// A match ends the connection.
    denies: bool,
    /// Line of the file that has the rule.
    line: usize,
    /// Name of the counter of its matches.
    counter: &'static str,
}

/// A set of rules.
#[derive(Debug)]
pub struct PatternRules {
    patterns: Arc<PatternSet>,
    rules: Vec<PatternRule>,
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
    ///
    /// The names of the counters, `pattern_line_N_matches`, are never freed: a program reads its
    /// rules once.
    ///
    /// # Errors
    /// [`PatternRuleError`]: a line is invalid, repeats another, or a limit of
    /// [`patterns`] is exceeded.
    pub fn parse(text: &str) -> Result<Self, PatternRuleError> {
        let (mut patterns, mut rules) = (Vec::<Vec<u8>>::new(), Vec::<PatternRule>::new());
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
            if let Some(same) = patterns.iter().position(|known| *known == pattern) {
                let first = rules.get(same).map_or(0, |rule| rule.line);
                return Err(fail(format!("repeats the pattern of line {first}")));
            }
            patterns.push(pattern);
            let counter = format!("pattern_line_{line}_matches").leak();
            rules.push(PatternRule { denies, line, counter });
        }
        let line = |error: PatternSetError| match error {
            PatternSetError::BadLength(index) => rules.get(index).map(|rule| rule.line),
            _ => None,
        };
        let patterns = PatternSet::new(&patterns)
            .map_err(|error| PatternRuleError { line: line(error), reason: error.to_string() })?;
        Ok(Self { patterns: Arc::new(patterns), rules })
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

/// Inspection of the connections of an application.
#[derive(Debug, Default)]
pub(crate) struct PatternInspection {
    rules: Option<Arc<PatternRules>>,
    /// Matches of each rule.
    matches: Vec<u64>,
}

impl PatternInspection {
    /// Creates the inspection for rules; without rules nothing is inspected.
    pub(crate) fn new(rules: Option<Arc<PatternRules>>) -> Self {
        let matches = vec![0; rules.as_ref().map_or(0, |rules| rules.count())];
        Self { rules, matches }
    }

    /// Returns whether connections are inspected.
    pub(crate) const fn is_active(&self) -> bool {
        self.rules.is_some()
    }

    /// Begins to inspect a connection that was just accepted.
    pub(crate) fn start<S: Connections>(&self, now: Instant, host: &mut S, id: S::Id) {
        if let Some(rules) = &self.rules {
            host.start_inspection(now, id, &rules.patterns);
        }
    }

    /// Inspects the bytes that can be read, and returns whether they may be used: no pattern of a
    /// denying rule ends in those that were not inspected before.
    pub(crate) fn admits<S: Connections>(&mut self, host: &mut S, id: S::Id) -> bool {
        let Some(rules) = &self.rules else { return true };
        let (mut admitted, matches) = (true, &mut self.matches);
        host.inspect(id, &mut |pattern| {
            let index = usize::from(pattern.pattern);
            if let (Some(rule), Some(matches)) = (rules.rules.get(index), matches.get_mut(index)) {
                *matches += 1;
                admitted &= !rule.denies;
            }
        });
        admitted
    }

    /// Calls `f` with the name and value of each rule's counter.
    pub(crate) fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        let rules = self.rules.iter().flat_map(|rules| &rules.rules);
        for (rule, &matches) in rules.zip(&self.matches) {
            f(rule.counter, matches);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_rules_are_read() {
        let text = "# comment\n\nevil\n  deny: a\\x20b\\\\ \r\ncount:\\x00\\xfF\\n\\r\\t\n";
        let rules = PatternRules::parse(text).unwrap();
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
            let error = PatternRules::parse(text).unwrap_err();
            assert_eq!(error, PatternRuleError { line, reason: reason.to_owned() }, "{text:?}");
        }
        let many: String = (0..1025).map(|n| format!("p{n}\n")).collect();
        assert_eq!(PatternRules::parse(&many).unwrap_err().to_string(), "more than 1024 patterns");
    }
}
