//! Hostile images: random bytes, and valid structures with any byte changed.

use proptest::prelude::*;

use super::*;

/// A file system in memory.
struct Image(Vec<u8>);

impl Ext4Metadata for Image {
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), Ext4Stop> {
        let from = usize::try_from(offset).expect("small");
        let bytes = self.0.get(from..from + buf.len()).expect("within the image");
        buf.copy_from_slice(bytes);
        Ok(())
    }
}

const BLOCK: usize = 1024;
const BLOCKS: u32 = 64;

fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Writes an inode with one extent.
fn put_inode(image: &mut [u8], number: usize, mode: u16, size: u32, start: u32) {
    let at = 5 * BLOCK + (number - 1) * 128;
    put(image, at, &mode.to_le_bytes());
    put(image, at + 0x4, &size.to_le_bytes());
    put(image, at + 0x1a, &1_u16.to_le_bytes());
    put(image, at + 0x20, &0x8_0000_u32.to_le_bytes());
    put(image, at + 0x28, &[0x0a, 0xf3, 1, 0, 4, 0, 0, 0]);
    put(image, at + 0x34 + 4, &1_u16.to_le_bytes());
    put(image, at + 0x34 + 8, &start.to_le_bytes());
}

/// Returns a file system without checksums that has one file, `file`, in block 20.
fn image() -> Vec<u8> {
    let mut image = vec![0; BLOCK * BLOCKS as usize];
    let at = 1024;
    put(&mut image, at, &16_u32.to_le_bytes());
    put(&mut image, at + 0x4, &BLOCKS.to_le_bytes());
    put(&mut image, at + 0x14, &1_u32.to_le_bytes());
    put(&mut image, at + 0x28, &16_u32.to_le_bytes());
    put(&mut image, at + 0x38, &0xef53_u16.to_le_bytes());
    put(&mut image, at + 0x3a, &1_u16.to_le_bytes());
    put(&mut image, at + 0x4c, &1_u32.to_le_bytes());
    put(&mut image, at + 0x58, &128_u16.to_le_bytes());
    put(&mut image, at + 0x60, &0x42_u32.to_le_bytes());
    put(&mut image, 2 * BLOCK + 8, &5_u32.to_le_bytes());
    put_inode(&mut image, 2, 0x41ed, 1024, 10);
    put_inode(&mut image, 12, 0x81a4, 700, 20);
    put(&mut image, 10 * BLOCK, &12_u32.to_le_bytes());
    put(&mut image, 10 * BLOCK + 4, &[0, 4, 4, 1]);
    put(&mut image, 10 * BLOCK + 8, b"file");
    image
}

fn lookup(image: Vec<u8>, path: &[u8]) -> Result<(Ext4Inode, Vec<Ext4Run>), Ext4Stop> {
    let bytes = image.len() as u64;
    let mut image = Image(image);
    let superblock = Ext4Superblock::read(&mut image, &crypto::Provider, bytes)?;
    let system = Ext4 { superblock: &superblock, crypto: &crypto::Provider };
    let inode = system.lookup(&mut image, path)?;
    let runs = system.map(&mut image, &inode, 0, 4)?;
    for run in &runs {
        assert!(run.start.is_none_or(|start| start + run.blocks <= superblock.blocks));
    }
    Ok((inode, runs))
}

#[test]
fn a_file_is_found_with_its_blocks_and_holes() {
    let (inode, runs) = lookup(image(), b"/./file").expect("it is there");
    assert_eq!((inode.number, inode.size, inode.kind), (12, 700, Ext4FileKind::Regular));
    let run = |file_block, blocks, start| Ext4Run { file_block, blocks, start };
    assert_eq!(runs, [run(0, 1, Some(20)), run(1, 3, None)]);
    assert_eq!(lookup(image(), b"none"), Err(Ext4Fault::NotFound.into()));
    assert_eq!(lookup(image(), b"file/x"), Err(Ext4Fault::BadPath.into()));
    assert_eq!(lookup(image(), b"../../file").expect("the root is its own parent").0, inode);
}

#[test]
fn a_file_system_in_use_is_refused() {
    let mut dirty = image();
    put(&mut dirty, 1024 + 0x60, &0x46_u32.to_le_bytes());
    assert_eq!(lookup(dirty, b"file"), Err(Ext4Fault::NeedsRecovery.into()));
    let mut mounted = image();
    put(&mut mounted, 1024 + 0x3a, &0_u16.to_le_bytes());
    assert_eq!(lookup(mounted, b"file"), Err(Ext4Fault::NeedsRecovery.into()));
    let mut inline = image();
    put(&mut inline, 1024 + 0x60, &0x8042_u32.to_le_bytes());
    assert_eq!(lookup(inline, b"file"), Err(Ext4Fault::UnsupportedFeatures(0x8000).into()));
    let mut large = image();
    put(&mut large, 1024 + 0x4, &(BLOCKS + 1).to_le_bytes());
    assert!(matches!(lookup(large, b"file"), Err(Ext4Stop::Fault(Ext4Fault::Corrupt(_)))));
}

#[test]
fn blocks_beyond_the_end_are_refused() {
    for start in [0, BLOCKS, BLOCKS - 1, u32::MAX] {
        let mut image = image();
        put_inode(&mut image, 12, 0x81a4, 700, start);
        // An extent of two blocks.
        put(&mut image, 5 * BLOCK + 11 * 128 + 0x34 + 4, &2_u16.to_le_bytes());
        let fault = lookup(image, b"file");
        assert!(matches!(fault, Err(Ext4Stop::Fault(Ext4Fault::Corrupt(_)))), "{start}: {fault:?}");
    }
}

#[test]
fn a_root_that_is_no_directory_is_refused() {
    let mut image = image();
    put_inode(&mut image, 2, 0xa1ff, 1024, 10);
    let corrupt = Err(Ext4Fault::Corrupt("the root directory").into());
    assert_eq!(lookup(image, b"."), corrupt);
}

#[test]
fn a_version_ignores_the_access_time_only() {
    let version = |offset: usize| {
        let mut changed = image();
        changed[5 * BLOCK + 11 * 128 + offset] ^= 1;
        lookup(changed, b"file").expect("it is there").0.version
    };
    let before = lookup(image(), b"file").expect("it is there").0.version;
    assert_eq!(version(0x8), before, "atime");
    for (offset, name) in [(0xc, "ctime"), (0x10, "mtime"), (0x4, "size"), (0x64, "generation")] {
        assert_ne!(version(offset), before, "{name}");
    }
}

proptest! {
    /// No image makes a lookup panic, run forever, or name a block outside.
    #[test]
    fn any_changed_bytes_are_survived(
        changes in proptest::collection::vec((0_usize..BLOCK * 24, any::<u8>()), 1..12)
    ) {
        let mut image = image();
        for (at, byte) in changes {
            image[at] = byte;
        }
        let _ = lookup(image, b"file");
    }

    /// A tree whose nodes lead to each other ends.
    #[test]
    fn any_extent_tree_ends(
        nodes in proptest::collection::vec(
            (0_u16..8, 0_u16..6, proptest::collection::vec((0_u32..6, 0_u32..40, 0_u16..4), 7)),
            8,
        )
    ) {
        let mut image = image();
        put(&mut image, 5 * BLOCK + 11 * 128 + 0x28, &[0x0a, 0xf3, 3, 0, 4, 0, 5, 0]);
        for (index, (entries, depth, blocks)) in nodes.iter().enumerate() {
            let at = (30 + index) * BLOCK;
            put(&mut image, at, &[0x0a, 0xf3, 0, 0, 80, 0, 0, 0]);
            put(&mut image, at + 2, &(*entries).min(7).to_le_bytes());
            put(&mut image, at + 6, &depth.to_le_bytes());
            for (entry, (first, child, len)) in blocks.iter().enumerate() {
                let at = at + 12 * (entry + 1);
                put(&mut image, at, &first.to_le_bytes());
                put(&mut image, at + 4, &(u32::from(*len) | child << 16).to_le_bytes());
                put(&mut image, at + 4, &(30 + child % 8).to_le_bytes());
            }
        }
        let _ = lookup(image, b"file");
    }
}
