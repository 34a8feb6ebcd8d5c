//! Tests of uploads, the same for all backends.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use abi::aligned::AlignedBuf;
use abi::disk::{DiskAccess, DiskFile};
use tempfile::TempDir;

use super::tests::{DiskTester, KINDS, pattern};
use super::*;

/// A disk for uploads to a directory beside its root.
struct UploadRig {
    folder: TempDir,
    tester: DiskTester,
}

impl UploadRig {
    fn new(kind: DiskKind) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (root, uploads) = (folder.path().join("root"), folder.path().join("uploads"));
        fs::create_dir(&root).unwrap();
        fs::create_dir_all(uploads.join("sub")).unwrap();
        fs::write(folder.path().join("secret"), "secret").unwrap();
        let uploads = Arc::new(UploadDirectory::open(&uploads, 7).unwrap());
        let options = DiskOptions { kind, ..DiskOptions::default() };
        let disk = open_disk_for_uploads(&root, options, uploads).unwrap();
        Self { folder, tester: DiskTester::with(disk) }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join("uploads").join(path)
    }

    /// Returns the names in the directory, in order.
    fn names(&self, path: &str) -> Vec<String> {
        names(&self.path(path))
    }

    fn open(&mut self, path: &str) -> Result<DiskFile, FileFault> {
        self.tester.open_for(path, DiskAccess::Upload).map(|(file, _)| file)
    }

    fn write(&mut self, file: DiskFile, offset: u64, bytes: &[u8]) -> Result<(), FileFault> {
        self.tester.write(file, offset, bytes, false)
    }

    fn publish(&mut self, file: DiskFile, replace: bool) -> Result<Option<u64>, FileFault> {
        let asked = self.tester.id();
        let request = DiskRequest::Publish { id: asked, file, replace };
        self.tester.disk.submit(request).unwrap();
        match self.tester.wait() {
            DiskCompletion::Published { id, result } if id == asked => result,
            other => panic!("{other:?}"),
        }
    }

    fn close(&mut self, file: DiskFile) {
        self.tester.disk.submit(DiskRequest::Close { file }).unwrap();
    }
}

fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap();
    let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    names
}

#[test]
fn an_upload_has_its_name_when_it_is_published() {
    for kind in KINDS {
        let mut rig = UploadRig::new(kind);
        let bytes = pattern(300_000);
        let file = rig.open("sub/new").unwrap();
        rig.write(file, 0, &bytes[..200_000]).unwrap();
        rig.write(file, 200_000, &bytes[200_000..]).unwrap();
        assert!(!rig.path("sub/new").exists());
        rig.tester.sync(file).unwrap();
        assert_eq!(rig.publish(file, false), Ok(None));
        assert_eq!(rig.publish(file, false), Err(FileFault::BadExtent), "once");
        rig.close(file);
        assert_eq!(fs::read(rig.path("sub/new")).unwrap(), bytes);
        assert_eq!(rig.names("sub"), ["new"]);
        let count = |name: &str| counter_of(&*rig.tester.disk, name);
        assert_eq!((count("disk_publications"), count("disk_write_bytes")), (1, 300_000));
    }
}

/// Returns the value of a counter.
fn counter_of(disk: &dyn Disk, name: &str) -> u64 {
    let mut found = 0;
    disk.visit(&mut |other, value| found += if other == name { value } else { 0 });
    found
}

#[test]
fn a_file_is_replaced_as_a_whole_or_not() {
    for kind in KINDS {
        let mut rig = UploadRig::new(kind);
        fs::write(rig.path("old"), "old content").unwrap();
        symlink("../secret", rig.path("link")).unwrap();
        let file = rig.open("old").unwrap();
        rig.write(file, 0, b"new").unwrap();
        assert_eq!(rig.publish(file, false), Err(FileFault::Exists));
        assert_eq!(fs::read(rig.path("old")).unwrap(), b"old content");
        assert_eq!(rig.publish(file, true), Ok(Some(11)));
        assert_eq!(fs::read(rig.path("old")).unwrap(), b"new");
        let file = rig.open("sub").unwrap();
        assert_eq!(rig.publish(file, true), Err(FileFault::BadPath), "a directory");
        rig.close(file);
        // A link is replaced, not followed.
        let file = rig.open("link").unwrap();
        rig.write(file, 0, b"own").unwrap();
        assert_eq!(rig.publish(file, true), Ok(Some(0)));
        assert_eq!(fs::read(rig.folder.path().join("secret")).unwrap(), b"secret");
        assert_eq!(rig.names(""), ["link", "old", "sub"]);
    }
}

#[test]
fn an_unpublished_upload_is_removed() {
    for kind in KINDS {
        let mut rig = UploadRig::new(kind);
        let file = rig.open("sub/new").unwrap();
        rig.write(file, 0, b"some").unwrap();
        assert_eq!(rig.names("sub").len(), 1);
        rig.close(file);
        assert_eq!(rig.names("sub"), [""; 0], "{kind:?}");
        // So is that of a process which ends.
        let _file = rig.open("new").unwrap();
        let UploadRig { folder, tester } = rig;
        drop(tester);
        assert_eq!(names(&folder.path().join("uploads")), ["sub"]);
    }
}

#[test]
fn paths_outside_of_the_directory_are_refused() {
    for kind in KINDS {
        let mut rig = UploadRig::new(kind);
        symlink("..", rig.path("out")).unwrap();
        fs::write(rig.path("file"), "").unwrap();
        for (path, fault) in [
            ("../new", FileFault::Denied),
            ("/new", FileFault::BadPath),
            ("out/new", FileFault::Denied),
            ("none/new", FileFault::NotFound),
            ("file/new", FileFault::BadPath),
            ("sub/", FileFault::BadPath),
            ("sub/..", FileFault::BadPath),
            (".outboard-upload-0", FileFault::BadPath),
            ("", FileFault::BadPath),
        ] {
            assert_eq!(rig.open(path), Err(fault), "{kind:?}: {path}");
        }
        assert_eq!(names(rig.folder.path()), ["root", "secret", "uploads"]);
        // A disk without a directory for uploads creates none.
        let mut plain = DiskTester::at(&rig.folder.path().join("root"), kind);
        let opened = plain.open_for("new", DiskAccess::Upload).map(drop);
        assert_eq!(opened, Err(FileFault::Denied));
    }
}

#[test]
fn only_uploads_grow_and_are_published() {
    for kind in KINDS {
        let mut rig = UploadRig::new(kind);
        fs::write(rig.folder.path().join("root/namespace"), "1234").unwrap();
        let opened = rig.tester.open_for("namespace", DiskAccess::NamespaceWrite);
        let (file, _) = opened.unwrap();
        assert_eq!(rig.write(file, 4, b"5"), Err(FileFault::BadExtent));
        assert_eq!(rig.publish(file, true), Err(FileFault::BadExtent));
        let file = rig.open("new").unwrap();
        let buf = AlignedBuf::new(1);
        let beyond = rig.tester.write_from(file, u64::MAX, buf, 1, false);
        assert_eq!(beyond, Err(FileFault::BadExtent));
    }
}

#[test]
fn what_a_crash_has_left_is_removed_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("sub")).unwrap();
    fs::write(folder.path().join("sub/.outboard-upload-1-0"), "rest").unwrap();
    fs::write(folder.path().join(".outboard-upload-1-1"), "rest").unwrap();
    fs::write(folder.path().join("sub/kept"), "12345").unwrap();
    fs::write(folder.path().join("kept"), "123").unwrap();
    symlink("kept", folder.path().join("link")).unwrap();
    let uploads = UploadDirectory::open(folder.path(), 1).unwrap();
    assert_eq!((uploads.initial_bytes(), uploads.removed()), (8, 2));
    assert_eq!(names(folder.path()), ["kept", "link", "sub"]);
    assert_eq!(names(&folder.path().join("sub")), ["kept"]);
    let second = UploadDirectory::open(folder.path(), 2).map(drop);
    assert!(second.unwrap_err().to_string().ends_with("specify another directory"));
    drop(uploads);
    assert!(UploadDirectory::open(folder.path(), 3).is_ok());
    let none = UploadDirectory::open(&folder.path().join("none"), 4).map(drop);
    assert!(none.unwrap_err().to_string().contains("No such file or directory"));
}
