//! The superblock ("The Super Block").

use abi::crypto::CryptoProvider;

use super::{Ext4Fault, Ext4Metadata, Ext4Stop, checksum, join, le16, le32};

/// Offset of the superblock in the file system.
const OFFSET: u64 = 1024;
/// Bytes of the superblock.
const BYTES: usize = 1024;
const MAGIC: u16 = 0xef53;
/// `s_state`: cleanly unmounted; errors were detected.
const STATE_VALID: u16 = 1;
const STATE_ERRORS: u16 = 2;

/// Incompatible features that readers may ignore or that this module handles: `filetype`,
/// `extents`, `64bit`, `mmp`, `flex_bg`, `ea_inode`, `metadata_csum_seed`, `large_dir`, `encrypt`
/// and `casefold` (whose files are looked up by their exact names).
const SUPPORTED: u32 =
    0x2 | 0x40 | INCOMPAT_64BIT | 0x100 | 0x200 | 0x400 | INCOMPAT_CSUM_SEED | 0x4000 | 0x30000;
const INCOMPAT_RECOVER: u32 = 0x4;
const INCOMPAT_64BIT: u32 = 0x80;
const INCOMPAT_CSUM_SEED: u32 = 0x2000;
/// Read-only compatible feature: checksums of metadata.
const RO_COMPAT_METADATA_CSUM: u32 = 0x400;

/// Parameters of a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ext4Superblock {
    /// Bytes of a block: 1 KiB to 64 KiB, a power of two.
    pub block_bytes: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// UUID of the file system.
    pub uuid: [u8; 16],
    pub(super) first_data_block: u32,
    pub(super) inodes: u32,
    pub(super) inodes_per_group: u32,
    pub(super) inode_bytes: u16,
    pub(super) descriptor_bytes: u16,
    /// Seed of all checksums; `None` without the feature.
    pub(super) seed: Option<u32>,
}

impl Ext4Superblock {
    /// Reads and checks the superblock of a file system of at most `bytes` bytes.
    ///
    /// # Errors
    /// No supported, clean file system is there, or the superblock is missing.
    pub fn read(
        metadata: &mut dyn Ext4Metadata,
        crypto: &dyn CryptoProvider,
        bytes: u64,
    ) -> Result<Self, Ext4Stop> {
        let mut raw = [0; BYTES];
        if bytes < OFFSET + BYTES as u64 {
            return Err(Ext4Fault::NoFileSystem.into());
        }
        metadata.read(OFFSET, &mut raw)?;
        Ok(Self::parse(&raw, crypto, bytes)?)
    }

    fn parse(
        raw: &[u8; BYTES],
        crypto: &dyn CryptoProvider,
        bytes: u64,
    ) -> Result<Self, Ext4Fault> {
        if le16(raw, 0x38) != MAGIC {
            return Err(Ext4Fault::NoFileSystem);
        }
        let has_checksums = le32(raw, 0x64) & RO_COMPAT_METADATA_CSUM != 0;
        if has_checksums && checksum(crypto, !0, &raw[..0x3fc]) != le32(raw, 0x3fc) {
            return Err(Ext4Fault::Checksum("the superblock"));
        }
        let incompat = le32(raw, 0x60);
        let state = le16(raw, 0x3a);
        if incompat & INCOMPAT_RECOVER != 0 || state & STATE_VALID == 0 {
            return Err(Ext4Fault::NeedsRecovery);
        }
        if state & STATE_ERRORS != 0 {
            return Err(Ext4Fault::HasErrors);
        }
        if incompat & !SUPPORTED != 0 {
            return Err(Ext4Fault::UnsupportedFeatures(incompat & !SUPPORTED));
        }
        let is_64bit = incompat & INCOMPAT_64BIT != 0;
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&raw[0x68..0x78]);
        let seed = if incompat & INCOMPAT_CSUM_SEED != 0 {
            le32(raw, 0x270)
        } else {
            checksum(crypto, !0, &uuid)
        };
        let log_block = le32(raw, 0x18);
        let superblock = Self {
            block_bytes: if log_block <= 6 { 1024 << log_block } else { 0 },
            blocks: join(le32(raw, 0x4), if is_64bit { le32(raw, 0x150) } else { 0 }),
            uuid,
            first_data_block: le32(raw, 0x14),
            inodes: le32(raw, 0),
            inodes_per_group: le32(raw, 0x28),
            inode_bytes: if le32(raw, 0x4c) == 0 { 128 } else { le16(raw, 0x58) },
            descriptor_bytes: if is_64bit { le16(raw, 0xfe) } else { 32 },
            seed: has_checksums.then_some(seed),
        };
        superblock.check(bytes)?;
        Ok(superblock)
    }

    fn check(&self, bytes: u64) -> Result<(), Ext4Fault> {
        let fits = |size: u16, least: u16| {
            size.is_power_of_two() && size >= least && u32::from(size) <= self.block_bytes
        };
        let is_valid = self.block_bytes > 0
            && self.inodes_per_group > 0
            && self.first_data_block == u32::from(self.block_bytes == 1024)
            && fits(self.inode_bytes, 128)
            && fits(self.descriptor_bytes, 32);
        if !is_valid {
            return Err(Ext4Fault::Corrupt("a field of the superblock"));
        }
        let len = self.blocks.checked_mul(self.block_bytes.into());
        if len.is_none_or(|len| len > bytes) {
            return Err(Ext4Fault::Corrupt("it is larger than its namespace"));
        }
        Ok(())
    }
}
