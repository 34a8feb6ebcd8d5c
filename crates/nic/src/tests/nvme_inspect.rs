//! Inspection of the data of NVMe/TCP commands: a host that uses the device's claims finds in each
//! command what software finds in it, however the stream is cut, ordered and encrypted.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use base::Prng;
use core::ops::Range;
use patterns::{PatternSet, PatternState};
use proptest::prelude::*;

use super::l5o_disorder::{FaultyNetwork, arrivals};
use super::l5o_tx::{ALL as SUITES, TlsTestPeer};
use super::nvme_disorder::run;
use super::nvme_rx::config;
use super::nvme_stream::{ALL, BOTH, Digests, INSPECT, NvmeRxFlow, PduStream};

const PATTERNS: [&str; 4] = ["needle", "dle and n", "ee", "n"];
const TEXT: &[u8] = b"a needle and needles, ";

/// A match: index of the pattern, and offset in the command's data after its last byte.
type Match = (usize, usize);

fn set() -> Arc<PatternSet> {
    Arc::new(PatternSet::new(&PATTERNS).unwrap())
}

/// The data of a command: positions in the content of the stream, in the order of the offsets.
type CommandData = Vec<Range<usize>>;

/// Returns what software finds in bytes.
fn software(set: &PatternSet, bytes: &[u8]) -> Vec<Match> {
    let mut found = vec![];
    set.scan(set.start(), bytes, &mut |pattern, end| found.push((pattern, end)));
    found
}

/// A command's data as a host reads it.
struct DataReader<'a> {
    set: &'a PatternSet,
    state: PatternState,
    at: usize,
    found: Vec<Match>,
    by_device: usize,
}

impl DataReader<'_> {
    /// Inspects a byte, or the range of a claim that begins there with the right state. Returns
    /// the number of bytes.
    fn step(&mut self, byte: u8, claims: &[(Range<usize>, Claim)], wire: usize) -> usize {
        let claim = claims
            .iter()
            .find(|(range, claim)| range.start == wire && claim.before == self.state.number());
        let Some((range, claim)) = claim else {
            let at = self.at;
            let found = &mut self.found;
            self.state = self.set.scan(self.state, &[byte], &mut |pattern, _| {
                found.push((pattern, at + 1));
            });
            self.at += 1;
            return 1;
        };
        let at = self.at;
        self.found.extend(claim.matches.iter().map(|(pattern, end)| (*pattern, at + end)));
        self.state = self.set.state(claim.after).expect("a known state");
        (self.at, self.by_device) = (self.at + range.len(), self.by_device + range.len());
        range.len()
    }
}

/// A claim of the device, with the ends of matches relative to its range.
struct Claim {
    before: u32,
    after: u32,
    matches: Vec<Match>,
}

/// Checks each claim against software, and that a host which uses them finds the same as software
/// in the data of each command. Returns the number of bytes for which it used claims.
fn check(flow: &NvmeRxFlow, set: &PatternSet, commands: &[CommandData]) -> usize {
    let mut claims = vec![];
    for (packet, claim) in &flow.inspected {
        assert_eq!(claim.context, INSPECT);
        for claim in &claim.ranges {
            let start = claim.range.start as usize;
            let range = packet + start..packet + claim.range.end as usize;
            let ends = claim.matches.iter();
            let matches = ends.map(|found| (found.pattern.into(), found.end as usize - start));
            let matches = matches.collect();
            claims.push((range, Claim { before: claim.before, after: claim.after, matches }));
        }
    }
    let mut by_device = 0;
    for data in commands {
        let bytes: Vec<u8> =
            data.iter().flat_map(|range| flow.content.bytes[range.clone()].to_vec()).collect();
        let mut reader = DataReader { set, state: set.start(), at: 0, found: vec![], by_device: 0 };
        for range in data {
            let mut at = range.start;
            while at < range.end {
                at += reader.step(flow.content.bytes[at], &claims, flow.wire_of(at));
                assert!(at <= range.end, "a claim reaches beyond the data of its PDU");
            }
        }
        assert_eq!(reader.found, software(set, &bytes));
        by_device += reader.by_device;
    }
    by_device
}

/// Returns a stream of reads whose data PDUs alternate, with the data of each command. Identifiers
/// are used again with other data.
fn reads(digests: Digests, pdus: usize, len: usize) -> (PduStream, Vec<CommandData>) {
    let mut content = PduStream::new(digests, 5);
    let mut commands = vec![];
    for round in 0..2 {
        let mut data: BTreeMap<u16, CommandData> = BTreeMap::new();
        for nth in 0..pdus {
            for tag in 1..4_u16 {
                let text = TEXT.iter().cycle().skip(usize::from(tag) + round + nth * len);
                let bytes: Vec<u8> = text.copied().take(len).collect();
                content.data_pdu(true, tag, u32::try_from(nth * len).unwrap(), &bytes);
                // For the model, the command identifier is the tag.
                let range = content.pdus.last().unwrap().data.clone().unwrap().2;
                data.entry(tag).or_default().push(range);
            }
        }
        (1..4).for_each(|tag| content.response(tag));
        commands.extend(data.into_values());
    }
    (content, commands)
}

fn bytes_of(commands: &[CommandData]) -> usize {
    commands.iter().flatten().map(|range| range.len()).sum()
}

/// Every byte is inspected by the device, also without digests and buffers.
#[test]
fn matches_cross_packets_and_pdus() {
    let set = set();
    for digests in ALL {
        let (content, commands) = reads(digests, 2, 36);
        let all = bytes_of(&commands);
        for cut in 1..content.bytes.len() {
            let mut flow = NvmeRxFlow::new(content.clone(), config(true));
            flow.inspect(&set);
            flow.deliver(0..cut);
            flow.deliver(cut..content.bytes.len());
            // At most as many claims as a frame may have, and eight matches in each.
            assert!(check(&flow, &set, &commands) <= all);
            assert_eq!(flow.rig.counter("inspect_bytes"), all as u64, "cut at {cut}");
        }
        for step in [1, 3, 16] {
            let mut flow = NvmeRxFlow::new(content.clone(), config(true));
            flow.inspect(&set);
            flow.deliver_in(0..content.bytes.len(), step);
            assert_eq!(check(&flow, &set, &commands), all, "in packets of {step}");
            assert_eq!(flow.rig.counter("inspect_began_anew"), 6, "commands");
        }
        // Ranges of larger packets have more matches than a claim may have.
        let mut flow = NvmeRxFlow::new(content.clone(), config(true));
        flow.inspect(&set);
        flow.deliver_in(0..content.bytes.len(), 100);
        assert!(check(&flow, &set, &commands) < all);
        assert_eq!(flow.rig.counter("inspect_bytes"), all as u64);
        assert!(flow.rig.counter("inspect_unreported_bytes") > 0);
    }
}

/// A pattern in the data of two commands is not found, although their data is consecutive in the
/// stream and the second has the identifier of the first.
#[test]
fn commands_are_inspected_for_themselves() {
    let set = set();
    let mut content = PduStream::new(BOTH, 5);
    let mut commands = vec![];
    for half in [&b"12nee"[..], b"dle34", b"nee", b"dle"] {
        content.data_pdu(true, 7, 0, half);
        commands.push(vec![content.pdus.last().unwrap().data.clone().unwrap().2]);
    }
    let mut flow = NvmeRxFlow::new(content, config(true));
    flow.inspect(&set);
    flow.deliver_in(0..flow.wire.len(), 10);
    assert_eq!(check(&flow, &set, &commands), 16);
    // "ee" and "n" in the first and third.
    assert_eq!(flow.rig.counter("inspect_found"), 4);
}

/// In-capsule data is named by the identifier in the submission queue entry, H2CData by its own.
#[test]
fn data_to_a_target_is_inspected() {
    let set = set();
    let mut content = PduStream::new(BOTH, 5);
    let mut entry = [0; 64];
    entry[2..4].copy_from_slice(&9_u16.to_le_bytes());
    let capsule = content.push(4, 0, &entry, b"a needle and n");
    let mut commands = vec![vec![capsule]];
    let mut data = vec![];
    // Offsets of data are multiples of four.
    for (offset, part) in [(0, &b"..ne"[..]), (4, b"edle and"), (12, b" ne")] {
        content.data_pdu(false, 3, offset, part);
        data.push(content.pdus.last().unwrap().data.clone().unwrap().2);
    }
    commands.push(data);
    for step in [1, 7, 500] {
        let mut flow = NvmeRxFlow::new(content.clone(), config(true));
        flow.inspect(&set);
        flow.deliver_in(0..flow.wire.len(), step);
        assert_eq!(check(&flow, &set, &commands), 14 + 15);
    }
}

/// Without a context that inspects such data, or without one that follows PDUs, nothing is claimed.
#[test]
fn other_data_is_not_inspected() {
    let set = set();
    let (content, _) = reads(BOTH, 2, 100);
    let mut flow = NvmeRxFlow::new(content, config(true));
    flow.deliver_in(0..200, 50);
    assert!(flow.inspected.is_empty());
    flow.inspect(&set);
    flow.rig.op(0, abi::Op::L5oDestroy { context: super::nvme_stream::CONTEXT });
    flow.deliver_in(200..flow.wire.len(), 50);
    assert!(flow.inspected.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Loss, reordering and duplicates, in both modes, plain and over TLS; devices search for PDUs
    /// and ask the host meanwhile.
    #[test]
    fn every_order_has_the_same_result(
        seed: u64,
        out_of_order: bool,
        tls in prop_oneof![Just(None), (0_usize..SUITES.len()).prop_map(Some)],
        lost in 0_u64..40,
        late in 0_u64..40,
        quarter in 1_usize..750,
        packet in 200_usize..1449,
        buffers: bool,
    ) {
        let set = set();
        let (content, commands) = reads(BOTH, 3, 4 * quarter);
        let network = FaultyNetwork { lost, late, twice: 5 };
        let config = config(out_of_order);
        let mut flow = match tls {
            None => NvmeRxFlow::new(content, config),
            Some(suite) => {
                let peer = TlsTestPeer::new(SUITES[suite]);
                NvmeRxFlow::over_tls(content, config, peer, &[700, 3000, 16_384])
            }
        };
        flow.inspect(&set);
        if buffers {
            // Of the first round; those of the second are not registered again.
            (1..4).for_each(|tag| flow.setup(tag, 0, 12 * quarter));
        }
        let packets = arrivals(flow.wire.len(), packet, network, &mut Prng::new(seed));
        run(&mut flow, &packets);
        let by_device = check(&flow, &set, &commands);
        if (lost, late, tls) == (0, 0, None) {
            // All but frames with more matches than a claim may have.
            let unreported = flow.rig.counter("inspect_unreported_bytes");
            let all = bytes_of(&commands) as u64;
            prop_assert_eq!(flow.rig.counter("inspect_bytes"), all);
            prop_assert!(by_device as u64 + unreported == all);
        }
    }
}
