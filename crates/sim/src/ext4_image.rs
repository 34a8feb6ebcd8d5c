//! Writer of small ext4 file systems, for simulations and benchmarks of files on namespaces.
//!
//! Used by `lab` and by the integration tests of this crate. The file system has one group, blocks
//! of 4 KiB, extents, no journal and no checksums; all files are in its root directory, and each
//! lies in consecutive blocks. The tests of `interop` compare the reader with `mkfs.ext4`.

/// Bytes of a block.
const BLOCK: usize = 4096;
/// Bytes of an inode.
const INODE: usize = 128;
/// First block of the inode table, after the superblock and the group descriptor.
const INODES_AT: usize = 2;
/// Inode number of the first file; the first ten are reserved, and the eleventh is usually taken.
const FIRST_FILE: usize = 12;
/// Modification time of the files, in seconds since 1970.
const MODIFIED_S: u32 = 784_111_777;
/// Largest number of blocks of an extent.
const EXTENT_BLOCKS_MAX: usize = 32_768;
/// Largest number of extents in an inode.
const EXTENTS_MAX: usize = 4;

fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Returns the bytes of a file system with these files, by name and content. Names have at most 255
/// bytes and no slash, and a file has at most 512 MiB.
#[must_use]
pub fn ext4_image(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let inodes = FIRST_FILE + files.len();
    let directory = directory(files);
    let directory_at = INODES_AT + (inodes * INODE).div_ceil(BLOCK);
    let mut at = directory_at + directory.len() / BLOCK;
    let blocks = |content: &Vec<u8>| content.len().div_ceil(BLOCK);
    let end = at + files.iter().map(|(_, content)| blocks(content)).sum::<usize>();
    let mut image = vec![0; end * BLOCK];
    put_superblock(&mut image, inodes as u32, end as u32);
    put(&mut image, BLOCK + 8, &(INODES_AT as u32).to_le_bytes());
    put_inode(&mut image, 2, 0x41ed, directory.len(), directory_at);
    put(&mut image, directory_at * BLOCK, &directory);
    for (index, (_, content)) in files.iter().enumerate() {
        put_inode(&mut image, FIRST_FILE + index, 0x81a4, content.len(), at);
        put(&mut image, at * BLOCK, content);
        at += blocks(content);
    }
    image
}

fn put_superblock(image: &mut [u8], inodes: u32, blocks: u32) {
    let at = 1024;
    put(image, at, &inodes.to_le_bytes());
    put(image, at + 0x4, &blocks.to_le_bytes());
    // Logarithm of the block size, less ten.
    put(image, at + 0x18, &2_u32.to_le_bytes());
    put(image, at + 0x28, &inodes.to_le_bytes());
    put(image, at + 0x38, &0xef53_u16.to_le_bytes());
    // State: valid.
    put(image, at + 0x3a, &1_u16.to_le_bytes());
    // A revision with inodes of any size.
    put(image, at + 0x4c, &1_u32.to_le_bytes());
    put(image, at + 0x58, &(INODE as u16).to_le_bytes());
    // Features: kinds in directories, extents.
    put(image, at + 0x60, &0x42_u32.to_le_bytes());
}

fn put_inode(image: &mut [u8], number: usize, mode: u16, size: usize, start: usize) {
    let at = INODES_AT * BLOCK + (number - 1) * INODE;
    put(image, at, &mode.to_le_bytes());
    put(image, at + 0x4, &(size as u32).to_le_bytes());
    put(image, at + 0x10, &MODIFIED_S.to_le_bytes());
    // Links.
    put(image, at + 0x1a, &1_u16.to_le_bytes());
    // Flags: extents.
    put(image, at + 0x20, &0x8_0000_u32.to_le_bytes());
    let blocks = size.div_ceil(BLOCK);
    let extents = blocks.div_ceil(EXTENT_BLOCKS_MAX);
    assert!(extents <= EXTENTS_MAX, "a file of {size} bytes is too large for this writer");
    put(image, at + 0x28, &[0x0a, 0xf3, extents as u8, 0, EXTENTS_MAX as u8, 0, 0, 0]);
    for extent in 0..extents {
        let first = extent * EXTENT_BLOCKS_MAX;
        let len = (blocks - first).min(EXTENT_BLOCKS_MAX);
        let at = at + 0x34 + extent * 12;
        put(image, at, &(first as u32).to_le_bytes());
        put(image, at + 4, &(len as u16).to_le_bytes());
        put(image, at + 8, &((start + first) as u32).to_le_bytes());
    }
}

/// Returns the blocks of the root directory. The last entry of each block extends to its end.
fn directory(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let (mut out, mut last) = (Vec::new(), 0);
    for (index, (name, _)) in files.iter().enumerate() {
        let len = (8 + name.len()).next_multiple_of(4);
        let left = out.len().next_multiple_of(BLOCK) - out.len();
        if index > 0 && left < len {
            extend(&mut out, last, left);
        }
        last = out.len();
        out.extend_from_slice(&((FIRST_FILE + index) as u32).to_le_bytes());
        out.extend_from_slice(&(len as u16).to_le_bytes());
        out.extend_from_slice(&[name.len() as u8, 1]);
        out.extend_from_slice(name.as_bytes());
        out.resize(last + len, 0);
    }
    let left = out.len().next_multiple_of(BLOCK) - out.len();
    if !out.is_empty() {
        extend(&mut out, last, left);
    }
    out
}

/// Makes the entry at `last`, which ends the directory, longer by `left` bytes.
fn extend(directory: &mut Vec<u8>, last: usize, left: usize) {
    let len = directory.len() + left - last;
    put(directory, last + 4, &(len as u16).to_le_bytes());
    directory.resize(last + len, 0);
}

#[cfg(test)]
mod tests {
    use apps::ext4::{Ext4, Ext4Metadata, Ext4Stop, Ext4Superblock};

    use super::*;

    struct Image(Vec<u8>);

    impl Ext4Metadata for Image {
        fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), Ext4Stop> {
            buf.copy_from_slice(&self.0[offset as usize..][..buf.len()]);
            Ok(())
        }
    }

    #[test]
    fn the_reader_finds_every_file() {
        let content = |index: usize| vec![index as u8; index * 37 % 9_000];
        let files: Vec<_> =
            (0..500).map(|index| (format!("a-file-{index}"), content(index))).collect();
        let mut image = Image(ext4_image(&files));
        let bytes = image.0.len() as u64;
        let superblock = Ext4Superblock::read(&mut image, &crypto::Provider, bytes).expect("clean");
        let system = Ext4 { superblock: &superblock, crypto: &crypto::Provider };
        for (name, content) in &files {
            let inode = system.lookup(&mut image, name.as_bytes()).expect("it is there");
            assert_eq!(inode.size, content.len() as u64);
            let blocks = content.len().div_ceil(BLOCK) as u64;
            for run in system.map(&mut image, &inode, 0, blocks).expect("a valid tree") {
                let start = run.start.expect("no hole") as usize * BLOCK;
                assert_eq!(run.blocks, blocks);
                assert!(image.0[start..].starts_with(content), "{name}");
            }
        }
    }
}
