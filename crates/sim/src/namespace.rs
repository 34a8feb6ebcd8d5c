//! Model of a namespace on the simulated disk: durable bytes and a volatile write cache.
//!
//! Written data is read from then on. After a crash with power loss, each unflushed sector or page
//! either survives or not, and writes in progress are applied in part.

use std::collections::{BTreeMap, BTreeSet};

use base::Prng;

/// Unit of atomic writes.
const SECTOR_BYTES: usize = 512;
/// Sectors of a page, the unit of write-back by a file system.
const PAGE_SECTORS: u64 = 8;

/// A write in progress.
#[derive(Debug)]
struct SimNamespaceWrite {
    node: usize,
    offset: usize,
    bytes: Vec<u8>,
    fua: bool,
}

/// Sectors to flush, with their contents when the flush began.
type Snapshot = Vec<(u64, Vec<u8>)>;

/// Model of a namespace. `node` parameters name the machine that writes or flushes.
#[derive(Debug)]
pub struct SimNamespace {
    /// Contents as read.
    current: Vec<u8>,
    /// Contents that survive any crash.
    durable: Vec<u8>,
    /// Sectors in which the two may differ.
    dirty: BTreeSet<u64>,
    /// Writes in progress by operation number.
    changes: BTreeMap<u64, SimNamespaceWrite>,
    flushes: BTreeMap<u64, (usize, Snapshot)>,
    next: u64,
}

impl SimNamespace {
    /// Returns a namespace of `size` zero bytes.
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

    /// Returns a namespace with that content.
    #[must_use]
    pub fn with_content(content: Vec<u8>) -> Self {
        let mut namespace = Self::new(0);
        namespace.durable.clone_from(&content);
        namespace.current = content;
        namespace
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.current.len() as u64
    }

    /// Adds zero bytes up to a size, a multiple of 512.
    pub fn grow(&mut self, size: usize) {
        for bytes in [&mut self.current, &mut self.durable] {
            bytes.resize(size.max(bytes.len()), 0);
        }
    }

    /// Copies the bytes at `offset`.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        let from = offset as usize;
        out.copy_from_slice(&self.current[from..from + out.len()]);
    }

    /// Begins a write and returns its operation number; `None` if the range is empty or out of
    /// bounds.
    pub fn begin(&mut self, node: usize, offset: u64, bytes: Vec<u8>, fua: bool) -> Option<u64> {
        let end = offset.checked_add(bytes.len() as u64)?;
        if bytes.is_empty() || end > self.size() {
            return None;
        }
        self.next += 1;
        self.changes
            .insert(self.next, SimNamespaceWrite { node, offset: offset as usize, bytes, fua });
        Some(self.next)
    }

    /// Completes a write; with `torn`, it failed and is applied in part.
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

    /// Begins a flush of everything written so far and returns its operation number.
    pub fn begin_flush(&mut self, node: usize) -> u64 {
        self.next += 1;
        let now =
            |&sector: &u64| (sector, self.current[range(sector, self.current.len())].to_vec());
        let snapshot = self.dirty.iter().map(now).collect();
        self.flushes.insert(self.next, (node, snapshot));
        self.next
    }

    /// Completes a flush; a failed one has no effect.
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

    /// Crashes a machine with loss of power: its writes in progress are applied in part, and of the
    /// unflushed data some sectors or pages are lost. Returns the number of sectors lost.
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

    /// Stops the programs of a machine: its writes in progress are applied in part, and completed
    /// writes are kept.
    pub fn stop(&mut self, node: usize, rng: &mut Prng) {
        self.flushes.retain(|_, flush| flush.0 != node);
        let all = core::mem::take(&mut self.changes);
        let (cut, others) = all.into_iter().partition(|(_, change)| change.node == node);
        self.changes = others;
        for change in BTreeMap::into_values(cut) {
            self.apply(&change, |_| rng.chance(0.5));
        }
    }

    /// Applies the sectors of a write for which `keep` returns true.
    fn apply(&mut self, change: &SimNamespaceWrite, mut keep: impl FnMut(u64) -> bool) {
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

    /// Removes a sector from flushes that began before `name`, whose contents of it are now
    /// outdated.
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

/// Returns the sectors that a range of bytes touches.
fn sectors(offset: usize, len: usize) -> impl Iterator<Item = u64> {
    let last = (offset + len).div_ceil(SECTOR_BYTES);
    (offset / SECTOR_BYTES..last).map(|sector| sector as u64)
}

/// Returns the byte range of a sector; the last one may be short.
fn range(sector: u64, size: usize) -> core::ops::Range<usize> {
    let start = sector as usize * SECTOR_BYTES;
    start..(start + SECTOR_BYTES).min(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 64 * SECTOR_BYTES + 100;

    fn write(namespace: &mut SimNamespace, sector: usize, fill: u8, fua: bool) {
        let bytes = vec![fill; SECTOR_BYTES];
        let name = namespace.begin(0, (sector * SECTOR_BYTES) as u64, bytes, fua);
        namespace.finish(name.expect("it is in range"), None);
    }

    /// Returns the value of each sector.
    fn values(namespace: &SimNamespace) -> Vec<u8> {
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
            let (mut namespace, mut rng) = (SimNamespace::new(SIZE), Prng::new(seed));
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
            // In another order than they began.
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
        let mut namespace = SimNamespace::new(SIZE);
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
