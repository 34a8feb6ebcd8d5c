//! The extent tree ("The Extent Tree").

use super::{Ext4, Ext4Fault, Ext4Inode, Ext4Metadata, Ext4Stop, le16, le32};

const MAGIC: u16 = 0xf30a;
/// Bytes of a node's header, and of each of its entries.
const ENTRY_BYTES: usize = 12;
/// Largest depth of the root.
const DEPTH_MAX: u16 = 5;
/// Lengths above this are of unwritten extents, which read as zeros.
const LEN_MAX: u32 = 32_768;
const CORRUPT: Ext4Fault = Ext4Fault::Corrupt("an extent tree");

/// Consecutive blocks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ext4Run {
    /// First block in the file.
    pub file_block: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// First block in the file system; `None` for zeros.
    pub start: Option<u64>,
}

/// The blocks of a file that are looked up: first, and after the last.
#[derive(Clone, Copy)]
struct FileBlocks {
    first: u64,
    end: u64,
}

impl Ext4<'_> {
    /// Returns the blocks of `count` blocks of a file from `first` on, in order and without gaps.
    ///
    /// # Errors
    /// The tree is invalid, metadata is missing, or the file does not use extents.
    pub fn map(
        &self,
        metadata: &mut dyn Ext4Metadata,
        inode: &Ext4Inode,
        first: u64,
        count: u64,
    ) -> Result<Vec<Ext4Run>, Ext4Stop> {
        inode.check_extents()?;
        let range = FileBlocks { first, end: first.saturating_add(count) };
        let mut found = Vec::new();
        let depth = le16(&inode.block, 6);
        if depth > DEPTH_MAX {
            return Err(CORRUPT.into());
        }
        self.walk(metadata, inode, &inode.block, depth, range, &mut found)?;
        Ok(with_holes(&found, range))
    }

    /// Collects the parts of a node's extents that lie in `range`. A child gets the part of the
    /// range that its entry covers: so the runs are in order whatever the tree contains, and no
    /// level has more nodes to read than the range has blocks.
    fn walk(
        &self,
        metadata: &mut dyn Ext4Metadata,
        inode: &Ext4Inode,
        node: &[u8],
        depth: u16,
        range: FileBlocks,
        found: &mut Vec<Ext4Run>,
    ) -> Result<(), Ext4Stop> {
        let entries = usize::from(le16(node, 2));
        let room = usize::from(le16(node, 4));
        if le16(node, 0) != MAGIC
            || le16(node, 6) != depth
            || entries > room
            || (room + 1) * ENTRY_BYTES > node.len()
        {
            return Err(CORRUPT.into());
        }
        let at = |index: usize| &node[(index + 1) * ENTRY_BYTES..];
        let block_of = |index: usize| u64::from(le32(at(index), 0));
        // All missing nodes of the range are asked for at once.
        let mut is_missing = false;
        for index in 0..entries {
            let first = block_of(index);
            // Strictly increasing: each entry has blocks of its own, which bounds the walk.
            if index > 0 && first <= block_of(index - 1) {
                return Err(CORRUPT.into());
            }
            let next = if index + 1 < entries { block_of(index + 1) } else { u64::MAX };
            if next <= range.first || first >= range.end {
                continue;
            }
            if depth == 0 {
                found.extend(self.extent(at(index), first, next, range)?);
                continue;
            }
            let child = u64::from(le32(at(index), 4)) | u64::from(le16(at(index), 8)) << 32;
            let part = FileBlocks { first: first.max(range.first), end: next.min(range.end) };
            match self.child(metadata, inode, child, depth - 1, part, found) {
                Err(Ext4Stop::Missing) => is_missing = true,
                other => other?,
            }
        }
        if is_missing { Err(Ext4Stop::Missing) } else { Ok(()) }
    }

    fn child(
        &self,
        metadata: &mut dyn Ext4Metadata,
        inode: &Ext4Inode,
        block: u64,
        depth: u16,
        range: FileBlocks,
        found: &mut Vec<Ext4Run>,
    ) -> Result<(), Ext4Stop> {
        let mut node = vec![0; self.block_bytes()];
        self.read_block(metadata, block, &mut node)?;
        if let Some(seed) = inode.seed {
            let tail = (usize::from(le16(&node, 4)) + 1) * ENTRY_BYTES;
            let covered = node.get(..tail).filter(|_| tail + 4 <= node.len()).ok_or(CORRUPT)?;
            if self.checksum(seed, covered) != le32(&node, tail) {
                return Err(Ext4Fault::Checksum("an extent tree").into());
            }
        }
        self.walk(metadata, inode, &node, depth, range, found)
    }

    /// Returns the part of an extent within `range`. The next extent begins at `next`.
    fn extent(
        &self,
        entry: &[u8],
        first: u64,
        next: u64,
        range: FileBlocks,
    ) -> Result<Option<Ext4Run>, Ext4Fault> {
        let raw = u32::from(le16(entry, 4));
        let is_written = raw <= LEN_MAX;
        let len = u64::from(if is_written { raw } else { raw - LEN_MAX });
        let start = u64::from(le32(entry, 8)) | u64::from(le16(entry, 6)) << 32;
        if len == 0 || first + len > next || start == 0 || start + len > self.superblock.blocks {
            return Err(CORRUPT);
        }
        let (from, to) = (first.max(range.first), (first + len).min(range.end));
        Ok((from < to).then(|| Ext4Run {
            file_block: from,
            blocks: to - from,
            start: is_written.then_some(start + (from - first)),
        }))
    }
}

/// Returns the runs with the holes between them, joined if they are adjacent on the disk.
fn with_holes(found: &[Ext4Run], range: FileBlocks) -> Vec<Ext4Run> {
    let mut runs: Vec<Ext4Run> = Vec::new();
    let mut at = range.first;
    let mut push = |run: Ext4Run| {
        if let Some(last) = runs.last_mut() {
            let follows = last.start.map(|start| start + last.blocks) == run.start;
            if follows || (last.start.is_none() && run.start.is_none()) {
                last.blocks += run.blocks;
                return;
            }
        }
        if run.blocks > 0 {
            runs.push(run);
        }
    };
    for run in found {
        push(Ext4Run { file_block: at, blocks: run.file_block.saturating_sub(at), start: None });
        push(*run);
        at = run.file_block + run.blocks;
    }
    push(Ext4Run { file_block: at, blocks: range.end.saturating_sub(at), start: None });
    runs
}
