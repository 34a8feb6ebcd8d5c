//! Rules about byte patterns in a scenario (`--deny-patterns`): the machine to which the clients
//! connect counts patterns of their requests, and denies a marker that no client sends.
//!
//! [`crate::checkers::patterns`] checks the results. Nothing is denied, so the responses are those
//! without rules; a proxy with rules does not splice.

use std::sync::Arc;

use apps::pattern_rules::{PatternRules, RuleCounterNames};
use base::Prng;
use nic::L5oConfig;

const SALT: u64 = 0x0a77_e245;
const STORAGE_SALT: u64 = 0x0a77_57e1;

/// Patterns of which a scenario counts some: frequent and rare, of one byte and of many, such as
/// lie across heads, and two of which one contains the other.
const COUNTED: [&str; 8] = [
    "count: e",
    "count: HTTP/1.1\\r\\nHost: ",
    "count: /1.1\\r\\nHo",
    "count: \\r\\n\\r\\nGET ",
    "count: Range: bytes=",
    "count: \\x17\\x03\\x03",
    "count: POST /",
    "count: \\r\\n",
];
/// Patterns of which a scenario with storage counts some, in the data of commands: numbers of
/// sectors and versions have zeros, the rest of a sector is random ([`crate::storage::model`]).
const COUNTED_IN_STORAGE: [&str; 6] = [
    "count: \\x00\\x00\\x00\\x00\\x00\\x00",
    "count: \\x00\\x00\\x00\\x01",
    "count: \\x03\\x00\\x00\\x00\\x00\\x00\\x00\\x00",
    "count: e",
    "count: ab",
    "count: \\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00",
];
/// Size of a context table that is never full.
const CONTEXTS_ENOUGH: u32 = 4_096;
/// A denying rule that never matches.
const MARKER: &str = "deny: \\x00\\xffno client sends this marker\\xff\\x00";

/// The rules of a scenario, and the engine for them.
#[derive(Clone, Debug)]
pub(crate) struct PatternScenario {
    rules: Arc<PatternRules>,
    /// The device inspects.
    pub(crate) engine: bool,
    /// Maximum number of contexts of a device without TLS.
    contexts_max: u32,
}

/// Draws the rules of a scenario with storage, in which all machines inspect the data of commands.
pub(crate) fn draw_storage_rules(seed: u64) -> Option<Arc<PatternRules>> {
    let r = &mut Prng::new(seed ^ STORAGE_SALT);
    r.chance(0.4).then(|| draw_rules(r, &COUNTED_IN_STORAGE))
}

/// Returns the marker and some of the lines as rules.
fn draw_rules(r: &mut Prng, counted: &[&str]) -> Arc<PatternRules> {
    let mut text = String::from(MARKER);
    for line in counted {
        text.push('\n');
        // The line of a rule is the same in all scenarios.
        text.push_str(if r.chance(0.6) { line } else { "#" });
    }
    match PatternRules::parse(&text, &mut RuleCounterNames::default()) {
        Ok(rules) => Arc::new(rules),
        Err(error) => unreachable!("the rules are valid: {error}"),
    }
}

impl PatternScenario {
    /// Uses a generator of its own: scenarios do not depend on these draws otherwise.
    pub(crate) fn draw(seed: u64) -> Option<Self> {
        let r = &mut Prng::new(seed ^ SALT);
        if !r.chance(0.15) {
            return None;
        }
        let rules = draw_rules(r, &COUNTED);
        let contexts_max = if r.chance(0.3) { r.range(1, 3) as u32 } else { CONTEXTS_ENOUGH };
        Some(Self { rules, engine: r.chance(0.8), contexts_max })
    }

    /// Returns whether the context table never fills.
    pub(crate) const fn has_room(&self) -> bool {
        self.contexts_max >= CONTEXTS_ENOUGH
    }

    /// Returns the rules of the machine to which clients connect.
    pub(crate) fn rules(&self) -> Arc<PatternRules> {
        Arc::clone(&self.rules)
    }

    /// Returns the layer-5 engine of that machine's device, which has `tls` without inspection.
    pub(crate) fn engine(&self, tls: Option<L5oConfig>) -> Option<L5oConfig> {
        let (inspect, contexts_max) = (self.engine, self.contexts_max);
        match tls {
            Some(tls) => Some(L5oConfig { inspect, ..tls }),
            None => inspect.then(|| L5oConfig {
                contexts_max,
                tls_tx: false,
                tls_rx: false,
                nvme_tcp_tx: false,
                nvme_tcp_rx: false,
                ..L5oConfig::new(Arc::new(crypto::Provider))
            }),
        }
    }
}
