//! Rust source as tokens, so that code is found after it was reformatted or moved.
//!
//! Used by `plant`. White space and comments are not tokens, and neither is the comma that rustfmt
//! writes before a closing bracket when it breaks a line. No grammar is applied: operators are
//! single characters.

use std::ops::Range;

use crate::scan;

/// A token and its byte range in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    /// Source text of the token.
    pub(crate) text: &'a str,
    /// Byte range.
    pub(crate) at: Range<usize>,
}

/// Splits `text` into tokens.
pub(crate) fn tokens(text: &str) -> Vec<Token<'_>> {
    let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let masked: Vec<char> = scan::mask(text).chars().collect();
    let mut found: Vec<Token<'_>> = Vec::new();
    let mut next = 0;
    while let Some(&c) = masked.get(next) {
        let length = length(&masked[next..]);
        if !c.is_whitespace() {
            let at = starts[next]..starts[next + length];
            let token = Token { text: &text[at.clone()], at };
            let closes = matches!(token.text, ")" | "]" | "}");
            if closes && found.last().is_some_and(|before| before.text == ",") {
                found.pop();
            }
            found.push(token);
        }
        next += length;
    }
    found
}

/// Returns the length in characters of the token at the start of `masked`.
fn length(masked: &[char]) -> usize {
    let is_word = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
    // The content of a literal is blank in masked text; the apostrophe of a lifetime is followed by
    // its name.
    let is_literal = masked[0] == '"' || masked[0] == '\'' && masked.get(1) == Some(&' ');
    if is_literal {
        let end = masked[1..].iter().position(|c| *c == masked[0]);
        return end.map_or(masked.len(), |end| end + 2);
    }
    masked.iter().take_while(|c| is_word(c)).count().max(1)
}

/// Returns the index of the first token of each occurrence of `wanted` in `text`.
pub(crate) fn find(text: &[Token<'_>], wanted: &[&str]) -> Vec<usize> {
    let is_here = |at: &usize| {
        let here = &text[*at..*at + wanted.len()];
        here.iter().zip(wanted).all(|(token, wanted)| token.text == *wanted)
    };
    let last = (text.len() + 1).saturating_sub(wanted.len());
    (0..last).filter(is_here).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<&str> {
        tokens(text).into_iter().map(|token| token.text).collect()
    }

    #[test]
    fn layout_and_comments_do_not_count() {
        let broken = "let a_1 = f(\n    x, // why\n    &y[0],\n);";
        assert_eq!(texts(broken), texts("let a_1 = f(x, &y[0]);"));
        assert_eq!(texts("a/* b */+ c"), ["a", "+", "c"]);
    }

    #[test]
    fn literals_are_one_token_with_their_content() {
        assert_eq!(
            texts("f(\"a b\", 'c', '\\'')"),
            ["f", "(", "\"a b\"", ",", "'c'", ",", "'\\''", ")"]
        );
        assert_eq!(texts("&'a str"), ["&", "'", "a", "str"]);
        assert_ne!(texts("\"a b\""), texts("\"a  b\""));
    }

    #[test]
    fn places_are_bytes_of_the_text() {
        let text = "\"ü\" + é(1)";
        let found = tokens(text);
        assert!(found.iter().all(|token| &text[token.at.clone()] == token.text));
        assert_eq!(found[0].text, "\"ü\"");
    }

    #[test]
    fn every_occurrence_is_found() {
        let text = tokens("a.b(c); a.b(d); a.b");
        assert_eq!(find(&text, &["a", ".", "b", "("]), [0, 7]);
        assert_eq!(find(&text, &["a", ".", "b"]).len(), 3);
        assert_eq!(find(&text, &["x"]), [0; 0]);
        assert_eq!(find(&tokens("a"), &["a", "b"]), [0; 0]);
    }
}
