//! File content in streams, represented by placeholder zeros.
//!
//! quinn-proto keeps the data of a stream until it is acknowledged. For file content it gets zeros,
//! in chunks of one static block ([`PlaceholderChunk`]); this module maps them to ranges of files.
//! Every packet is looked up when it is sent, so a retransmission may cut the data anew.
//! quinn-proto does not report acknowledgments, but drops a chunk when all of it is acknowledged
//! (in order), when the stream is reset, or when the connection ends; dropping a chunk releases its
//! range.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use abi::{FileExtent, FileId};
use bytes::Bytes;
use smallvec::SmallVec;

use crate::QuicHandle;

/// Maximum length of a chunk.
pub(crate) const CHUNK_BYTES: usize = 64 * 1024;

static ZEROS: [u8; CHUNK_BYTES] = [0; CHUNK_BYTES];

/// A range of a stream whose bytes come from a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileRange {
    /// Connection of the stream.
    pub(crate) connection: QuicHandle,
    /// Stream number.
    pub(crate) stream: u64,
    /// Stream offset of the first byte.
    pub(crate) start: u64,
    /// Length in bytes.
    pub(crate) len: u64,
    /// File that holds the bytes.
    pub(crate) file: FileId,
    /// File offset of the first byte.
    pub(crate) offset: u64,
}

/// Ranges whose chunks quinn-proto has dropped.
pub(crate) type ReleasedRanges = Arc<Mutex<Vec<FileRange>>>;

/// Owner of placeholder zeros; releases its range when it is dropped.
struct PlaceholderChunk {
    range: FileRange,
    released: ReleasedRanges,
}

impl AsRef<[u8]> for PlaceholderChunk {
    fn as_ref(&self) -> &[u8] {
        // A chunk is at most as long as the static block.
        usize::try_from(self.range.len).ok().and_then(|len| ZEROS.get(..len)).unwrap_or(&ZEROS)
    }
}

impl Drop for PlaceholderChunk {
    fn drop(&mut self) {
        self.released.lock().unwrap_or_else(PoisonError::into_inner).push(self.range);
    }
}

/// Returns placeholder zeros for a range of at most [`CHUNK_BYTES`].
pub(crate) fn placeholder_zeros(place: FileRange, released: &ReleasedRanges) -> Bytes {
    Bytes::from_owner(PlaceholderChunk { range: place, released: Arc::clone(released) })
}

/// Bytes of a packet to be filled from a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placeholder {
    /// Offset of the first byte in the packet, datagram or batch that the owner describes.
    pub(crate) at: usize,
    /// Length in bytes.
    pub(crate) len: usize,
    /// File that holds the bytes.
    pub(crate) file: FileId,
    /// File offset of the first byte.
    pub(crate) offset: u64,
}

impl Placeholder {
    /// Returns the file extent that replaces the placeholder.
    pub(crate) fn extent(&self) -> FileExtent {
        // A placeholder is shorter than a datagram.
        let len = u32::try_from(self.len).unwrap_or(u32::MAX);
        FileExtent { file: self.file, offset: self.offset, len }
    }
}

/// Holes of a datagram, in order.
pub(crate) type Placeholders = SmallVec<[Placeholder; 2]>;

/// File ranges of a connection that are not fully acknowledged.
#[derive(Debug, Default)]
pub(crate) struct StreamFileMap {
    /// Ranges by stream number and stream offset, each with the length that was sent so far.
    ranges: BTreeMap<(u64, u64), (FileRange, u64)>,
}

impl StreamFileMap {
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(crate) fn insert(&mut self, place: FileRange) {
        self.ranges.insert((place.stream, place.start), (place, 0));
    }

    pub(crate) fn remove(&mut self, place: &FileRange) {
        self.ranges.remove(&(place.stream, place.start));
    }

    /// Forgets a stream, which sends nothing more.
    pub(crate) fn remove_stream(&mut self, stream: u64) {
        self.ranges.retain(|(of, _), _| *of != stream);
    }

    /// Returns the streams that have file ranges; a stream appears once per range.
    pub(crate) fn streams(&self) -> impl Iterator<Item = u64> + '_ {
        self.ranges.keys().map(|(stream, _)| *stream)
    }

    /// Returns a file that has ranges and satisfies `matches`.
    pub(crate) fn find_file(&self, matches: impl Fn(FileId) -> bool) -> Option<FileId> {
        self.ranges.values().map(|(place, _)| place.file).find(|file| matches(*file))
    }

    /// Returns whether a stream has a range of that file.
    pub(crate) fn has_file(&self, stream: u64, file: FileId) -> bool {
        let all = self.ranges.range((stream, 0)..=(stream, u64::MAX));
        all.into_iter().any(|(_, (place, _))| place.file == file)
    }

    /// Appends the placeholders of a STREAM frame whose bytes lie at `data`. Returns whether all
    /// file content in the frame is sent for the first time.
    pub(crate) fn collect_placeholders(
        &mut self,
        stream: u64,
        offset: u64,
        data: Range<usize>,
        holes: &mut Placeholders,
    ) -> bool {
        let end = offset + data.len() as u64;
        // Nearly always one range covers the whole frame.
        let last = self.ranges.range_mut(..(stream, end)).next_back();
        if let Some((_, (place, sent))) = last.filter(|(key, (place, _))| {
            key.0 == stream && key.1 <= offset && end <= place.start + place.len && offset < end
        }) {
            let first = offset - place.start >= *sent;
            *sent = (*sent).max(end - place.start);
            let (len, at) = (data.len(), place.offset + (offset - place.start));
            holes.push(Placeholder { at: data.start, len, file: place.file, offset: at });
            return first;
        }
        let before = self.ranges.range(..=(stream, offset)).next_back().map(|(key, _)| *key);
        let from = before.filter(|key| key.0 == stream).unwrap_or((stream, offset));
        let mut first = true;
        for (_, (place, sent)) in self.ranges.range_mut(from..(stream, end.max(from.1 + 1))) {
            let (begin, stop) = (place.start.max(offset), (place.start + place.len).min(end));
            if begin >= stop {
                continue;
            }
            first &= begin - place.start >= *sent;
            *sent = (*sent).max(stop - place.start);
            // Both are less than the length of a datagram.
            let (Ok(into), Ok(len)) =
                (usize::try_from(begin - offset), usize::try_from(stop - begin))
            else {
                continue;
            };
            let at = place.offset + (begin - place.start);
            holes.push(Placeholder { at: data.start + into, len, file: place.file, offset: at });
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place(stream: u64, start: u64, len: u64) -> FileRange {
        let file = FileId(u32::try_from(stream).unwrap());
        FileRange {
            connection: QuicHandle { index: 0, serial: 1 },
            stream,
            start,
            len,
            file,
            offset: 1000 + start,
        }
    }

    #[test]
    fn placeholders_are_found_in_any_range() {
        let mut placed = StreamFileMap::default();
        placed.insert(place(4, 10, 5));
        placed.insert(place(4, 15, 5));
        placed.insert(place(8, 12, 4));
        let mut holes = Placeholders::new();
        assert!(placed.collect_placeholders(4, 8, 100..112, &mut holes));
        let hole = |at, len, offset| Placeholder { at, len, file: FileId(4), offset };
        assert_eq!(holes[..], [hole(102, 5, 1010), hole(107, 5, 1015)]);
        holes.clear();
        assert!(!placed.collect_placeholders(4, 12, 0..2, &mut holes), "sent before");
        assert_eq!(holes[..], [hole(0, 2, 1012)]);
        holes.clear();
        assert!(placed.collect_placeholders(4, 0, 0..10, &mut holes) && holes.is_empty());
        assert!(placed.collect_placeholders(0, 10, 0..10, &mut holes) && holes.is_empty());
        assert!(placed.collect_placeholders(4, 20, 0..0, &mut holes) && holes.is_empty());
    }

    #[test]
    fn dropped_chunk_releases_its_range() {
        let released = ReleasedRanges::default();
        let mut bytes = placeholder_zeros(place(4, 0, 100), &released);
        let rest = bytes.split_off(40);
        drop(bytes);
        assert!(released.lock().unwrap().is_empty());
        drop(rest);
        assert_eq!(*released.lock().unwrap(), [place(4, 0, 100)]);
    }

    proptest! {
        /// The holes equal the file ranges byte by byte.
        #[test]
        fn as_byte_by_byte(
            places in proptest::collection::vec((0_u64..20, 1_u64..10), 0..6),
            cut in (0_u64..120, 0_usize..60),
        ) {
            let mut placed = StreamFileMap::default();
            let (mut at, mut of) = (0, vec![None; 300]);
            for (gap, len) in places {
                let place = place(4, at + gap, len);
                placed.insert(place);
                for i in place.start..place.start + len {
                    of[usize::try_from(i).unwrap()] = Some(1000 + i);
                }
                at = place.start + len;
            }
            let mut holes = Placeholders::new();
            placed.collect_placeholders(4, cut.0, 7..7 + cut.1, &mut holes);
            let mut seen = vec![None; cut.1];
            for hole in holes {
                for i in 0..hole.len {
                    seen[hole.at - 7 + i] = Some(hole.offset + i as u64);
                }
            }
            let begin = usize::try_from(cut.0).unwrap();
            prop_assert_eq!(&seen[..], &of[begin..begin + cut.1]);
        }
    }
}
