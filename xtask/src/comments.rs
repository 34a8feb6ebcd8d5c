//! Draws comments of a crate at random, to be read against the code below them.
//!
//! Called by `main`. The same seed draws the same comments of the same tree, so a review can be
//! repeated. A comment is a run of lines of one kind (`//`, `///` or `//!`); comments of tests are
//! left out. Nothing is judged here: whether a comment is true, needed and clear is for the reader.

use std::process::ExitCode;

use base::Prng;

use crate::{scan, tree};

/// Lines of code shown after each comment.
const CODE_LINES: usize = 8;

/// A comment of the tree.
struct Comment {
    path: String,
    /// Lines of the comment, counted from zero.
    lines: std::ops::Range<usize>,
}

/// Prints `count` comments of the crate in a folder below `crates`, drawn with a seed.
///
/// Arguments: `CRATE COUNT SEED`.
///
/// # Errors
/// Reports wrong arguments, a crate that does not exist, and a tree that cannot be read.
pub(crate) fn run(args: &[&str]) -> Result<ExitCode, String> {
    let [name, count, seed] = args else { return Err("expected CRATE COUNT SEED".to_owned()) };
    let number =
        |text: &str| text.parse::<u64>().map_err(|e| format!("invalid number {text}: {e}"));
    let (count, mut prng) = (number(count)?, Prng::new(number(seed)?));
    let folder = format!("crates/{name}/src/");
    let mut comments = Vec::new();
    for path in tree::files()?.into_iter().filter(|path| path.starts_with(&folder)) {
        let is_test = path.split('/').any(|part| part.starts_with("tests"));
        if path.ends_with(".rs") && !is_test {
            comments.extend(find_comments(&path, &tree::read(&path)?));
        }
    }
    if comments.is_empty() {
        return Err(format!("no comments found in {folder}"));
    }
    println!("{} comments in {folder}", comments.len());
    for drawn in 1..=count.min(comments.len() as u64) {
        let index = usize::try_from(prng.next_u64() % comments.len() as u64);
        let comment = comments.swap_remove(index.unwrap_or_default());
        println!("\n{drawn}. {}:{}", comment.path, comment.lines.start + 1);
        let text = tree::read(&comment.path)?;
        let shown = comment.lines.len() + CODE_LINES;
        text.lines().skip(comment.lines.start).take(shown).for_each(|line| println!("    {line}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the comments of a file outside its tests.
fn find_comments(path: &str, text: &str) -> Vec<Comment> {
    let tests = scan::test_lines(&scan::mask(text));
    let mut comments: Vec<(&str, Comment)> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let kind = ["//!", "///", "//"].into_iter().find(|kind| line.starts_with(kind));
        let is_test = tests.get(index).is_some_and(|test| *test);
        let Some(kind) = kind.filter(|_| !is_test) else { continue };
        match comments.last_mut() {
            Some((last, comment)) if *last == kind && comment.lines.end == index => {
                comment.lines.end = index + 1;
            }
            _ => {
                let comment = Comment { path: path.to_owned(), lines: index..index + 1 };
                comments.push((kind, comment));
            }
        }
    }
    comments.into_iter().map(|(_, comment)| comment).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_runs_of_one_kind_outside_tests() {
        let text = "//! A\n//! B\n\n/// C\nfn f() {\n    // D\n    g(); // E\n}\n\
                    #[cfg(test)]\nmod tests {\n    // F\n}\n";
        let found: Vec<_> = find_comments("a.rs", text).into_iter().map(|c| c.lines).collect();
        assert_eq!(found, [0..2, 3..4, 5..6]);
    }
}
