//! Inspection of the bytes that peers of an application send, by [`crate::pattern_rules`].
//!
//! The content server, the proxy, and the target and the initiator of NVMe/TCP own a
//! [`PatternInspection`] each. The first two call it for every run of bytes before they use it, the
//! others for every match in the data of a command. Bytes of TCP and TLS are inspected by the host,
//! or by the device for it; both find the same. Requests over HTTP/3 are inspected here, after the
//! decompression of their fields, since patterns cannot be found in compressed fields. Encoded
//! content of uploads is inspected twice: as it was received, and decompressed, which is done here.
//!
//! A connection keeps the rules under which it was accepted ([`ConnectionRules`]) when others
//! replace them.

use std::sync::Arc;

use base::Instant;
use patterns::{PatternSet, PatternState};

use crate::connections::Connections;
use crate::pattern_rules::PatternRules;

base::counters! {
    /// Counters of inspection.
    pub struct PatternCounters {
        /// Matches of rules that have been replaced, in connections accepted before that.
        pattern_former_matches,
    }
}

base::counters! {
    /// Counters of the inspection of requests by the content server itself.
    pub struct RequestPatternCounters {
        /// Matches in HTTP/3 requests.
        pattern_http3_matches,
        /// Bytes of HTTP/3 requests that were inspected.
        pattern_http3_bytes,
        /// Matches in decompressed content.
        pattern_decoded_matches,
        /// Bytes of decompressed content that were inspected.
        pattern_decoded_bytes,
    }
}

/// The rules under which a connection was accepted, if it is inspected.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionRules(Option<Arc<PatternRules>>);

impl ConnectionRules {
    /// Returns the patterns; `None` if the connection is not inspected.
    pub(crate) fn patterns(&self) -> Option<&Arc<PatternSet>> {
        self.0.as_ref().map(|rules| &rules.patterns)
    }
}

/// State of the inspection of an HTTP/3 request, whose bytes the host does not inspect.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestInspection {
    /// State after the bytes so far; `None` before the first.
    state: Option<PatternState>,
}

/// State of the inspection of the decompressed content of a request.
#[derive(Clone, Debug)]
pub(crate) struct ContentInspection {
    rules: ConnectionRules,
    /// State after the bytes so far; `None` before the first.
    state: Option<PatternState>,
}

impl ContentInspection {
    /// Creates the state before the first byte, under the rules of a connection.
    pub(crate) const fn new(rules: ConnectionRules) -> Self {
        Self { rules, state: None }
    }
}

/// Inspection of the connections of an application.
#[derive(Debug, Default)]
pub(crate) struct PatternInspection {
    rules: ConnectionRules,
    /// Matches of each rule.
    matches: Vec<u64>,
    counters: PatternCounters,
    requests: RequestPatternCounters,
}

impl PatternInspection {
    /// Creates the inspection for rules; without rules nothing is inspected.
    pub(crate) fn new(rules: Option<Arc<PatternRules>>) -> Self {
        let matches = vec![0; rules.as_ref().map_or(0, |rules| rules.count())];
        let (counters, requests) = Default::default();
        Self { rules: ConnectionRules(rules), matches, counters, requests }
    }

    /// Returns whether connections are inspected.
    pub(crate) const fn is_active(&self) -> bool {
        self.rules.0.is_some()
    }

    /// Replaces the rules for connections that are accepted from now on. Rules that stay the same
    /// keep the number of their matches.
    pub(crate) fn replace_rules(&mut self, rules: Arc<PatternRules>) {
        let former = self.rules.0.iter().flat_map(|rules| &rules.rules).zip(&self.matches);
        let former: Vec<_> = former.collect();
        let matches_of = |rule| match former.binary_search_by_key(&rule, |(former, _)| *former) {
            Ok(at) => former.get(at).map_or(0, |(_, matches)| **matches),
            Err(_) => 0,
        };
        self.matches = rules.rules.iter().map(matches_of).collect();
        self.rules = ConnectionRules(Some(rules));
    }

    /// Returns the rules for a connection that was just accepted.
    pub(crate) fn rules(&self) -> ConnectionRules {
        self.rules.clone()
    }

    /// Begins to inspect a connection that was just accepted. Returns its rules.
    pub(crate) fn start<S: Connections>(
        &self,
        now: Instant,
        host: &mut S,
        id: S::Id,
    ) -> ConnectionRules {
        if let Some(rules) = &self.rules.0 {
            host.start_inspection(now, id, &rules.patterns);
        }
        self.rules()
    }

    /// Inspects the bytes that can be read, and returns whether they may be used: no pattern of a
    /// denying rule ends in those that were not inspected before.
    pub(crate) fn admits<S: Connections>(
        &mut self,
        ConnectionRules(rules): &ConnectionRules,
        host: &mut S,
        id: S::Id,
    ) -> bool {
        let Some(rules) = rules else { return true };
        let mut admitted = true;
        host.inspect(id, &mut |found| admitted &= self.note_match(rules, found.pattern.into()));
        admitted
    }

    /// Inspects the next bytes of an HTTP/3 request, and returns whether they may be used.
    pub(crate) fn admits_request(
        &mut self,
        ConnectionRules(rules): &ConnectionRules,
        request: &mut RequestInspection,
        bytes: &[u8],
    ) -> bool {
        let Some(rules) = rules else { return true };
        self.requests.pattern_http3_bytes += bytes.len() as u64;
        let (matches, admitted) = self.scan(rules, &mut request.state, bytes);
        self.requests.pattern_http3_matches += matches;
        admitted
    }

    /// Inspects the next bytes of decompressed content, and returns whether they may be used.
    pub(crate) fn admits_content(
        &mut self,
        ContentInspection { rules: ConnectionRules(rules), state }: &mut ContentInspection,
        bytes: &[u8],
    ) -> bool {
        let Some(rules) = rules else { return true };
        self.requests.pattern_decoded_bytes += bytes.len() as u64;
        let (matches, admitted) = self.scan(rules, state, bytes);
        self.requests.pattern_decoded_matches += matches;
        admitted
    }

    /// Returns the number of matches that end in `bytes`, and whether their rules permit them.
    fn scan(
        &mut self,
        rules: &Arc<PatternRules>,
        state: &mut Option<PatternState>,
        bytes: &[u8],
    ) -> (u64, bool) {
        let (mut matches, mut admitted, patterns) = (0, true, &rules.patterns);
        let before = state.unwrap_or_else(|| patterns.start());
        *state = Some(patterns.scan(before, bytes, &mut |pattern, _| {
            matches += 1;
            admitted &= self.note_match(rules, pattern);
        }));
        (matches, admitted)
    }

    /// Counts a match in data that the host inspects for the owner; returns whether its rule
    /// permits it.
    pub(crate) fn admits_match(
        &mut self,
        ConnectionRules(rules): &ConnectionRules,
        pattern: u16,
    ) -> bool {
        rules.as_ref().is_none_or(|rules| self.note_match(rules, pattern.into()))
    }

    /// Counts a match; returns whether its rule permits it.
    fn note_match(&mut self, rules: &Arc<PatternRules>, pattern: usize) -> bool {
        let is_current = self.rules.0.as_ref().is_some_and(|current| Arc::ptr_eq(current, rules));
        match self.matches.get_mut(pattern).filter(|_| is_current) {
            Some(matches) => *matches += 1,
            None => self.counters.pattern_former_matches += 1,
        }
        rules.rules.get(pattern).is_none_or(|rule| !rule.denies)
    }

    /// Calls `f` with the name and value of each rule's counter, and of the other counters if
    /// connections are inspected.
    pub(crate) fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.visit_rules(f);
        if self.is_active() {
            self.requests.visit(f);
        }
    }

    /// As [`Self::visit`], without the counters of requests.
    pub(crate) fn visit_rules(&self, f: &mut dyn FnMut(&'static str, u64)) {
        let Some(rules) = &self.rules.0 else { return };
        for (rule, &matches) in rules.rules.iter().zip(&self.matches) {
            f(rule.counter, matches);
        }
        self.counters.visit(f);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern_rules::RuleCounterNames;

    fn visited(inspection: &PatternInspection) -> Vec<(&'static str, u64)> {
        let mut counters = Vec::new();
        inspection.visit(&mut |name, value| counters.push((name, value)));
        counters
    }

    /// A request that was begun under former rules stays under them.
    #[test]
    fn rules_are_replaced_for_new_connections() {
        let mut names = RuleCounterNames::default();
        let mut rules = |text| Arc::new(PatternRules::parse(text, &mut names).unwrap());
        let mut inspection = PatternInspection::new(Some(rules("evil\ncount:a\ncount:b")));
        let (old, mut request) = (inspection.rules(), RequestInspection::default());
        assert!(inspection.admits_request(&old, &mut request, b"aab, ev"));
        inspection.replace_rules(rules("good\ncount:a\ndeny:b\ncount:c"));
        let expected = [
            ("pattern_line_1_matches", 0),
            ("pattern_line_2_matches", 2),
            ("pattern_line_3_matches", 0),
            ("pattern_line_4_matches", 0),
            ("pattern_former_matches", 0),
            ("pattern_http3_matches", 3),
            ("pattern_http3_bytes", 7),
            ("pattern_decoded_matches", 0),
            ("pattern_decoded_bytes", 0),
        ];
        assert_eq!(visited(&inspection), expected);
        assert!(!inspection.admits_request(&old, &mut request, b"il"));
        let (new, mut other) = (inspection.rules(), RequestInspection::default());
        assert!(inspection.admits_request(&new, &mut other, b"evil a"));
        assert!(!inspection.admits_request(&new, &mut other, b" good"));
        let counters = visited(&inspection);
        assert_eq!(counters[..2], [("pattern_line_1_matches", 1), ("pattern_line_2_matches", 3)]);
        assert_eq!(counters[4], ("pattern_former_matches", 1));
    }

    #[test]
    fn without_rules_everything_is_admitted() {
        let mut inspection = PatternInspection::default();
        let (rules, mut request) = (inspection.rules(), RequestInspection::default());
        assert!(inspection.admits_request(&rules, &mut request, b"evil"));
        assert!(!inspection.is_active());
        assert_eq!(visited(&inspection), []);
    }
}
