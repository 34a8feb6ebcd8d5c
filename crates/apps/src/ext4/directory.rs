//! Directories ("Directory Entries"): linear, or a hash tree whose leaves are linear.

use super::inode::FLAG_INDEX;
use super::{Ext4, Ext4Fault, Ext4FileKind, Ext4Inode, Ext4Metadata, Ext4Stop, le16, le32};

/// Largest directory that is searched, in bytes: about 80,000 names.
pub(super) const DIRECTORY_BYTES_MAX: u64 = 8 << 20;
/// Bytes of the entry at the end of a block that holds its checksum.
const TAIL_BYTES: usize = 12;
/// Kind of that entry.
const TAIL_KIND: u8 = 0xde;
/// Missing blocks that are asked for at once.
const MISSING_MAX: usize = 32;
const CORRUPT: Ext4Fault = Ext4Fault::Corrupt("a directory");

impl Ext4<'_> {
    /// Returns the inode number of a name; `None` if the directory does not have it.
    pub(super) fn find(
        &self,
        metadata: &mut dyn Ext4Metadata,
        directory: &Ext4Inode,
        name: &[u8],
    ) -> Result<Option<u32>, Ext4Stop> {
        if directory.kind != Ext4FileKind::Directory {
            return Err(Ext4Fault::BadPath.into());
        }
        if directory.size > DIRECTORY_BYTES_MAX {
            return Err(Ext4Fault::Corrupt("a directory of more than 8 MiB").into());
        }
        let blocks = directory.size / u64::from(self.superblock.block_bytes);
        let runs = self.map(metadata, directory, 0, blocks)?;
        let mut block = vec![0; self.block_bytes()];
        let mut missing = 0;
        for run in runs {
            let Some(start) = run.start else { return Err(CORRUPT.into()) };
            for index in 0..run.blocks {
                match self.read_block(metadata, start + index, &mut block) {
                    Err(Ext4Stop::Missing) => missing += 1,
                    Err(fault) => return Err(fault),
                    Ok(()) => {
                        let is_root = run.file_block + index == 0;
                        let found = self.find_in_block(directory, is_root, &block, name)?;
                        if found.is_some() {
                            return Ok(found);
                        }
                    }
                }
                if missing == MISSING_MAX {
                    return Err(Ext4Stop::Missing);
                }
            }
        }
        if missing > 0 { Err(Ext4Stop::Missing) } else { Ok(None) }
    }

    fn find_in_block(
        &self,
        directory: &Ext4Inode,
        is_root: bool,
        block: &[u8],
        name: &[u8],
    ) -> Result<Option<u32>, Ext4Fault> {
        // Inner nodes of a hash tree look like a block with unused entries. They have another
        // checksum, and no names.
        let is_index = directory.flags & FLAG_INDEX != 0;
        let is_inner = le32(block, 0) == 0 && entry_bytes(block, block.len()) == block.len();
        if is_index && (is_root || is_inner) {
            return Ok(None);
        }
        let mut end = block.len();
        if let Some(seed) = directory.seed {
            end -= TAIL_BYTES;
            let (covered, tail) = block.split_at(end);
            if le16(tail, 4) != 12 || tail[7] != TAIL_KIND {
                return Err(CORRUPT);
            }
            if self.checksum(seed, covered) != le32(tail, 8) {
                return Err(Ext4Fault::Checksum("a directory"));
            }
        }
        let mut at = 0;
        while at + 8 <= end {
            let entry = &block[at..end];
            let len = entry_bytes(entry, block.len());
            let name_len = usize::from(entry[6]);
            if len < 8 + name_len || len > entry.len() || len % 4 != 0 {
                return Err(CORRUPT);
            }
            let number = le32(entry, 0);
            if number != 0 && entry.get(8..8 + name_len) == Some(name) {
                return Ok(Some(number));
            }
            at += len;
        }
        Ok(None)
    }
}

/// Returns the length of an entry. In blocks of 64 KiB the whole block is 0 or 65535, and lower
/// bits extend the range (`ext4_rec_len_from_disk`).
fn entry_bytes(entry: &[u8], block_bytes: usize) -> usize {
    let len = usize::from(le16(entry, 4));
    if block_bytes < 65_536 {
        return len;
    }
    match len {
        0 | 65_535 => block_bytes,
        _ => (len & 65_532) | (len & 3) << 16,
    }
}
