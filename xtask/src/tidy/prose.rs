//! Phrases that comments and documents do not use: `docs/style.md`, section "English".
//!
//! Called by `tidy` for each Rust file and each Markdown file. Only phrases that a program can
//! recognize without mistakes are listed; code blocks of documents are not looked at.

use super::RustSource;
use crate::report::CheckReport;

/// A phrase and its replacement.
struct Phrase {
    /// In lower case; matched at word boundaries.
    text: &'static str,
    instead: &'static str,
}

const fn phrase(text: &'static str, instead: &'static str) -> Phrase {
    Phrase { text, instead }
}

const NOUN: &str = "name the thing: a noun instead of a bare clause";
const IF: &str = "\"if\" or \"when\"; \"where\" is for places";
const RETURNS: &str = "\"Returns\", \"returns\", \"releases\" or the verb that is meant";

const PHRASES: &[Phrase] = &[
    phrase("nobody", "say who: no client, no other thread"),
    phrase("whoever", "say who: the caller, the peer"),
    phrase("goes on", "\"continues\""),
    phrase("go on", "\"continue\""),
    phrase("going on", "\"continuing\", \"in progress\""),
    phrase("as far as", "\"up to\", \"as much as\", \"if\""),
    phrase("any more", "\"no longer\""),
    phrase("anymore", "\"no longer\""),
    phrase("so many", "a number, or \"N\""),
    phrase("so much", "a number, or \"this many\""),
    phrase("says whether", "\"Returns whether\", \"True if\""),
    phrase("to be had", "\"available\""),
    phrase("for ever", "\"forever\", \"without end\""),
    phrase("gives a", RETURNS),
    phrase("gives an", RETURNS),
    phrase("gives back", RETURNS),
    phrase("gives it", RETURNS),
    phrase("gives its", RETURNS),
    phrase("gives no", RETURNS),
    phrase("gives none", RETURNS),
    phrase("gives out", RETURNS),
    phrase("gives the", RETURNS),
    phrase("gives them", RETURNS),
    phrase("gives what", RETURNS),
    phrase("none where", "\"`None` if\""),
    phrase("where there", IF),
    phrase("where nothing", IF),
    phrase("where none", IF),
    phrase("where no", IF),
    phrase("where all", IF),
    phrase("where both", IF),
    phrase("where only", IF),
    phrase("what is", NOUN),
    phrase("what was", NOUN),
    phrase("what are", NOUN),
    phrase("what were", NOUN),
    phrase("what came", NOUN),
    phrase("what comes", NOUN),
    phrase("what has", NOUN),
    phrase("what had", NOUN),
    phrase("what cannot", NOUN),
    phrase("what may", NOUN),
    phrase("what must", NOUN),
    phrase("behaviour", "\"behavior\""),
    phrase("neighbour", "\"neighbor\""),
    phrase("neighbours", "\"neighbors\""),
    phrase("cancelled", "\"canceled\""),
    phrase("acknowledgement", "\"acknowledgment\""),
];

/// Checks the comments of one Rust file.
pub(crate) fn check(source: &RustSource, report: &mut CheckReport) {
    let code = source.code.lines().map(Some).chain(std::iter::repeat(None));
    for (index, (text, code)) in source.text.lines().zip(code).enumerate() {
        if let Some(comment) = comment(text, code.unwrap_or_default()) {
            line(&source.path, index + 1, comment, report);
        }
    }
}

/// Checks a document.
pub(crate) fn document(path: &str, text: &str, report: &mut CheckReport) {
    for (number, text) in crate::scan::prose_lines(text) {
        line(path, number, text, report);
    }
}

/// Returns the comment of a line. `code` is the line as [`crate::scan::mask`] leaves it: blank from
/// the comment's beginning on.
fn comment<'a>(text: &'a str, code: &str) -> Option<&'a str> {
    let from = code.trim_end().len();
    // Masking keeps columns in characters, not in bytes.
    let from = text.char_indices().nth(code[..from].chars().count()).map(|(at, _)| at)?;
    text[from..].find("//").map(|at| &text[from + at..])
}

fn line(path: &str, number: usize, text: &str, report: &mut CheckReport) {
    let text = without_code(text).to_lowercase();
    for phrase in PHRASES {
        if crate::scan::words(&text, phrase.text).next().is_some() {
            let message = format!("`{}` in a text: write {}", phrase.text, phrase.instead);
            report.error(path, number, message);
        }
    }
}

/// Blanks out code spans and quotations: they may name a phrase.
fn without_code(text: &str) -> String {
    let mut quote = None;
    text.chars()
        .map(|c| match (quote, c) {
            (None, '`' | '"') => {
                quote = Some(c);
                ' '
            }
            (Some(end), _) => {
                if c == end {
                    quote = None;
                }
                ' '
            }
            (None, _) => c,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(text: &str) -> Vec<usize> {
        let mut report = CheckReport::default();
        check(&RustSource::new("crates/x/src/a.rs", text.to_owned(), false), &mut report);
        report.errors.into_iter().map(|f| f.line).collect()
    }

    #[test]
    fn every_phrase_is_found_in_comments_and_only_there() {
        for phrase in PHRASES {
            let (lower, upper) = (phrase.text, phrase.text.to_uppercase());
            let text = format!("//! A {lower}.\nlet a = \"// {lower}\";\nlet b = 1; // {upper}\n");
            assert_eq!(hits(&text), [1, 3], "{}", phrase.text);
        }
    }

    #[test]
    fn longer_words_code_and_quotations_are_not_meant() {
        assert_eq!(hits("// everybody, \"nobody\" and `gives the`, forgives a\n"), [0; 0]);
    }

    #[test]
    fn blocks_of_code_in_documents_are_not_looked_at() {
        let mut report = CheckReport::default();
        document("a.md", "It gives none.\n```\nnobody\n```\nnobody\n", &mut report);
        assert_eq!(report.errors.iter().map(|f| f.line).collect::<Vec<_>>(), [1, 5]);
    }
}
