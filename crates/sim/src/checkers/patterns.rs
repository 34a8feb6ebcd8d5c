//! Inspection for patterns: each claim of a device is what software finds in the same bytes.
//! [`super::counters`] checks that each match is counted by its rule, and that nothing is denied.

use std::sync::Arc;

use abi::Event;
use abi::inspect::{InspectedRange, RangeMatch};
use patterns::PatternSet;
use wire::frame::{ParsedFrame, parse, protocol};
use wire::tcp::TcpHeader;

/// Compares the claims of a device with the results of software.
#[derive(Debug, Default)]
pub(crate) struct ClaimChecker {
    /// The patterns, if the machine's application has rules.
    pub(crate) patterns: Option<Arc<PatternSet>>,
    /// Number of claims that were compared.
    pub(crate) claims: u64,
}

impl ClaimChecker {
    /// Compares the claims of an event that the device delivers to its host.
    ///
    /// # Errors
    /// Describes a claim that is wrong.
    pub(crate) fn delivered(&mut self, event: &Event) -> Result<(), String> {
        let Event::Received(received) = event else { return Ok(()) };
        let Some(claims) = received.metadata.inspected() else { return Ok(()) };
        let Some(patterns) = &self.patterns else {
            return Err(String::from("claims without patterns"));
        };
        let frame = received.packet.as_slice();
        let payload = tcp_payload(frame).ok_or("claims about a frame without TCP payload")?;
        for claim in &claims.ranges {
            self.claims += 1;
            check_claim(patterns, payload, claim)?;
        }
        Ok(())
    }
}

fn check_claim(
    patterns: &PatternSet,
    payload: &[u8],
    claim: &InspectedRange,
) -> Result<(), String> {
    let (start, end) = (claim.range.start as usize, claim.range.end as usize);
    let bytes = payload.get(start..end).ok_or("a claim beyond the payload")?;
    let before = patterns.state(claim.before).ok_or("a claim from an unknown state")?;
    let mut matches = Vec::new();
    let after = patterns.scan(before, bytes, &mut |pattern, end| {
        matches.push(RangeMatch { pattern: pattern as u16, end: (start + end) as u32 });
    });
    if after.number() != claim.after || matches[..] != claim.matches[..] {
        return Err(format!("{claim:?}, software finds {matches:?}, then {}", after.number()));
    }
    Ok(())
}

/// Returns the payload of a TCP segment.
fn tcp_payload(frame: &[u8]) -> Option<&[u8]> {
    let Ok(ParsedFrame::Ip(ip)) = parse(frame) else { return None };
    let segment = frame.get(ip.l4..ip.end).filter(|_| ip.protocol == protocol::TCP)?;
    let (_, header_len) = TcpHeader::parse(segment).ok()?;
    segment.get(header_len..)
}
