//! A scanner for Rust source that knows comments, literals and braces only.
//!
//! [`mask`] blanks out comments and the contents of literals without moving anything, so that
//! checks can search plain text. [`functions`] and [`test_lines`] match braces in masked text.
//! Macros are not expanded: generated code is checked in the macro's definition.

use std::ops::Range;

/// A function with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// Its name.
    pub(crate) name: String,
    /// Line of the `fn`, counted from 1.
    pub(crate) line: usize,
    /// Number of lines from `fn` to the closing brace, inclusive.
    pub(crate) lines: usize,
}

/// Returns the lines of a Markdown document outside code blocks, numbered from 1.
pub(crate) fn prose_lines(text: &str) -> Vec<(usize, &str)> {
    let mut in_block = false;
    let is_prose = |(_, line): &(usize, &str)| {
        let is_fence = line.trim_start().starts_with("```");
        in_block ^= is_fence;
        !in_block && !is_fence
    };
    (1..).zip(text.lines()).filter(is_prose).collect()
}

/// Returns `text` with comments and the contents of string and character literals replaced by
/// spaces. Lines and columns (in characters) do not change.
pub(crate) fn mask(text: &str) -> String {
    Masker { chars: text.chars().collect(), at: 0, out: String::with_capacity(text.len()) }.run()
}

/// Returns all functions with bodies in masked text, nested ones included, in order of their
/// starts.
pub(crate) fn functions(code: &str) -> Vec<Function> {
    let mut found = Vec::new();
    for at in words(code, "fn") {
        let rest = &code[at + 2..];
        let name: String =
            rest.trim_start().chars().take_while(|&c| is_word(c) || c == '#').collect();
        // The type of a function pointer has no name.
        if name.is_empty() || !rest.starts_with(char::is_whitespace) {
            continue;
        }
        if let ItemEnd::Brace(end) = item_end(code, at) {
            let line = line_of(code, at);
            found.push(Function { name, line, lines: line_of(code, end) - line + 1 });
        }
    }
    found
}

/// Returns, for each line of masked text, whether it belongs to an item that is compiled for tests
/// only.
pub(crate) fn test_lines(code: &str) -> Vec<bool> {
    let mut test = vec![false; code.lines().count()];
    for (at, _) in code.match_indices("cfg(") {
        let before = code[..at].trim_end();
        let inner = before.ends_with("#![");
        if !inner && !before.ends_with("#[") || !is_test_predicate(parenthesized(&code[at + 3..])) {
            continue;
        }
        let (first, last) = if inner {
            (1, test.len())
        } else {
            let end = match item_end(code, at + 4) {
                ItemEnd::Brace(end) | ItemEnd::Semicolon(end) => end,
                ItemEnd::None => code.len(),
            };
            (line_of(code, at), line_of(code, end))
        };
        for line in test.iter_mut().take(last).skip(first - 1) {
            *line = true;
        }
    }
    test
}

/// Returns the names of modules that are compiled for tests only and have files of their own
/// (`#[cfg(test)] mod name;`).
pub(crate) fn test_modules(code: &str) -> Vec<String> {
    let test = test_lines(code);
    words(code, "mod")
        .filter(|&at| test.get(line_of(code, at) - 1) == Some(&true))
        .filter_map(|at| {
            let rest = code[at + 3..].trim_start();
            let name: String = rest.chars().take_while(|&c| is_word(c)).collect();
            rest[name.len()..].trim_start().starts_with(';').then_some(name)
        })
        .collect()
}

/// Returns modules with bodies in masked text, by name and byte range, outer ones first.
pub(crate) fn inline_modules(code: &str) -> Vec<(String, Range<usize>)> {
    let body = |at: usize| {
        let rest = code[at + 3..].trim_start();
        let name: String = rest.chars().take_while(|&c| is_word(c)).collect();
        if name.is_empty() || !rest[name.len()..].trim_start().starts_with('{') {
            return None;
        }
        match item_end(code, at) {
            ItemEnd::Brace(end) => Some((name, at..end)),
            ItemEnd::Semicolon(_) | ItemEnd::None => None,
        }
    };
    words(code, "mod").filter_map(body).collect()
}

/// Returns the positions of `pattern` in `code` that are not part of a longer word.
pub(crate) fn words<'a>(code: &'a str, pattern: &'a str) -> impl Iterator<Item = usize> + 'a {
    let head_is_word = pattern.starts_with(is_word);
    let tail_is_word = pattern.ends_with(is_word);
    code.match_indices(pattern).map(|(at, _)| at).filter(move |&at| {
        let before = code[..at].chars().next_back();
        let after = code[at + pattern.len()..].chars().next();
        // With an apostrophe before it, `'static mut` is a lifetime and not a mutable static.
        let longer_before = head_is_word && before.is_some_and(|c| is_word(c) || c == '\'');
        let longer_after = tail_is_word && after.is_some_and(is_word);
        !longer_before && !longer_after
    })
}

/// Returns the line of byte `at`, counted from 1.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

const fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Returns `(..)` at the start of `code`, with its parentheses.
fn parenthesized(code: &str) -> &str {
    let mut depth = 0_usize;
    for (at, c) in code.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return &code[..=at];
        }
    }
    code
}

fn is_test_predicate(predicate: &str) -> bool {
    words(predicate, "test").any(|at| !predicate[..at].trim_end().ends_with("not("))
}

enum ItemEnd {
    Brace(usize),
    Semicolon(usize),
    None,
}

/// Finds the end of the item that begins at `from`: the brace that closes its first one, or a
/// semicolon before any brace.
fn item_end(code: &str, from: usize) -> ItemEnd {
    let mut braces = 0_usize;
    let mut nested = 0_usize;
    for (offset, c) in code[from..].char_indices() {
        match c {
            '(' | '[' => nested += 1,
            ')' | ']' => nested = nested.saturating_sub(1),
            ';' if braces == 0 && nested == 0 => return ItemEnd::Semicolon(from + offset),
            '{' => braces += 1,
            '}' => {
                braces = braces.saturating_sub(1);
                if braces == 0 {
                    return ItemEnd::Brace(from + offset);
                }
            }
            _ => {}
        }
    }
    ItemEnd::None
}

struct Masker {
    chars: Vec<char>,
    at: usize,
    out: String,
}

impl Masker {
    fn run(mut self) -> String {
        while let Some(c) = self.peek(0) {
            match (c, self.peek(1)) {
                ('/', Some('/')) => self.line_comment(),
                ('/', Some('*')) => self.block_comment(),
                ('"', _) => self.string(),
                ('\'', _) => self.quote(),
                _ if is_word(c) => self.word(),
                _ => self.keep(1),
            }
        }
        self.out
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn keep(&mut self, count: usize) {
        let end = (self.at + count).min(self.chars.len());
        self.out.extend(&self.chars[self.at..end]);
        self.at = end;
    }

    fn blank(&mut self, count: usize) {
        for _ in 0..count {
            if let Some(c) = self.peek(0) {
                self.out.push(if c == '\n' { '\n' } else { ' ' });
                self.at += 1;
            }
        }
    }

    fn line_comment(&mut self) {
        while self.peek(0).is_some_and(|c| c != '\n') {
            self.blank(1);
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0_usize;
        while self.peek(0).is_some() {
            match (self.peek(0), self.peek(1)) {
                (Some('/'), Some('*')) => {
                    depth += 1;
                    self.blank(2);
                }
                (Some('*'), Some('/')) => {
                    depth -= 1;
                    self.blank(2);
                    if depth == 0 {
                        return;
                    }
                }
                _ => self.blank(1),
            }
        }
    }

    fn string(&mut self) {
        self.keep(1);
        self.escaped_until('"');
    }

    /// Handles a character literal, or the apostrophe of a lifetime or label.
    fn quote(&mut self) {
        self.keep(1);
        if self.peek(0) == Some('\\') || self.peek(1) == Some('\'') {
            self.escaped_until('\'');
        } else {
            while self.peek(0).is_some_and(is_word) {
                self.keep(1);
            }
        }
    }

    fn escaped_until(&mut self, end: char) {
        while let Some(c) = self.peek(0) {
            match c {
                '\\' => self.blank(2),
                _ if c == end => return self.keep(1),
                _ => self.blank(1),
            }
        }
    }

    fn word(&mut self) {
        let start = self.at;
        while self.peek(0).is_some_and(is_word) {
            self.keep(1);
        }
        let word: String = self.chars[start..self.at].iter().collect();
        if matches!(word.as_str(), "r" | "br" | "cr") {
            let hashes = (0..).take_while(|&i| self.peek(i) == Some('#')).count();
            if self.peek(hashes) == Some('"') {
                self.raw_string(hashes);
            }
        }
    }

    fn raw_string(&mut self, hashes: usize) {
        self.keep(hashes + 1);
        while let Some(c) = self.peek(0) {
            if c == '"' && (1..=hashes).all(|i| self.peek(i) == Some('#')) {
                return self.keep(hashes + 1);
            }
            self.blank(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_comments_and_literals_in_place() {
        assert_eq!(mask("a // {\nb"), "a     \nb");
        assert_eq!(mask("a /* { /* } */ */ b"), "a                 b");
        assert_eq!(mask(r#"f("}\"{", 1)"#), r#"f("    ", 1)"#);
        assert_eq!(mask(r##"r#"a"}"# + b"{""##), r##"r#"   "# + b" ""##);
        assert_eq!(mask("c'{' '\\'' '\\u{1}' b'}'"), "c' ' '  ' '     ' b' '");
        assert_eq!(
            mask("fn f<'a>(x: &'a str) { 'l: loop {} }"),
            "fn f<'a>(x: &'a str) { 'l: loop {} }"
        );
        assert_eq!(mask("\"two\nlines\""), "\"   \n     \"");
        assert_eq!(mask("let r#fn = for_r; r\"x\""), "let r#fn = for_r; r\" \"");
        assert_eq!(mask("\"ü{\" x").chars().count(), 6);
        // An unclosed literal or comment extends to the end.
        assert_eq!(mask("\"abc"), "\"   ");
        assert_eq!(mask("/* abc"), "      ");
    }

    #[test]
    fn finds_functions_and_their_lengths() {
        let code = mask(
            "fn a() {}
impl T {
  pub const fn b<F: Fn(u8)>(f: F) -> [u8; 3]
  where F: X {
    // }
    fn inner() { '}'; }
  }
}
trait Q { fn c(&self); }
type P = fn(u8) -> u8;
",
        );
        let got: Vec<_> = functions(&code).into_iter().map(|f| (f.name, f.line, f.lines)).collect();
        assert_eq!(
            got,
            [("a".to_owned(), 1, 1), ("b".to_owned(), 3, 5), ("inner".to_owned(), 6, 1)]
        );
    }

    #[test]
    fn knows_which_lines_are_for_tests() {
        let of = |text: &str| test_lines(&mask(text));
        assert_eq!(of("a\n#[cfg(test)]\nmod tests {\n}\nb"), [false, true, true, true, false]);
        assert_eq!(of("#[cfg(all(test, loom))]\nmod t {\n}\nb"), [true, true, true, false]);
        assert_eq!(of("#[cfg(not(test))]\nmod t {\n}"), [false; 3]);
        assert_eq!(of("#[cfg(latest)]\nfn f() {\n}"), [false; 3]);
        assert_eq!(of("#![cfg(test)]\nfn f() {\n}"), [true; 3]);
        assert_eq!(of("#[cfg(test)]\nuse a::{b, c};\nd"), [true, true, false]);
        assert_eq!(of("#[cfg(test)]\nmod t;\nfn f() {\n}"), [true, true, false, false]);
        assert_eq!(of("// #[cfg(test)]\nfn f() {}"), [false, false]);
    }

    #[test]
    fn knows_modules_for_tests_in_other_files() {
        let code = mask("#[cfg(test)]\nmod tests;\nmod a;\n#[cfg(all(test, loom))]\nmod model;\n");
        assert_eq!(test_modules(&code), ["tests", "model"]);
    }

    #[test]
    fn finds_modules_with_bodies() {
        let code = mask("mod a;\nmod b { mod c {} }\n// mod d {}\nlet model = 1;");
        let names: Vec<_> =
            inline_modules(&code).into_iter().map(|(name, at)| (name, code[at].len())).collect();
        assert_eq!(names, [("b".to_owned(), 17), ("c".to_owned(), 7)]);
    }

    #[test]
    fn words_have_borders() {
        assert_eq!(words("unsafe unsafe_code my_unsafe", "unsafe").collect::<Vec<_>>(), [0]);
        assert_eq!(words("&'static mut x; static mut Y", "static mut").collect::<Vec<_>>(), [16]);
        assert_eq!(words("a.todo!() (todo!(", "todo!(").count(), 2);
    }
}
