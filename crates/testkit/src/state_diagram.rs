//! Diagrams of transition tables, for tests that keep the documents up to date.
//!
//! A table is a function from a state and an event to the next state, or `None` if the event cannot
//! happen in that state. The document contains the diagram, so a change of the table has to be made
//! in the document, too.

use core::fmt::Debug;

/// Draws a table as a Mermaid state diagram, with states and events in the given order.
///
/// # Panics
/// If a transition leads to a state that is not listed.
pub fn mermaid_diagram<S, E>(
    states: &[(S, &str)],
    events: &[(E, &str)],
    next: impl Fn(S, E) -> Option<S>,
) -> String
where
    S: Copy + Debug + PartialEq,
    E: Copy,
{
    let mut out = String::from("stateDiagram-v2\n");
    for &(from, name) in states {
        for &(event, label) in events {
            let Some(to) = next(from, event) else { continue };
            let found = states.iter().find(|(state, _)| *state == to);
            let Some((_, to)) = found else { panic!("{to:?} is not listed") };
            out.push_str(&format!("    {name} --> {to}: {label}\n"));
        }
    }
    out
}

/// Asserts that the documents contain a diagram.
///
/// # Panics
/// If it does not.
pub fn assert_documented(diagram: &str) {
    let pages =
        [include_str!("../../../docs/tcp.md"), include_str!("../../../docs/engines/tls-states.md")];
    let is_there = pages.iter().any(|page| page.contains(diagram));
    assert!(is_there, "docs/tcp.md or docs/engines/tls-states.md has to have this:\n{diagram}");
}
