//! Finds the code of each fault, and inserts the faulty code behind a switch.
//!
//! Used by `mutants` and by the check that all faults still apply. All faults are in one tree, so
//! that the simulator and each test are built only once. The marked code becomes
//! `if planted::fault(N) { faulty } else { code }`. Several faults may replace the same code, but
//! must not overlap.

use std::ops::Range;

use super::list::PlantedFault;
use super::tokens::{self, Token};
use crate::tidy::RustSource;

/// Location of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FaultAnchor {
    /// File, relative to the repository's root.
    pub(crate) path: String,
    /// Byte range that is replaced.
    pub(crate) at: Range<usize>,
}

/// A source file and its tokens, computed once for all faults.
#[derive(Debug)]
pub(crate) struct TokenizedSource<'a> {
    source: &'a RustSource,
    tokens: Vec<Token<'a>>,
}

impl<'a> TokenizedSource<'a> {
    /// Tokenizes all sources that may contain faults.
    pub(crate) fn all(sources: &'a [RustSource]) -> Vec<Self> {
        let is_shipped = |source: &&RustSource| source.path.contains("/src/");
        let split = |source: &'a RustSource| Self { source, tokens: tokens::tokens(&source.text) };
        sources.iter().filter(is_shipped).map(split).collect()
    }
}

/// Finds the code of a fault.
///
/// # Errors
/// Reports code that does not occur exactly once.
pub(crate) fn locate(
    fault: &PlantedFault,
    files: &[TokenizedSource<'_>],
) -> Result<FaultAnchor, String> {
    let folder = format!("crates/{}/src/", fault.krate);
    let (wanted, marked) = marked(&fault.code)?;
    let mut found = Vec::new();
    for file in files.iter().filter(|file| file.source.path.starts_with(&folder)) {
        for first in tokens::find(&file.tokens, &wanted) {
            let start = file.tokens[first + marked.start].at.start;
            let end = file.tokens[first + marked.end - 1].at.end;
            if !file.source.is_test(crate::scan::line_of(&file.source.text, start)) {
                found.push(FaultAnchor { path: file.source.path.clone(), at: start..end });
            }
        }
    }
    match found.as_slice() {
        [anchor] => Ok(anchor.clone()),
        [] => Err(format!("code is not in {folder}; adapt the fault to the changed code")),
        [first, second, ..] => {
            let count = found.len();
            Err(format!(
                "code occurs {count} times in {folder}, in {} and {}; include more \
                 around it",
                first.path, second.path
            ))
        }
    }
}

/// Returns the tokens of a fault's code, and the range of those that are marked.
fn marked(code: &str) -> Result<(Vec<&str>, Range<usize>), String> {
    let mut wanted: Vec<&str> = tokens::tokens(code).into_iter().map(|t| t.text).collect();
    let mut cut = |mark: &str| {
        let at = wanted.iter().position(|token| *token == mark)?;
        wanted.remove(at);
        Some(at)
    };
    let range = match (cut("«"), cut("»")) {
        (Some(start), Some(end)) => start..end,
        (None, None) => 0..wanted.len(),
        _ => return Err("only one of `«` and `»` in the code".to_owned()),
    };
    if range.is_empty() || wanted.iter().any(|token| matches!(*token, "«" | "»")) {
        return Err("the code must mark exactly one part, not empty".to_owned());
    }
    Ok((wanted, range))
}

/// Inserts all faults of one file into its text. Each fault is switched on by its number.
///
/// # Errors
/// Reports two faults that overlap.
pub(crate) fn plant(text: &str, faults: &[(usize, Range<usize>, &str)]) -> Result<String, String> {
    let mut faults = faults.to_vec();
    faults.sort_by_key(|(number, at, _)| (at.start, at.end, *number));
    let mut planted = String::with_capacity(text.len());
    let mut done = 0;
    for group in faults.chunk_by(|a, b| a.1 == b.1) {
        let at = &group[0].1;
        let code = &text[at.clone()];
        if at.start < done {
            return Err(format!("two faults overlap at `{code}`"));
        }
        planted.push_str(&text[done..at.start]);
        planted.push_str(&switched(code, group));
        done = at.end;
    }
    planted.push_str(&text[done..]);
    Ok(remove_const(&planted))
}

/// Returns one `if` for all faults that replace the same code.
fn switched(code: &str, faults: &[(usize, Range<usize>, &str)]) -> String {
    let mut text = String::new();
    for (number, _, faulty) in faults {
        text.push_str(&format!("if ::planted::fault({number}) {{ {} }} else ", faulty.trim()));
    }
    text.push_str(&format!("{{ {code} }}"));
    // Statements remain statements; an expression may be part of a larger one.
    if code.ends_with([';', '}']) { text } else { format!("({text})") }
}

/// Removes `const` from functions with a fault, because the switch is read at run time.
fn remove_const(text: &str) -> String {
    let found = tokens::tokens(text);
    let mut blank = Vec::new();
    let mut function = None;
    for (at, token) in found.iter().enumerate() {
        match token.text {
            "fn" => function = Some(at),
            "planted" => {
                let before = function.and_then(|at| found.get(at.checked_sub(1)?));
                blank.extend(before.filter(|token| token.text == "const").map(|t| t.at.clone()));
            }
            _ => {}
        }
    }
    blank.dedup();
    let mut text = text.to_owned();
    for at in blank {
        text.replace_range(at, "     ");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(code: &str) -> PlantedFault {
        PlantedFault {
            name: "n".into(),
            what: "w".into(),
            krate: "a".into(),
            code: code.into(),
            faulty: "0".into(),
            test: None,
            area: "x".into(),
            listed_in: "f.toml".into(),
        }
    }

    fn locate_in(code: &str, texts: &[(&str, &str)]) -> Result<FaultAnchor, String> {
        let sources: Vec<RustSource> = texts
            .iter()
            .map(|(path, text)| RustSource::new(path, (*text).to_owned(), false))
            .collect();
        locate(&fault(code), &TokenizedSource::all(&sources))
    }

    #[test]
    fn code_is_found_in_any_file_of_the_crate_and_in_any_layout() {
        let other = ("crates/b/src/lib.rs", "fn f() { g(1, x) }");
        let text = "fn f() {\n    g(\n        1, // why\n        x,\n    );\n}";
        let anchor = locate_in("g(1, «x»)", &[other, ("crates/a/src/m/n.rs", text)]).unwrap();
        assert_eq!((anchor.path.as_str(), &text[anchor.at]), ("crates/a/src/m/n.rs", "x"));
        let anchor = locate_in("g(1, x);", &[("crates/a/src/lib.rs", text)]).unwrap();
        assert!(text[anchor.at].starts_with("g(\n") && text.contains("x,\n    );"));
    }

    #[test]
    fn code_must_be_there_once() {
        let twice = [("crates/a/src/lib.rs", "fn f() { g(x) }\nfn h() { g(x) }")];
        assert!(locate_in("g(x)", &twice).unwrap_err().contains("2 times"));
        assert!(locate_in("g(y)", &twice).unwrap_err().contains("is not in"));
        assert!(locate_in("fn h() { g(«x») }", &twice).is_ok());
        let tested = "fn f() { g(x) }\n#[cfg(test)]\nmod tests {\n    fn h() { g(x) }\n}\n";
        assert!(locate_in("g(x)", &[("crates/a/src/lib.rs", tested)]).is_ok());
    }

    #[test]
    fn marks_are_a_pair() {
        let text = [("crates/a/src/lib.rs", "fn f() { g(x) }")];
        for code in ["g(«x)", "g(x»)", "g(«»x)", "«g»(«x»)", "»g«"] {
            assert!(locate_in(code, &text).is_err(), "{code}");
        }
    }

    #[test]
    fn faults_become_branches() {
        let text = "fn f() { g(x); h() }";
        let planted = plant(text, &[(3, 15..18, "k()"), (0, 9..14, ""), (1, 9..14, "g(2);")]);
        assert_eq!(
            planted.unwrap(),
            "fn f() { if ::planted::fault(0) {  } else if ::planted::fault(1) { g(2); } \
             else { g(x); } (if ::planted::fault(3) { k() } else { h() }) }"
        );
        assert!(plant(text, &[(0, 9..14, ""), (1, 11..12, "y")]).is_err());
    }

    #[test]
    fn a_function_with_a_fault_is_not_const() {
        let text = "const fn f() -> u8 { 1 }\npub(crate) const fn g() -> u8 { 2 }";
        let at = text.find('2').unwrap();
        let planted = plant(text, &[(0, at..at + 1, "3")]).unwrap();
        assert!(planted.starts_with("const fn f()") && planted.contains("pub(crate)       fn g()"));
    }
}
