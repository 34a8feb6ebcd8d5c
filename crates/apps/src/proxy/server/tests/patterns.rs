//! Clients that send patterns which rules deny or count.

use std::sync::Arc;

use super::*;
use crate::pattern_rules::{PatternRules, RuleCounterNames};

fn bed(mode: ProxyMode) -> ProxyTestBed {
    let rules =
        PatternRules::parse("evil\ncount:body", &mut RuleCounterNames::default()).expect("valid");
    let config = ProxyConfig { pattern_rules: Some(Arc::new(rules)), ..ProxyConfig::default() };
    ProxyTestBed::with(config, table(mode, 1))
}

fn matches(bed: &ProxyTestBed) -> Vec<u64> {
    let mut matches = Vec::new();
    bed.server.shared.inspection.visit(&mut |name, value| {
        if name.starts_with("pattern_line_") {
            matches.push(value);
        }
    });
    matches
}

fn counter(bed: &ProxyTestBed, name: &str) -> u64 {
    let all = base::counters::collect_counters(|f| bed.server.shared.counters.visit(f));
    all.iter().find(|(known, _)| *known == name).expect("a counter").1
}

#[test]
fn a_denied_head_is_answered_with_403_at_any_cut() {
    let text = "GET /evil HTTP/1.1\r\nHost: a\r\n\r\n";
    for cut in 0..=text.len() {
        let mut bed = bed(ProxyMode::Http);
        let client = bed.accept();
        bed.receive(client, &text[..cut]);
        bed.receive(client, &text[cut..]);
        assert_answered(&mut bed, client, "403");
        assert_eq!(matches(&bed), [1, 0], "cut at {cut}");
        assert_eq!((counter(&bed, "proxy_denied"), counter(&bed, "proxy_403")), (1, 1));
        assert_eq!(counter(&bed, "proxy_connects"), 0, "no backend learns of it");
    }
}

#[test]
fn denied_content_is_answered_before_the_response_and_reset_after_it() {
    for responded in [false, true] {
        let mut bed = bed(ProxyMode::Http);
        let client = bed.accept();
        bed.receive(client, format!("{GET}body ev"));
        let backend = bed.establish();
        assert!(bed.text(backend).ends_with("body ev"), "relayed by the host, without a splice");
        if responded {
            bed.receive(backend, "HTTP/1.1 200 OK\r\n\r\n");
            assert_eq!(status(&bed.text(client)), "200");
        }
        bed.receive(client, "il and more");
        assert_eq!(bed.text(backend), "", "nothing that contains the end of the pattern");
        assert!(bed.is_aborted(backend));
        if responded {
            assert!(bed.is_aborted(client));
            bed.assert_empty();
        } else {
            assert_answered(&mut bed, client, "403");
        }
        assert_eq!(matches(&bed), [1, 1]);
    }
}

#[test]
fn in_tcp_mode_both_sides_are_reset() {
    let mut bed = bed(ProxyMode::Tcp);
    let client = bed.accept();
    let backend = bed.establish();
    // Backends are trusted.
    bed.receive(backend, "evil\r\n");
    assert_eq!(bed.text(client), "evil\r\n");
    bed.receive(client, "evil\r\n");
    assert!(bed.is_aborted(client) && bed.is_aborted(backend));
    assert_eq!(bed.text(backend), "");
    assert_eq!(counter(&bed, "proxy_denied"), 1);
    bed.assert_empty();
}

#[test]
fn a_denied_client_hello_is_answered_with_an_alert() {
    let mut bed = bed(ProxyMode::Tls);
    let client = bed.accept();
    bed.receive(client, client_hello(Some("evil.example"), 1000));
    assert_eq!(bed.sent(client), fatal_alert(49));
    assert_eq!((counter(&bed, "proxy_denied"), counter(&bed, "proxy_connects")), (1, 0));
}
