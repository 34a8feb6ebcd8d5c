//! Requests with patterns that rules deny or count.

use std::sync::Arc;

use super::*;
use crate::pattern_rules::{PatternRules, RuleCounterNames};

fn bed() -> ContentTestBed {
    let rules =
        PatternRules::parse("evil\ncount:Host\ncount:Forbidden", &mut RuleCounterNames::default())
            .expect("valid");
    ContentTestBed::with(ContentServerConfig {
        pattern_rules: Some(Arc::new(rules)),
        ..ContentServerConfig::default()
    })
}

fn matches(bed: &ContentTestBed) -> Vec<(&'static str, u64)> {
    let mut matches = Vec::new();
    bed.server.responder.inspection.visit(&mut |name, value| {
        if name.starts_with("pattern_line_") {
            matches.push((name, value));
        }
    });
    matches
}

/// The pattern lies in a head or in content, which is never parsed.
#[test]
fn a_denied_pattern_is_answered_with_403_at_any_cut() {
    let post = "POST /a.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nxxevilxxx".to_owned();
    for (text, hosts) in [(get("/evil"), 0), (post, 1)] {
        for cut in 0..=text.len() {
            let mut bed = bed();
            let id = bed.accept();
            bed.receive(id, &text[..cut]);
            bed.receive(id, &text[cut..]);
            let sent = bed.sent(id);
            assert_eq!(statuses(&sent), [403], "cut at {cut}");
            assert!(sent.contains("Connection: close\r\n"), "{sent}");
            assert!(bed.is_shut(id));
            assert_eq!((bed.counter("http_denied"), bed.counter("http_403")), (1, 1));
            let found = matches(&bed);
            assert_eq!(found[0], ("pattern_line_1_matches", 1), "cut at {cut}");
            assert!(found[1].1 >= hosts, "cut at {cut}");
        }
    }
}

#[test]
fn counted_patterns_change_nothing() {
    let mut bed = bed();
    let id = bed.accept();
    let text = get("/a.txt");
    let (first, second) = text.split_at(text.find("ost").expect("a field"));
    bed.receive(id, first);
    bed.receive(id, second);
    bed.finish_opens();
    bed.receive(id, &text);
    bed.finish_opens();
    assert_eq!(statuses(&bed.sent(id)), [200, 200]);
    let expected = [
        ("pattern_line_1_matches", 0),
        ("pattern_line_2_matches", 2),
        ("pattern_line_3_matches", 0),
    ];
    assert_eq!(matches(&bed), expected);
    assert_eq!(bed.counter("http_denied"), 0);
}
