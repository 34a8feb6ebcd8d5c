//! Names of types: none is defined more than three times in product code, and some never.
//!
//! Called by `tidy` with all files at once. A reader finds a type by searching for its name; a name
//! with many definitions, or an everyday word, cannot be searched for (`docs/style.md`, section
//! "Names"). Types of tests are free to repeat each other's names, except the banned ones.

use std::collections::BTreeMap;

use super::RustSource;
use crate::report::CheckReport;
use crate::scan;

/// Definitions of one name that product code may have.
const DEFINITIONS_MAX: usize = 3;

/// Everyday words that say nothing about a type.
const BANNED: [&str; 5] = ["World", "Step", "End", "Way", "Place"];

/// Folders whose code users do not run.
const NOT_PRODUCT: [&str; 6] =
    ["crates/lab", "crates/sim", "crates/testkit", "fuzz", "interop", "xtask"];

const KEYWORDS: [&str; 4] = ["struct", "enum", "trait", "union"];

/// Checks all files of the tree.
pub(crate) fn check(sources: &[RustSource], report: &mut CheckReport) {
    let mut product: BTreeMap<&str, Vec<(&str, usize)>> = BTreeMap::new();
    for source in sources {
        for (name, line) in types(&source.code) {
            if BANNED.contains(&name) {
                let message = format!("`{name}` says nothing about a type: name what it is");
                report.error(&source.path, line, message);
            }
            if !NOT_PRODUCT.contains(&source.krate()) && !source.is_test(line) {
                product.entry(name).or_default().push((&source.path, line));
            }
        }
    }
    for (name, definitions) in product {
        if definitions.len() > DEFINITIONS_MAX {
            for (path, line) in &definitions {
                let message = format!(
                    "`{name}` is defined {} times: at most {DEFINITIONS_MAX}, so that a search \
                     finds it",
                    definitions.len()
                );
                report.error(path, *line, message);
            }
        }
    }
}

/// Names of the types that masked text defines, with their lines.
fn types(code: &str) -> impl Iterator<Item = (&str, usize)> {
    KEYWORDS.into_iter().flat_map(move |keyword| {
        scan::words(code, keyword).filter_map(move |at| {
            let rest = code[at + keyword.len()..].trim_start();
            let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
            let name = &rest[..length];
            name.starts_with(char::is_uppercase).then(|| (name, scan::line_of(code, at)))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<RustSource> = files
            .iter()
            .map(|(path, text)| RustSource::new(path, (*text).to_owned(), false))
            .collect();
        let mut report = CheckReport::default();
        check(&sources, &mut report);
        report.errors.into_iter().map(|f| format!("{}:{}", f.path, f.line)).collect()
    }

    #[test]
    fn the_fourth_definition_of_a_name_is_too_many() {
        let three = "struct A;\nmod b { enum A {} }\ntrait A {}\n";
        assert_eq!(errors(&[("crates/x/src/a.rs", three)]), [""; 0]);
        let test = "#[cfg(test)]\nmod t { struct A; }\n";
        assert_eq!(
            errors(&[
                ("crates/x/src/a.rs", three),
                ("crates/x/src/b.rs", test),
                ("crates/sim/src/a.rs", "struct A;\n")
            ]),
            [""; 0]
        );
        assert_eq!(
            errors(&[("crates/x/src/a.rs", three), ("crates/y/src/a.rs", "pub struct A<T>(T);\n")])
                .len(),
            4
        );
    }

    #[test]
    fn banned_names_are_found_in_tests_too() {
        assert_eq!(
            errors(&[("interop/tests/a.rs", "struct Worldly;\nstruct World {}\n")]),
            ["interop/tests/a.rs:2"]
        );
    }
}
