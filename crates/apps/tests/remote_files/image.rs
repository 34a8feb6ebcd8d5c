//! The file system of the namespace, written by hand: `big`, in two extents with a hole between
//! them, and `small`.

use crate::machines::content;

pub(crate) const BLOCK: usize = 4096;
const BLOCKS: usize = 512;
/// Block of the inode table, and the first block of content.
const INODES_AT: usize = 3;
const CONTENT_AT: usize = 10;
pub(crate) const BIG: usize = 700_000;
pub(crate) const SMALL: usize = 4096;
/// Offset of the content of `small`.
pub(crate) const SMALL_AT: usize = 200 * BLOCK;

fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Offset of an inode.
pub(crate) const fn inode_at(number: usize) -> usize {
    INODES_AT * BLOCK + (number - 1) * 128
}

/// Writes an inode with extents (first block in the file, blocks, first block on the disk).
fn put_inode(image: &mut [u8], number: usize, mode: u16, size: usize, extents: &[(u32, u16, u32)]) {
    let at = inode_at(number);
    put(image, at, &mode.to_le_bytes());
    put(image, at + 0x4, &u32::try_from(size).expect("small").to_le_bytes());
    put(image, at + 0x10, &784_111_777_u32.to_le_bytes());
    put(image, at + 0x1a, &1_u16.to_le_bytes());
    put(image, at + 0x20, &0x8_0000_u32.to_le_bytes());
    let count = u8::try_from(extents.len()).expect("few");
    put(image, at + 0x28, &[0x0a, 0xf3, count, 0, 4, 0, 0, 0]);
    for (index, (first, blocks, start)) in extents.iter().enumerate() {
        let at = at + 0x34 + index * 12;
        put(image, at, &first.to_le_bytes());
        put(image, at + 4, &blocks.to_le_bytes());
        put(image, at + 8, &start.to_le_bytes());
    }
}

/// Returns a file system with `big`, in two extents with a hole between, and `small`.
pub(crate) fn image() -> Vec<u8> {
    let mut image = vec![0; BLOCK * BLOCKS];
    let at = 1024;
    put(&mut image, at, &32_u32.to_le_bytes());
    put(&mut image, at + 0x4, &u32::try_from(BLOCKS).expect("small").to_le_bytes());
    put(&mut image, at + 0x18, &2_u32.to_le_bytes());
    put(&mut image, at + 0x28, &32_u32.to_le_bytes());
    put(&mut image, at + 0x38, &0xef53_u16.to_le_bytes());
    put(&mut image, at + 0x3a, &1_u16.to_le_bytes());
    put(&mut image, at + 0x4c, &1_u32.to_le_bytes());
    put(&mut image, at + 0x58, &128_u16.to_le_bytes());
    put(&mut image, at + 0x60, &0x42_u32.to_le_bytes());
    put(&mut image, BLOCK + 8, &u32::try_from(INODES_AT).expect("small").to_le_bytes());
    put_inode(&mut image, 2, 0x41ed, BLOCK, &[(0, 1, 5)]);
    put_inode(&mut image, 12, 0x81a4, BIG, &[(0, 50, 10), (60, 111, 80)]);
    put_inode(&mut image, 13, 0x81a4, SMALL, &[(0, 1, 200)]);
    let directory = 5 * BLOCK;
    put(&mut image, directory, &[12, 0, 0, 0, 16, 0, 3, 1, b'b', b'i', b'g']);
    put(&mut image, directory + 16, &[13, 0, 0, 0, 0xf0, 0x0f, 5, 1]);
    put(&mut image, directory + 24, b"small");
    let bytes = content(image.len());
    let (_, free) = image.split_at_mut(CONTENT_AT * BLOCK);
    free.copy_from_slice(&bytes[..free.len()]);
    image
}

/// Returns the content of `big` in the image.
pub(crate) fn big() -> Vec<u8> {
    let image = image();
    let mut big = image[10 * BLOCK..60 * BLOCK].to_vec();
    big.resize(60 * BLOCK, 0);
    big.extend_from_slice(&image[80 * BLOCK..191 * BLOCK]);
    big.truncate(BIG);
    big
}

/// Returns the content of `small` in the image.
pub(crate) fn small() -> Vec<u8> {
    image()[SMALL_AT..SMALL_AT + SMALL].to_vec()
}
