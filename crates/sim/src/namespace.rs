//! A namespace on the simulated disk: bytes that are stored, and a volatile cache in front of them.
//!
//! What was written is what is read from then on. Whether it outlasts a crash of the machine is
//! another matter: what was not flushed does or does not, each sector for itself; what was being
//! written does so in part.

use std::collections::{BTreeMap, BTreeSet};

use base::Prng;

/// What is written at once or not at all.
const SECTOR_BYTES: usize = 512;
/// What a file system writes back at once.
const PAGE_SECTORS: u64 = 8;

/// Bytes that are being written.
#[derive(Debug)]
struct Change {
    node: usize,
    offset: usize,
    bytes: Vec<u8>,
    fua: bool,
}

/// What a flush has found to do: sectors, and what was in them.
type Snapshot = Vec<(u64, Vec<u8>)>;

/// A namespace.
#[derive(Debug)]
pub struct Namespace {
    /// What is read.
    current: Vec<u8>,
    /// What remains of it after a crash, whatever happens.
    durable: Vec<u8>,
    /// Sectors in which the two may differ.
    dirty: BTreeSet<u64>,
    /// Changes under way, by who asks and when.
    changes: BTreeMap<u64, Change>,
    flushes: BTreeMap<u64, (usize, Snapshot)>,
    next: u64,
}

impl Namespace {
    /// A namespace of `size` zero bytes.
    #[must_use]
    pub fn new(size: usize) -> Self {
        Self {
            current: vec![0; size],
            durable: vec![0; size],
            dirty: BTreeSet::new(),
            changes: BTreeMap::new(),
            flushes: BTreeMap::new(),
            next: 0,
        }
    }

    /// Bytes of it.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.current.len() as u64
    }

    /// Copies what is read at `offset`.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        let from = offset as usize;
        out.copy_from_slice(&self.current[from..from + out.len()]);
    }

    /// A write begins; names it. None where there is no such range.
    pub fn begin(&mut self, node: usize, offset: u64, bytes: Vec<u8>, fua: bool) -> Option<u64> {
        let end = offset.checked_add(bytes.len() as u64)?;
        if bytes.is_empty() || end > self.size() {
            return None;
        }
        self.next += 1;
        self.changes.insert(self.next, Change { node, offset: offset as usize, bytes, fua });
        Some(self.next)
    }

    /// A write has ended: whole, or after a fault in part.
    pub fn finish(&mut self, name: u64, torn: Option<&mut Prng>) {
        let Some(change) = self.changes.remove(&name) else { return };
        if let Some(rng) = torn {
            return self.apply(&change, |_| rng.chance(0.5));
        }
        self.apply(&change, |_| true);
        if change.fua {
            for sector in sectors(change.offset, change.bytes.len()) {
                self.persist(sector);
            }
        }
    }

    /// A flush begins: it is of what has been written so far.
    pub fn begin_flush(&mut self, node: usize) -> u64 {
        self.next += 1;
        let now =
            |&sector: &u64| (sector, self.current[range(sector, self.current.len())].to_vec());
        let snapshot = self.dirty.iter().map(now).collect();
        self.flushes.insert(self.next, (node, snapshot));
        self.next
    }

    /// A flush has ended; after a fault it has done nothing.
    pub fn finish_flush(&mut self, name: u64, failed: bool) {
        let Some((_, snapshot)) = self.flushes.remove(&name) else { return };
        if failed {
            return;
        }
        for (sector, bytes) in snapshot {
            self.overtake(sector, name);
            let at = range(sector, self.durable.len());
            self.durable[at.clone()].copy_from_slice(&bytes);
            if self.current[at.clone()] == self.durable[at] {
                self.dirty.remove(&sector);
            }
        }
    }

    /// The machine crashes: what it was writing is written in part, and what was not flushed is
    /// lost in part, by sectors or by pages. Gives how many sectors were lost.
    pub fn crash(&mut self, node: usize, rng: &mut Prng) -> u64 {
        self.stop(node, rng);
        let unit = if rng.chance(0.5) { 1 } else { PAGE_SECTORS };
        let mut kept = BTreeMap::new();
        let mut lost = 0;
        for sector in core::mem::take(&mut self.dirty) {
            let at = range(sector, self.current.len());
            if *kept.entry(sector / unit).or_insert_with(|| rng.chance(0.5)) {
                self.durable[at.clone()].copy_from_slice(&self.current[at]);
            } else {
                lost += u64::from(self.current[at.clone()] != self.durable[at.clone()]);
                self.current[at.clone()].copy_from_slice(&self.durable[at]);
            }
        }
        lost
    }

    /// The machine's programs stop: what they were writing is written in part, and nothing of what
    /// was written is lost.
    pub fn stop(&mut self, node: usize, rng: &mut Prng) {
        self.flushes.retain(|_, flush| flush.0 != node);
        let all = core::mem::take(&mut self.changes);
        let (cut, others) = all.into_iter().partition(|(_, change)| change.node == node);
        self.changes = others;
        for change in BTreeMap::into_values(cut) {
            self.apply(&change, |_| rng.chance(0.5));
        }
    }

    /// Writes the sectors of a change that `keep` says.
    fn apply(&mut self, change: &Change, mut keep: impl FnMut(u64) -> bool) {
        for sector in sectors(change.offset, change.bytes.len()) {
            if !keep(sector) {
                continue;
            }
            let at = range(sector, self.current.len());
            let (from, to) =
                (at.start.max(change.offset), at.end.min(change.offset + change.bytes.len()));
            let bytes = &change.bytes[from - change.offset..to - change.offset];
            self.current[from..to].copy_from_slice(bytes);
            self.dirty.insert(sector);
        }
    }

    /// What flushes before `name` have of a sector is older than what is durable now.
    fn overtake(&mut self, sector: u64, name: u64) {
        for (_, snapshot) in self.flushes.range_mut(..name).map(|(_, flush)| flush) {
            snapshot.retain(|(of, _)| *of != sector);
        }
    }

    fn persist(&mut self, sector: u64) {
        self.overtake(sector, u64::MAX);
        let at = range(sector, self.current.len());
        self.durable[at.clone()].copy_from_slice(&self.current[at]);
        self.dirty.remove(&sector);
    }
}

/// The sectors of a range of bytes.
fn sectors(offset: usize, len: usize) -> impl Iterator<Item = u64> {
    let last = (offset + len).div_ceil(SECTOR_BYTES);
    (offset / SECTOR_BYTES..last).map(|sector| sector as u64)
}

/// The bytes of a sector; the last one may be short.
fn range(sector: u64, size: usize) -> core::ops::Range<usize> {
    let start = sector as usize * SECTOR_BYTES;
    start..(start + SECTOR_BYTES).min(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 64 * SECTOR_BYTES + 100;

    fn write(namespace: &mut Namespace, sector: usize, fill: u8, fua: bool) {
        let bytes = vec![fill; SECTOR_BYTES];
        let name = namespace.begin(0, (sector * SECTOR_BYTES) as u64, bytes, fua);
        namespace.finish(name.expect("it is in range"), None);
    }

    /// The value of each sector.
    fn values(namespace: &Namespace) -> Vec<u8> {
        let mut bytes = vec![0; 64 * SECTOR_BYTES];
        namespace.read(0, &mut bytes);
        for sector in bytes.chunks(SECTOR_BYTES) {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "written at once");
        }
        bytes.chunks(SECTOR_BYTES).map(|sector| sector[0]).collect()
    }

    #[test]
    fn what_was_flushed_outlasts_a_crash() {
        let mut lost = 0;
        for seed in 0..50 {
            let (mut namespace, mut rng) = (Namespace::new(SIZE), Prng::new(seed));
            for sector in 0..64 {
                write(&mut namespace, sector, 1, false);
            }
            let flush = namespace.begin_flush(0);
            write(&mut namespace, 7, 2, true);
            let late = namespace.begin_flush(0);
            for sector in 32..64 {
                write(&mut namespace, sector, 3, false);
            }
            let last = namespace.begin_flush(0);
            // In another order than they were asked for.
            namespace.finish_flush(late, false);
            namespace.finish_flush(flush, false);
            namespace.finish_flush(last, true);
            let torn = namespace.begin(0, 0, vec![9; 4 * SECTOR_BYTES], true).expect("in range");
            lost += namespace.crash(0, &mut rng);
            let after = values(&namespace);
            assert!(after[..4].iter().all(|v| [1, 9].contains(v)), "half written");
            assert!(after[4..7] == [1; 3] && after[7] == 2 && after[8..32] == [1; 24]);
            assert!(after[32..].iter().all(|v| [1, 3].contains(v)));
            namespace.finish(torn, None);
            assert_eq!(values(&namespace), after, "the machine is gone");
            namespace.crash(0, &mut rng);
            assert_eq!(values(&namespace), after, "a crash leaves nothing to be lost");
        }
        assert!((500..1100).contains(&lost), "{lost} of 1600");
    }

    #[test]
    fn ranges_are_checked() {
        let mut namespace = Namespace::new(SIZE);
        let size = SIZE as u64;
        for (offset, len) in [(size, 1), (size - 1, 2), (0, 0), (u64::MAX, 1)] {
            assert_eq!(namespace.begin(0, offset, vec![1; len], false), None);
        }
        let last = namespace.begin(0, size - 1, vec![5], true).expect("in range");
        namespace.finish(last, None);
        let mut byte = [0];
        namespace.read(size - 1, &mut byte);
        assert_eq!(byte, [5]);
    }
}
