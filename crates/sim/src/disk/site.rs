//! The files of the simulated disk in an ext4 file system on a namespace, for servers of remote
//! files.

use apps::ext4::{Ext4, Ext4Metadata, Ext4Stop, Ext4Superblock};

use super::SimDisk;
use crate::content;
use crate::ext4_image::ext4_image;
use crate::namespace::SimNamespace;

/// The bytes of a file system.
struct Image<'a>(&'a [u8]);

impl Ext4Metadata for Image<'_> {
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), Ext4Stop> {
        let from = offset as usize;
        buf.copy_from_slice(&self.0[from..from + buf.len()]);
        Ok(())
    }
}

impl SimDisk {
    /// Moves all files to the root directory of a file system on a namespace with that path. Their
    /// versions are then those that the reader of the file system reports; the catalog knows which
    /// content they have.
    pub(crate) fn with_site(mut self, namespace: &str) -> Self {
        let mut files = Vec::new();
        let mut versions = Vec::new();
        for path in &mut self.paths {
            let inode = self.names.get(path).and_then(|&inode| self.inodes.get(inode));
            let Some(inode) = inode else { continue };
            let mut bytes = vec![0; inode.size as usize];
            content::fill(inode.version, 0, &mut bytes);
            *path = path.replace('/', "-");
            files.push((path.clone(), bytes));
            versions.push(inode.version);
        }
        let image = ext4_image(&files);
        let mut source = Image(&image);
        let superblock = Ext4Superblock::read(&mut source, &crypto::Provider, image.len() as u64);
        let Ok(superblock) = superblock else { unreachable!("the file system is valid") };
        let system = Ext4 { superblock: &superblock, crypto: &crypto::Provider };
        for ((path, _), version) in files.iter().zip(versions) {
            let Ok(inode) = system.lookup(&mut source, path.as_bytes()) else {
                unreachable!("the file was written")
            };
            self.catalogue.add_name(inode.version, version);
            self.site_versions.push(inode.version);
        }
        self.names.clear();
        self.add_namespace(namespace, image.len());
        self.namespaces.insert(self.inodes.len() - 1, SimNamespace::with_content(image));
        self
    }
}
