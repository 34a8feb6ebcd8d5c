//! The cache of file content: units of files, in the buffers in which the device placed them.
//!
//! Called by the operations. A unit is [`UNIT_BYTES`] of a file at a multiple of that, or less at
//! its end; it has one piece per buffer, so a contiguous unit has one. Send streams share the
//! pieces, so an evicted unit's memory lives until the last of them is acknowledged.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use bytes::Bytes;

use super::OperationId;

/// Bytes of a unit: what the host asks for at most, unless records are not aligned with the file.
pub(super) const UNIT_BYTES: u64 = ZEROS.len() as u64;
/// Buffers that are kept for the next reads.
const SPARES_MAX: usize = 64;

static ZEROS: [u8; 128 * 1024] = [0; 128 * 1024];

/// Name of a unit: the file's number, and the unit's index in the file.
pub(super) type UnitId = (u32, u64);

/// A buffer that pieces share.
#[derive(Clone, Debug)]
struct SharedBuf(Arc<AlignedBuf>);

impl AsRef<[u8]> for SharedBuf {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

/// Consecutive bytes of a unit.
#[derive(Debug)]
pub(super) struct UnitPiece {
    pub(super) bytes: Bytes,
    /// `None` for zeros.
    buffer: Option<SharedBuf>,
}

impl UnitPiece {
    /// Creates a piece from `len` bytes of a buffer.
    pub(super) fn placed(buffer: AlignedBuf, skip: usize, len: usize) -> Self {
        let buffer = SharedBuf(Arc::new(buffer));
        let bytes = Bytes::from_owner(buffer.clone()).slice(skip..skip + len);
        Self { bytes, buffer: Some(buffer) }
    }

    /// Creates a piece of zeros, at most [`UNIT_BYTES`].
    pub(super) fn zeros(len: usize) -> Self {
        Self { bytes: Bytes::from_static(&ZEROS).slice(..len), buffer: None }
    }

    fn memory(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.0.len())
    }
}

/// State of a unit.
#[derive(Debug)]
pub(super) enum UnitState {
    /// An operation fetches it; others wait.
    Fetching(Vec<OperationId>),
    Ready(Vec<UnitPiece>),
}

#[derive(Debug)]
struct CachedUnit {
    state: UnitState,
    used: bool,
}

/// The cache.
#[derive(Debug)]
pub(super) struct UnitCache {
    units: BTreeMap<UnitId, CachedUnit>,
    /// The order in which ready units are considered for eviction.
    clock: VecDeque<UnitId>,
    /// Memory of ready units, in bytes.
    bytes: usize,
    bytes_max: usize,
    spares: Vec<AlignedBuf>,
}

impl UnitCache {
    pub(super) fn new(bytes_max: usize) -> Self {
        let (units, clock) = (BTreeMap::new(), VecDeque::new());
        Self { units, clock, bytes: 0, bytes_max, spares: Vec::new() }
    }

    /// Returns the memory of the units, in bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the memory above which units are evicted, in bytes.
    pub(super) const fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Returns a unit, which counts as used.
    pub(super) fn get(&mut self, unit: UnitId) -> Option<&mut UnitState> {
        let cached = self.units.get_mut(&unit)?;
        cached.used = true;
        Some(&mut cached.state)
    }

    /// Returns whether a unit is in the cache or being fetched.
    pub(super) fn contains(&self, unit: UnitId) -> bool {
        self.units.contains_key(&unit)
    }

    /// Notes that a unit is being fetched.
    pub(super) fn begin(&mut self, unit: UnitId) {
        let state = UnitState::Fetching(Vec::new());
        self.units.insert(unit, CachedUnit { state, used: false });
    }

    /// Stores a fetched unit. Returns the operations that waited for it.
    pub(super) fn store(&mut self, unit: UnitId, pieces: Vec<UnitPiece>) -> Vec<OperationId> {
        let Some(cached) = self.units.get_mut(&unit) else { return Vec::new() };
        self.bytes += pieces.iter().map(UnitPiece::memory).sum::<usize>();
        let before = core::mem::replace(&mut cached.state, UnitState::Ready(pieces));
        // Until the waiters have read it.
        cached.used = true;
        self.clock.push_back(unit);
        match before {
            UnitState::Fetching(waiters) => waiters,
            UnitState::Ready(_) => Vec::new(),
        }
    }

    /// Removes a unit that could not be fetched. Returns the operations that waited for it.
    pub(super) fn fail(&mut self, unit: UnitId) -> Vec<OperationId> {
        match self.units.remove(&unit).map(|cached| cached.state) {
            Some(UnitState::Fetching(waiters)) => waiters,
            _ => Vec::new(),
        }
    }

    /// Removes the next unit that has to go because the cache is too large, and returns its name.
    pub(super) fn evict(&mut self) -> Option<UnitId> {
        while self.bytes > self.bytes_max {
            let unit = self.clock.pop_front()?;
            let Some(cached) = self.units.get_mut(&unit) else { continue };
            if core::mem::take(&mut cached.used) {
                self.clock.push_back(unit);
                continue;
            }
            self.remove(unit);
            return Some(unit);
        }
        None
    }

    /// Removes the ready units of a file, and returns their number.
    pub(super) fn remove_file(&mut self, file: u32) -> usize {
        let all = self.units.range((file, 0)..=(file, u64::MAX));
        let ready = all.filter(|(_, cached)| matches!(cached.state, UnitState::Ready(_)));
        let ready: Vec<UnitId> = ready.map(|(unit, _)| *unit).collect();
        self.clock.retain(|(of, _)| *of != file);
        ready.iter().for_each(|unit| self.remove(*unit));
        ready.len()
    }

    fn remove(&mut self, unit: UnitId) {
        let Some(UnitState::Ready(pieces)) = self.units.remove(&unit).map(|cached| cached.state)
        else {
            return;
        };
        for UnitPiece { bytes, buffer } in pieces {
            drop(bytes);
            let Some(SharedBuf(buffer)) = buffer else { continue };
            self.bytes -= buffer.len();
            // Kept only if no send stream and no frame holds it.
            if let Some(buffer) = Arc::into_inner(buffer) {
                self.recycle(buffer);
            }
        }
    }

    /// Keeps a buffer for the next read if it has the usual size.
    pub(super) fn recycle(&mut self, buffer: AlignedBuf) {
        if buffer.len() as u64 == UNIT_BYTES && self.spares.len() < SPARES_MAX {
            self.spares.push(buffer);
        }
    }

    /// Returns a buffer of at least `bytes` bytes.
    pub(super) fn buffer(&mut self, bytes: usize) -> AlignedBuf {
        let spare = if bytes as u64 == UNIT_BYTES { self.spares.pop() } else { None };
        spare.unwrap_or_else(|| AlignedBuf::new(bytes.div_ceil(PAGE_BYTES).max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece() -> Vec<UnitPiece> {
        vec![UnitPiece::placed(AlignedBuf::new(32), 0, 128 * 1024)]
    }

    #[test]
    fn units_are_bounded_and_their_memory_is_used_again() {
        let mut cache = UnitCache::new(2 * 128 * 1024);
        let mut evicted = 0;
        for unit in 0..10 {
            cache.begin((1, unit));
            if let Some(UnitState::Fetching(waiters)) = cache.get((1, unit)) {
                waiters.push(9);
            }
            assert_eq!(cache.store((1, unit), piece()), [9]);
            while cache.evict().is_some() {
                evicted += 1;
            }
        }
        assert_eq!((cache.bytes(), evicted, cache.units.len()), (2 * 128 * 1024, 8, 2));
        assert_eq!(cache.spares.len(), 8);
        assert_eq!(cache.buffer(128 * 1024).len(), 128 * 1024);
        assert_eq!(cache.spares.len(), 7);
        assert_eq!((cache.remove_file(1), cache.bytes()), (2, 0));
    }

    #[test]
    fn memory_that_a_stream_holds_is_not_used_again() {
        let mut cache = UnitCache::new(0);
        cache.begin((1, 0));
        cache.store((1, 0), piece());
        let Some(UnitState::Ready(pieces)) = cache.get((1, 0)) else { panic!("it is there") };
        let held = pieces[0].bytes.slice(5..10);
        assert_eq!(cache.evict(), Some((1, 0)));
        assert!(cache.spares.is_empty() && held == [0; 5][..]);
    }
}
