//! Reading ext4 file systems, sans-IO: from a path to an inode, and from a range of a file to its
//! blocks.
//!
//! Called by [`crate::remote`], which reads the blocks of files itself, so that their bytes never
//! pass through this module. Metadata is read through [`Ext4Metadata`], whose implementation may
//! answer [`Ext4Stop::Missing`]: then the caller fetches the missing pages and calls again from the
//! beginning. Nothing is kept between calls.
//!
//! The image is hostile input. Every number in it is checked before it is used, every loop is
//! bounded, and checksums are verified if the file system has them. Invariant: a returned run of
//! blocks lies within the file system.
//!
//! Not supported: file systems that need recovery of their journal, block maps (ext2 and ext3),
//! inline data, encrypted and compressed files. Hash trees of directories are not used: a lookup
//! reads the leaves in order.
//!
//! Layout: the kernel's `Documentation/filesystems/ext4`, cited below by its headings.

mod directory;
mod extents;
mod inode;
mod lookup;
mod superblock;

pub use extents::Ext4Run;
pub use inode::{Ext4FileKind, Ext4Inode};
pub use superblock::Ext4Superblock;

use abi::crypto::CryptoProvider;

/// Inode number of the root directory.
pub const ROOT_INODE: u32 = 2;

/// Reader of metadata.
pub trait Ext4Metadata {
    /// Reads `buf.len()` bytes at `offset` of the file system.
    ///
    /// # Errors
    /// [`Ext4Stop::Missing`] if the bytes are not in memory.
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), Ext4Stop>;
}

/// Reason for which a call returned no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ext4Stop {
    /// Metadata is not in memory: fetch it and call again.
    Missing,
    /// The result is this error.
    Fault(Ext4Fault),
}

impl From<Ext4Fault> for Ext4Stop {
    fn from(fault: Ext4Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Errors of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Ext4Fault {
    /// The magic number is missing.
    #[error("no ext4 file system")]
    NoFileSystem,
    /// The journal has to be replayed, or the file system is mounted for writing.
    #[error("the file system needs recovery or is mounted for writing; unmount it, or run e2fsck")]
    NeedsRecovery,
    /// The kernel or e2fsck recorded errors.
    #[error("the file system has errors; run e2fsck")]
    HasErrors,
    /// A feature that readers must know is not supported; these are the unknown bits of
    /// `s_feature_incompat`.
    #[error("the file system has unsupported features: incompat {0:#x}")]
    UnsupportedFeatures(u32),
    /// The file is encrypted, compressed, inline or has a block map.
    #[error("a file of an unsupported kind: inode flags {0:#x}")]
    UnsupportedFile(u32),
    /// A structure is invalid.
    #[error("the file system is corrupt: {0}")]
    Corrupt(&'static str),
    /// A checksum is wrong.
    #[error("the file system is corrupt: wrong checksum of {0}")]
    Checksum(&'static str),
    /// No such file.
    #[error("no such file")]
    NotFound,
    /// A component of a path is not a directory, is too long, or there are too many symbolic links.
    #[error("bad path")]
    BadPath,
}

/// A file system: its parameters, for the calls of this module.
#[derive(Clone, Copy)]
pub struct Ext4<'a> {
    /// The superblock.
    pub superblock: &'a Ext4Superblock,
    /// Computes checksums.
    pub crypto: &'a dyn CryptoProvider,
}

impl Ext4<'_> {
    fn block_bytes(&self) -> usize {
        self.superblock.block_bytes as usize
    }

    /// Continues a checksum over `bytes`. The kernel's CRC32C neither begins nor ends with an
    /// inversion, in contrast to the digest of NVMe/TCP.
    fn checksum(&self, seed: u32, bytes: &[u8]) -> u32 {
        checksum(self.crypto, seed, bytes)
    }

    /// Reads a block of the file system.
    fn read_block(
        &self,
        metadata: &mut dyn Ext4Metadata,
        block: u64,
        buf: &mut [u8],
    ) -> Result<(), Ext4Stop> {
        if block == 0 || block >= self.superblock.blocks {
            return Err(Ext4Fault::Corrupt("a block number beyond the end").into());
        }
        metadata.read(block * u64::from(self.superblock.block_bytes), buf)
    }
}

fn checksum(crypto: &dyn CryptoProvider, seed: u32, bytes: &[u8]) -> u32 {
    !crypto.crc32c(!seed, bytes)
}

/// Returns the little-endian number at `at`; zero beyond the end of `bytes`.
fn le16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]))
}

/// As [`le16`].
fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from(le16(bytes, at)) | u32::from(le16(bytes, at + 2)) << 16
}

/// Joins the low and the high half of a number.
fn join(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

#[cfg(test)]
mod tests;
