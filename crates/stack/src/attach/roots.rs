//! The directories whose files a device process sends for programs.

use std::path::PathBuf;

use abi::attach::{AttachRefusal, RootIdentity};
use cli::Failure;
use io::disk::Disk;

use super::root_identity;
use crate::nic_process::OpenRoot;
use crate::no_disk::NoDisk;

/// A directory whose files the device sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootDirectory {
    /// Its name, for messages and for programs of other machines.
    pub name: String,
    /// Its path.
    pub path: PathBuf,
}

impl std::str::FromStr for RootDirectory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, path))
                if !name.is_empty()
                    && name.len() <= RootIdentity::NAME_BYTES_MAX
                    && !path.is_empty() =>
            {
                Ok(Self { name: name.to_owned(), path: path.into() })
            }
            _ => Err(format!("invalid root `{text}`; expected NAME=DIR")),
        }
    }
}

/// The roots of a device, and how a disk is opened for one.
pub(crate) struct ProgramRoots {
    roots: Vec<(RootIdentity, RootDirectory)>,
    open: OpenRoot,
}

impl ProgramRoots {
    /// Looks up the roots.
    ///
    /// # Errors
    /// If one is not a directory.
    pub(crate) fn new(roots: &[RootDirectory], open: OpenRoot) -> Result<Self, Failure> {
        let find = |root: &RootDirectory| {
            let shown = format!("--root {}={}", root.name, root.path.display());
            let identity =
                root_identity(&root.path).map_err(|e| Failure::NoInput(format!("{shown}: {e}")))?;
            if !root.path.is_dir() {
                return Err(Failure::NoInput(format!("{shown}: not a directory")));
            }
            Ok((identity, root.clone()))
        };
        let roots = roots.iter().map(find).collect::<Result<_, _>>()?;
        Ok(Self { roots, open })
    }

    /// Opens a disk for the root that a program names.
    pub(super) fn open(&self, root: Option<&RootIdentity>) -> Result<Box<dyn Disk>, AttachRefusal> {
        let Some(root) = root else { return Ok(NoDisk::boxed()) };
        let found = self.roots.iter().find(|(identity, directory)| match root {
            RootIdentity::Directory { .. } => identity == root,
            RootIdentity::Named(name) => **name == *directory.name.as_bytes(),
        });
        let (_, directory) = found.ok_or(AttachRefusal::UnknownRoot)?;
        (self.open)(&directory.path).map_err(|failure| {
            eprintln!("outboard: root {}: {failure}", directory.name);
            AttachRefusal::NoResources
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_have_names() {
        let root: RootDirectory = "site=/srv/www=1".parse().unwrap();
        assert_eq!((root.name.as_str(), root.path), ("site", "/srv/www=1".into()));
        for wrong in ["", "site", "=/srv", "site="] {
            assert!(wrong.parse::<RootDirectory>().unwrap_err().contains("NAME=DIR"), "{wrong}");
        }
    }

    /// A program reaches the directories that the operator named, by whatever path, and no other.
    #[test]
    fn a_root_is_found_by_its_identity() {
        let folder = tempfile::tempdir().unwrap();
        let site = folder.path().join("site");
        std::fs::create_dir(&site).unwrap();
        let root = RootDirectory { name: "site".to_owned(), path: site.clone() };
        let roots = ProgramRoots::new(&[root], Box::new(|_| Ok(NoDisk::boxed()))).unwrap();
        let by_link = folder.path().join("link");
        std::os::unix::fs::symlink(&site, &by_link).unwrap();
        assert!(roots.open(Some(&root_identity(&by_link).unwrap())).is_ok());
        assert!(roots.open(None).is_ok(), "no files");
        let named = |name: &str| RootIdentity::Named(name.as_bytes().into());
        assert!(roots.open(Some(&named("site"))).is_ok(), "by its name");
        for other in [root_identity(folder.path()).unwrap(), named("sit"), named("")] {
            let refused = roots.open(Some(&other)).map(|_| ());
            assert_eq!(refused, Err(AttachRefusal::UnknownRoot), "{other:?}");
        }
        let absent = RootDirectory { name: "x".to_owned(), path: folder.path().join("x") };
        let failed = ProgramRoots::new(&[absent], Box::new(|_| Ok(NoDisk::boxed())));
        let line = failed.map(|_| ()).unwrap_err().to_string();
        assert!(line.starts_with("--root x=") && line.contains("No such file"), "{line}");
    }
}
