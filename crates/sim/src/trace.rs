//! The trace of a run: one record per event, always hashed, and kept on request.
//!
//! Two runs of a seed are equal if their hashes are. Records hold only numbers, so that tracing
//! costs no formatting; lines are formatted from the kept records if a run fails.

use std::collections::VecDeque;
use std::fmt;

use base::Instant;
use node::record::{RecordDescription, RecordEntry, RecordLane, RecordSubject};
use wire::tcp::TcpFlags;

/// Number of records that are kept in case the run fails.
const KEPT: usize = 80;

/// Kind of a record, which determines the names of its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TraceKind {
    /// A node's device sent a frame.
    Send,
    /// A frame arrived at a node.
    Arrive,
    /// The network affected a frame; its field is the number of a [`crate::net::NetFate`].
    Fate,
    /// A host took a turn.
    HostTurn,
    /// A device took a turn.
    DeviceTurn,
    /// A disk request completed.
    Disk,
    /// A file changed.
    Change,
    /// A fault began or ended.
    Fault,
    /// A client opened a connection.
    Connect,
    /// A client received a complete response.
    Response,
    /// A client's connection ended with an error.
    Error,
    /// A client closed a connection.
    Close,
    /// A device began to relay a pair.
    Splice,
    /// A user of a namespace submitted a request or received a completion or an event.
    User,
}

impl TraceKind {
    /// Returns the names of the kind and of its fields; a field without a name is not shown.
    pub(crate) const fn names(self) -> (&'static str, [&'static str; 5]) {
        match self {
            Self::Send => ("send", ["flags", "seq", "ack", "bytes", "sum"]),
            Self::Arrive => ("arrive", ["flags", "seq", "ack", "bytes", "from"]),
            Self::Fate => ("fate", ["fate", "from", "bytes", "", ""]),
            Self::HostTurn => ("host", ["events", "ops", "disk", "next_us", ""]),
            Self::DeviceTurn => ("device", ["frames", "ops", "disk", "sent", ""]),
            Self::Disk => ("disk", ["side", "kind", "offset", "bytes", "fault"]),
            Self::Change => ("change", ["file", "how", "size", "", ""]),
            Self::Fault => ("fault", ["kind", "node", "on", "", ""]),
            Self::Connect => ("connect", ["session", "port", "try", "", ""]),
            Self::Response => ("response", ["session", "request", "status", "bytes", "hash"]),
            Self::Error => ("error", ["session", "kind", "read", "", ""]),
            Self::Close => ("close", ["session", "read", "", "", ""]),
            Self::Splice => ("splice", ["pair", "", "", "", ""]),
            Self::User => ("user", ["what", "token", "lba", "blocks", ""]),
        }
    }

    /// Returns the lane of the ladder page; frames and turns have entries of their own, or none.
    const fn lane(self) -> Option<RecordLane> {
        Some(match self {
            Self::Send | Self::Arrive | Self::HostTurn | Self::DeviceTurn => return None,
            Self::Fate => RecordLane::Fate,
            Self::Disk | Self::Change | Self::Fault | Self::Splice => RecordLane::Fault,
            Self::Connect | Self::Response | Self::Error | Self::Close | Self::User => {
                RecordLane::Application
            }
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct TraceRecord {
    at: Instant,
    node: usize,
    what: TraceKind,
    fields: [u64; 5],
}

impl TraceRecord {
    /// Describes the record for the ladder page.
    fn describe(&self) -> RecordDescription {
        let (name, names) = self.what.names();
        let fate = usize::try_from(self.fields[0]).ok().and_then(|fate| FATES.get(fate));
        let named = names.iter().zip(self.fields).filter(|(name, _)| !name.is_empty());
        let texts: Vec<_> = named.map(|(name, value)| format!("{name}={value}")).collect();
        RecordDescription {
            name: match (self.what, fate) {
                (TraceKind::Fate, Some(fate)) => fate,
                _ => name.trim_end(),
            },
            subject: RecordSubject::None,
            detail: texts.join(" "),
            is_refusal: matches!(self.what, TraceKind::Error),
        }
    }
}

impl fmt::Display for TraceRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, names) = self.what.names();
        write!(f, "{} n{} {name}", self.at, self.node)?;
        for (name, value) in names.iter().zip(self.fields) {
            match *name {
                "" => {}
                "flags" => {
                    let bits = u8::try_from(value & 0xff).unwrap_or(0);
                    write!(f, " {:?}", TcpFlags(bits))?;
                }
                name => write!(f, " {name}={value}")?,
            }
        }
        Ok(())
    }
}

/// The trace of one run.
#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    count: u64,
    kept: VecDeque<TraceRecord>,
    /// Keeps all records, not only the last ones.
    whole: bool,
    /// Entries for the ladder page, if they are wanted. They do not change the hash.
    recorded: Option<Vec<RecordEntry>>,
}

/// Names of the fates of frames, by the number of the fate.
const FATES: [&str; 8] = [
    "lost",
    "lost: queue full",
    "lost: disconnected",
    "duplicated",
    "corrupted",
    "held back",
    "marked CE",
    "lost: too big",
];

impl Trace {
    pub(crate) const fn new(whole: bool) -> Self {
        let kept = VecDeque::new();
        Self { hash: 0x6f75_7462_6f61_7264, count: 0, kept, whole, recorded: None }
    }

    /// Starts to keep entries for the ladder page.
    pub(crate) fn start_recording(&mut self) {
        self.recorded = Some(Vec::new());
    }

    /// Returns the entries for the ladder page, in order of time.
    pub(crate) fn take_recorded(&mut self) -> Vec<RecordEntry> {
        self.recorded.take().unwrap_or_default()
    }

    /// Keeps an entry for the ladder page. `item` is called only if the run is recorded.
    pub(crate) fn record(
        &mut self,
        at: Instant,
        node: usize,
        lane: RecordLane,
        item: impl FnOnce() -> RecordDescription,
    ) {
        if let Some(recorded) = &mut self.recorded {
            recorded.push(RecordEntry { at, node, lane, item: item() });
        }
    }

    /// Adds a record.
    pub(crate) fn note(&mut self, at: Instant, node: usize, what: TraceKind, fields: [u64; 5]) {
        self.count += 1;
        let head = at.as_nanos() ^ ((node as u64) << 56) ^ ((what as u64) << 48);
        self.hash = mix(self.hash ^ head);
        for field in fields {
            self.hash = mix(self.hash ^ field);
        }
        if !self.whole && self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        let record = TraceRecord { at, node, what, fields };
        if let Some(lane) = what.lane() {
            self.record(at, node, lane, || record.describe());
        }
        self.kept.push_back(record);
    }

    /// Returns the hash over all records so far.
    pub(crate) const fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the number of records.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// Formats the records that are kept.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.kept.iter().map(ToString::to_string).collect()
    }
}

/// Mixes 64 bits bijectively, so that every input bit affects about half of the output bits: the
/// finalizer of SplitMix64.
pub(crate) const fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Inverts [`mix`].
pub(crate) const fn unmix(mut z: u64) -> u64 {
    z ^= z >> 31 ^ z >> 62;
    z = z.wrapping_mul(inverse(0x94d0_49bb_1331_11eb));
    z ^= z >> 27 ^ z >> 54;
    z = z.wrapping_mul(inverse(0xbf58_476d_1ce4_e5b9));
    z ^= z >> 30 ^ z >> 60;
    z.wrapping_sub(0x9e37_79b9_7f4a_7c15)
}

/// Returns the multiplicative inverse of an odd number modulo 2^64, by Newton's method.
pub(crate) const fn inverse(odd: u64) -> u64 {
    let mut x = odd;
    let mut bits = 3;
    while bits < 64 {
        x = x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
        bits *= 2;
    }
    x
}

/// Returns a hash of bytes for traces; not resistant to attackers who choose the bytes.
pub(crate) fn hash_bytes(seed: u64, bytes: &[u8]) -> u64 {
    let mut hash = mix(seed ^ bytes.len() as u64);
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        let word = word.first_chunk().copied().unwrap_or_default();
        hash = mix(hash ^ u64::from_le_bytes(word));
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        let word = rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        hash = mix(hash ^ word);
    }
    hash
}

/// Bytes that [`hash_long`] hashes at once.
const LONG_BLOCK: usize = 64;

/// Returns another hash of bytes, several times as fast for long ones: four folded products at a
/// time, as in wyhash. Not resistant to attackers who choose the bytes.
pub(crate) fn hash_long(seed: u64, bytes: &[u8]) -> u64 {
    let mut lanes = [1, 2, 3, 4].map(|lane| mix(seed ^ mix(lane)));
    let mut blocks = bytes.chunks_exact(LONG_BLOCK);
    for block in &mut blocks {
        for (lane, pair) in lanes.iter_mut().zip(block.chunks_exact(16)) {
            let word =
                |from| u64::from_le_bytes(pair[from..from + 8].try_into().unwrap_or_default());
            *lane = fold(*lane ^ word(0), word(8) ^ 0xa076_1d64_78bd_642f);
        }
    }
    let hash = lanes.into_iter().fold(bytes.len() as u64, |hash, lane| mix(hash ^ lane));
    hash_bytes(hash, blocks.remainder())
}

/// Returns the exclusive or of the halves of a product.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixing_is_taken_back() {
        for z in [0, 1, 7, u64::MAX, 0x0123_4567_89ab_cdef, mix(3)] {
            assert_eq!(unmix(mix(z)), z);
            assert_eq!(mix(unmix(z)), z);
        }
    }

    #[test]
    fn every_byte_counts_in_a_hash() {
        for len in 1..200 {
            let bytes: Vec<u8> = (0..len as u64).map(|i| mix(i) as u8).collect();
            let mut hashes =
                vec![hash_bytes(1, &bytes), hash_long(1, &bytes), hash_long(2, &bytes)];
            hashes.extend([hash_bytes(1, &bytes[1..]), hash_long(1, &bytes[1..])]);
            for at in 0..len {
                let mut other = bytes.clone();
                other[at] ^= 0x10;
                hashes.extend([hash_bytes(1, &other), hash_long(1, &other)]);
            }
            let all = hashes.len();
            hashes.sort_unstable();
            hashes.dedup();
            assert_eq!(hashes.len(), all, "all are different");
        }
    }

    #[test]
    fn lines_and_hash() {
        let mut trace = Trace::new(false);
        let empty = trace.hash();
        for i in 0..100 {
            trace.note(Instant::from_micros(i), 1, TraceKind::Send, [0x12, i, 7, 0, 0]);
        }
        assert_ne!(trace.hash(), empty);
        assert_eq!((trace.count(), trace.lines().len()), (100, KEPT));
        assert_eq!(trace.lines()[79], "0.000099000s n1 send S. seq=99 ack=7 bytes=0 sum=0");
        let mut other = Trace::new(true);
        for i in 0..100 {
            other.note(
                Instant::from_micros(i),
                1,
                TraceKind::Send,
                [0x12, i, 7, 0, u64::from(i == 50)],
            );
        }
        assert_eq!(other.lines().len(), 100);
        assert_ne!(trace.hash(), other.hash(), "one field of one event differs");
    }
}
