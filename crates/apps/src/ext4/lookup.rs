//! From a path to an inode, following symbolic links.

use super::{Ext4, Ext4Fault, Ext4FileKind, Ext4Inode, Ext4Metadata, Ext4Stop, ROOT_INODE};

/// Linux's limits: NAME_MAX, PATH_MAX, and symbolic links in one lookup.
const NAME_BYTES_MAX: usize = 255;
const PATH_BYTES_MAX: usize = 4096;
const LINKS_MAX: usize = 40;
/// Components of a path, with those of its links.
const COMPONENTS_MAX: usize = 1024;

impl Ext4<'_> {
    /// Returns the inode of a path, whose components are separated by `/`. The root is its own
    /// parent, and absolute links begin there, so that no path leads out.
    ///
    /// # Errors
    /// The path does not exist, the file system is invalid, or metadata is missing.
    pub fn lookup(
        &self,
        metadata: &mut dyn Ext4Metadata,
        path: &[u8],
    ) -> Result<Ext4Inode, Ext4Stop> {
        if path.len() > PATH_BYTES_MAX || path.contains(&0) {
            return Err(Ext4Fault::BadPath.into());
        }
        let mut parents = Vec::new();
        let mut here = self.inode(metadata, ROOT_INODE)?;
        if here.kind != Ext4FileKind::Directory {
            return Err(Ext4Fault::Corrupt("the root directory").into());
        }
        // The components that are left, the next one last.
        let mut left: Vec<Vec<u8>> = components(path).map(<[u8]>::to_vec).collect();
        left.reverse();
        let mut links = 0;
        while let Some(name) = left.pop() {
            if name == b".." {
                here = parents.pop().unwrap_or(here);
                continue;
            }
            if name.len() > NAME_BYTES_MAX || left.len() + parents.len() > COMPONENTS_MAX {
                return Err(Ext4Fault::BadPath.into());
            }
            let number = self.find(metadata, &here, &name)?.ok_or(Ext4Fault::NotFound)?;
            let found = self.inode(metadata, number)?;
            if found.kind != Ext4FileKind::Link {
                parents.push(core::mem::replace(&mut here, found));
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(Ext4Fault::BadPath.into());
            }
            let target = self.link_target(metadata, &found)?;
            if target.first() == Some(&b'/') {
                here = parents.first().cloned().unwrap_or(here);
                parents.clear();
            }
            left.extend(components(&target).rev().map(<[u8]>::to_vec));
        }
        Ok(here)
    }

    fn link_target(
        &self,
        metadata: &mut dyn Ext4Metadata,
        link: &Ext4Inode,
    ) -> Result<Vec<u8>, Ext4Stop> {
        if let Some(target) = link.short_target() {
            return Ok(target.to_vec());
        }
        let len = usize::try_from(link.size).unwrap_or(usize::MAX);
        let bytes = self.block_bytes();
        if len == 0 || len > PATH_BYTES_MAX.min(bytes) {
            return Err(Ext4Fault::Corrupt("a symbolic link").into());
        }
        let runs = self.map(metadata, link, 0, 1)?;
        let start = runs.first().and_then(|run| run.start);
        let start = start.ok_or(Ext4Fault::Corrupt("a symbolic link"))?;
        let mut block = vec![0; bytes];
        self.read_block(metadata, start, &mut block)?;
        block.truncate(len);
        Ok(block)
    }
}

/// Iterates over the components of a path, without empty ones and `.`.
fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !matches!(name, [] | [b'.']))
}
