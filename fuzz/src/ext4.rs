//! Fuzzes the reader of ext4 file systems: a small image with any bytes changed, read page by page,
//! as from a namespace.
//!
//! A lookup ends, whatever the image contains; it asks for pages that exist and that it has not
//! got; and the blocks that it names lie in the file system.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use apps::ext4::{Ext4, Ext4Fault, Ext4FileKind, Ext4Metadata, Ext4Stop, Ext4Superblock};
use crypto::Provider;
use sim::ext4_image::ext4_image;

use crate::input::FuzzInput;

const PAGE: usize = 4096;
/// Blocks of a file that are looked up at once.
const BLOCKS: u64 = 32;

/// Returns the image before any change: a file in three blocks, a small one, and an empty one.
fn base() -> &'static [u8] {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let file = |name: &str, bytes: usize| (name.to_owned(), vec![7; bytes]);
        ext4_image(&[file("file", 2 * PAGE + 9), file("a", 100), file("empty", 0)])
    })
}

/// An image of which some pages are present.
struct PagedImage {
    bytes: Vec<u8>,
    present: BTreeSet<usize>,
    missing: BTreeSet<usize>,
}

impl Ext4Metadata for PagedImage {
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), Ext4Stop> {
        let from = usize::try_from(offset).expect("within the image");
        let bytes = self.bytes.get(from..from + buf.len()).expect("within the image");
        let pages = from / PAGE..=(from + buf.len().max(1) - 1) / PAGE;
        let absent: Vec<usize> = pages.filter(|page| !self.present.contains(page)).collect();
        if absent.is_empty() {
            buf.copy_from_slice(bytes);
            return Ok(());
        }
        self.missing.extend(absent);
        Err(Ext4Stop::Missing)
    }
}

impl PagedImage {
    /// Calls `work` until nothing is missing.
    fn run<T>(
        &mut self,
        mut work: impl FnMut(&mut Self) -> Result<T, Ext4Stop>,
    ) -> Result<T, Ext4Fault> {
        loop {
            match work(self) {
                Ok(result) => return Ok(result),
                Err(Ext4Stop::Fault(fault)) => return Err(fault),
                Err(Ext4Stop::Missing) => {
                    assert!(!self.missing.is_empty(), "nothing is missing, and it stops");
                    self.present.append(&mut self.missing);
                }
            }
        }
    }
}

/// Runs this fuzz target. `data` is the length of a path, the path, and changes: a position, a
/// length of 1 to 16, and the bytes.
pub fn run(data: &[u8]) {
    let mut input = FuzzInput(data);
    let len = usize::from(input.byte() % 32);
    let path = input.take(len);
    let path = if path.is_empty() { b"file" } else { path };
    let mut bytes = base().to_vec();
    while !input.is_empty() {
        let at = usize::from(input.u16()) % bytes.len();
        let len = usize::from(input.byte() % 16) + 1;
        let change = input.take(len);
        let len = change.len().min(bytes.len() - at);
        bytes[at..at + len].copy_from_slice(&change[..len]);
    }
    let image = PagedImage { bytes, present: BTreeSet::new(), missing: BTreeSet::new() };
    let _fault = read(image, path);
}

/// Looks a path up, and the blocks of the file.
fn read(mut image: PagedImage, path: &[u8]) -> Result<(), Ext4Fault> {
    let bytes = image.bytes.len() as u64;
    let superblock = image.run(|image| Ext4Superblock::read(image, &Provider, bytes))?;
    assert!(superblock.blocks * u64::from(superblock.block_bytes) <= bytes);
    let system = Ext4 { superblock: &superblock, crypto: &Provider };
    let inode = image.run(|image| system.lookup(image, path))?;
    assert_ne!(inode.kind, Ext4FileKind::Link, "links are followed");
    for first in [0, BLOCKS, u64::from(u32::MAX)] {
        let runs = image.run(|image| system.map(image, &inode, first, BLOCKS))?;
        let mut at = first;
        for run in &runs {
            assert_eq!(run.file_block, at, "in order and without gaps");
            at += run.blocks;
            assert!(run.start.is_none_or(|start| start + run.blocks <= superblock.blocks));
        }
        assert_eq!(at, first + BLOCKS, "all blocks");
    }
    Ok(())
}
