//! Group descriptors ("Block Group Descriptors") and inodes ("Index Nodes").

use core::hash::{Hash, Hasher};

use siphasher::sip::SipHasher13;

use super::{Ext4, Ext4Fault, Ext4Metadata, Ext4Stop, join, le16, le32};

/// Largest inode: that of the largest block.
const INODE_BYTES_MAX: usize = 4096;
/// Offsets of the fields that are not part of the version: access time, checksums.
const ATIME: usize = 0x8;
const CHECKSUM_LOW: usize = 0x7c;
const CHECKSUM_HIGH: usize = 0x82;
/// The part of an inode that every file system has.
const BASE_BYTES: usize = 128;

const FLAG_ENCRYPTED: u32 = 0x800;
pub(super) const FLAG_INDEX: u32 = 0x1000;
const FLAG_COMPRESSED: u32 = 0x4;
const FLAG_EXTENTS: u32 = 0x8_0000;
const FLAG_INLINE: u32 = 0x1000_0000;

/// Kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ext4FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A device, FIFO or socket.
    Other,
}

/// An inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ext4Inode {
    /// Inode number.
    pub number: u32,
    /// Kind of the file.
    pub kind: Ext4FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Time of last modification, in seconds since 1970-01-01 UTC.
    pub modified_s: i64,
    /// Nanoseconds of that time.
    pub modified_ns: u32,
    /// Hash of the inode and the file system's UUID, except for access time and checksum. Every
    /// change of the content changes it, because it changes ctime.
    pub version: u64,
    /// Root of the extent tree, or the target of a short symbolic link.
    pub(super) block: [u8; 60],
    pub(super) flags: u32,
    /// Seed of the checksums of the inode's blocks.
    pub(super) seed: Option<u32>,
}

impl Ext4Inode {
    /// Checks that the content lies in extents.
    ///
    /// # Errors
    /// It is encrypted, compressed, inline or in a block map.
    pub fn check_extents(&self) -> Result<(), Ext4Fault> {
        let other = self.flags & (FLAG_ENCRYPTED | FLAG_COMPRESSED | FLAG_INLINE) != 0;
        if other || self.flags & FLAG_EXTENTS == 0 {
            return Err(Ext4Fault::UnsupportedFile(self.flags));
        }
        Ok(())
    }

    /// Returns the target of a symbolic link that is stored in the inode.
    pub(super) fn short_target(&self) -> Option<&[u8]> {
        let len = usize::try_from(self.size).ok()?;
        if self.flags & (FLAG_EXTENTS | FLAG_ENCRYPTED | FLAG_INLINE) != 0 {
            return None;
        }
        self.block.get(..len)
    }
}

impl Ext4<'_> {
    /// Reads an inode.
    ///
    /// # Errors
    /// The number or the inode is invalid, or metadata is missing. An unused inode is
    /// [`Ext4Fault::NotFound`].
    pub fn inode(
        &self,
        metadata: &mut dyn Ext4Metadata,
        number: u32,
    ) -> Result<Ext4Inode, Ext4Stop> {
        let superblock = self.superblock;
        if number == 0 || number > superblock.inodes {
            return Err(Ext4Fault::Corrupt("an inode number beyond the end").into());
        }
        let group = (number - 1) / superblock.inodes_per_group;
        let index = (number - 1) % superblock.inodes_per_group;
        let table = self.inode_table(metadata, group)?;
        let bytes = u64::from(superblock.inode_bytes);
        let offset = table
            .checked_mul(superblock.block_bytes.into())
            .and_then(|at| at.checked_add(u64::from(index) * bytes))
            .filter(|at| at + bytes <= superblock.blocks * u64::from(superblock.block_bytes))
            .ok_or(Ext4Fault::Corrupt("an inode table beyond the end"))?;
        let mut raw = [0; INODE_BYTES_MAX];
        let raw = raw
            .get_mut(..usize::from(superblock.inode_bytes))
            .ok_or(Ext4Fault::Corrupt("the size of inodes"))?;
        metadata.read(offset, raw)?;
        Ok(self.parse_inode(number, raw)?)
    }

    /// Returns the first block of a group's inode table.
    fn inode_table(&self, metadata: &mut dyn Ext4Metadata, group: u32) -> Result<u64, Ext4Stop> {
        let superblock = self.superblock;
        let mut raw = [0; 1024];
        let len = usize::from(superblock.descriptor_bytes);
        let raw = raw.get_mut(..len).ok_or(Ext4Fault::Corrupt("the size of descriptors"))?;
        let table =
            (u64::from(superblock.first_data_block) + 1) * u64::from(superblock.block_bytes);
        let offset = table + u64::from(group) * u64::from(superblock.descriptor_bytes);
        if offset + len as u64 > superblock.blocks * u64::from(superblock.block_bytes) {
            return Err(Ext4Fault::Corrupt("a group beyond the end").into());
        }
        metadata.read(offset, raw)?;
        if let Some(seed) = superblock.seed {
            let stored = le16(raw, 0x1e);
            let mut sum = self.checksum(seed, &group.to_le_bytes());
            sum = self.checksum(sum, &raw[..0x1e]);
            sum = self.checksum(sum, &[0; 2]);
            sum = self.checksum(sum, &raw[0x20..]);
            if sum & 0xffff != u32::from(stored) {
                return Err(Ext4Fault::Checksum("a group descriptor").into());
            }
        }
        Ok(join(le32(raw, 0x8), if raw.len() >= 64 { le32(raw, 0x28) } else { 0 }))
    }

    fn parse_inode(&self, number: u32, raw: &[u8]) -> Result<Ext4Inode, Ext4Fault> {
        // Fields beyond the first 128 bytes exist if `i_extra_isize` covers them.
        let extra = if raw.len() > BASE_BYTES { usize::from(le16(raw, 0x80)) } else { 0 };
        let has = |end: usize| BASE_BYTES + extra >= end && raw.len() >= end;
        let seed = self.superblock.seed.map(|seed| {
            let sum = self.checksum(seed, &number.to_le_bytes());
            self.checksum(sum, &raw[0x64..0x68])
        });
        if let Some(seed) = seed {
            self.check_inode(seed, raw, has(CHECKSUM_HIGH + 2))?;
        }
        if le16(raw, 0x1a) == 0 {
            return Err(Ext4Fault::NotFound);
        }
        let kind = match le16(raw, 0) & 0xf000 {
            0x8000 => Ext4FileKind::Regular,
            0x4000 => Ext4FileKind::Directory,
            0xa000 => Ext4FileKind::Link,
            _ => Ext4FileKind::Other,
        };
        let (modified_s, modified_ns) = modified(raw, has(0x8c));
        let mut block = [0; 60];
        block.copy_from_slice(&raw[0x28..0x64]);
        Ok(Ext4Inode {
            number,
            kind,
            size: join(le32(raw, 0x4), le32(raw, 0x6c)),
            modified_s,
            modified_ns,
            version: self.version(number, raw),
            block,
            flags: le32(raw, 0x20),
            seed,
        })
    }

    fn check_inode(&self, seed: u32, raw: &[u8], has_high: bool) -> Result<(), Ext4Fault> {
        let mut sum = self.checksum(seed, &raw[..CHECKSUM_LOW]);
        sum = self.checksum(sum, &[0; 2]);
        sum = self.checksum(sum, &raw[CHECKSUM_LOW + 2..BASE_BYTES]);
        if raw.len() > BASE_BYTES {
            sum = self.checksum(sum, &raw[BASE_BYTES..CHECKSUM_HIGH]);
            let high = if has_high { &[0; 2] } else { &raw[CHECKSUM_HIGH..CHECKSUM_HIGH + 2] };
            sum = self.checksum(sum, high);
            sum = self.checksum(sum, &raw[CHECKSUM_HIGH + 2..]);
        }
        let high = if has_high { le16(raw, CHECKSUM_HIGH) } else { 0 };
        let stored = u32::from(high) << 16 | u32::from(le16(raw, CHECKSUM_LOW));
        let mask = if has_high { !0 } else { 0xffff };
        if sum & mask == stored { Ok(()) } else { Err(Ext4Fault::Checksum("an inode")) }
    }

    fn version(&self, number: u32, raw: &[u8]) -> u64 {
        // The keys are fixed: entity-tags stay valid when a server restarts.
        let mut hasher = SipHasher13::new();
        (self.superblock.uuid, number).hash(&mut hasher);
        hasher.write(&raw[..ATIME]);
        hasher.write(&raw[ATIME + 4..CHECKSUM_LOW]);
        // ctime_extra and mtime_extra.
        hasher.write(raw.get(0x84..0x8c).unwrap_or_default());
        hasher.finish()
    }
}

/// Returns the time of last modification: 34 bits of seconds, if the inode has the extra field.
fn modified(raw: &[u8], has_extra: bool) -> (i64, u32) {
    let low = i64::from(i32::from_le_bytes(le32(raw, 0x10).to_le_bytes()));
    if !has_extra {
        return (low, 0);
    }
    let extra = le32(raw, 0x88);
    (low + (i64::from(extra & 3) << 32), (extra >> 2).min(999_999_999))
}
