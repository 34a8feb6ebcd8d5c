//! The reader of ext4 file systems against images of `mkfs.ext4`, compared with the files that they
//! were made from, and with the crate `ext4-view`.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use apps::ext4::{
    Ext4, Ext4Fault, Ext4FileKind, Ext4Inode, Ext4Metadata, Ext4Stop, Ext4Superblock,
};
use interop::{Files, pattern, run_for_output};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const IMAGE_BYTES: u64 = 96 << 20;

/// An image whose metadata is read page by page: a page is missing at its first use.
struct Image {
    file: File,
    present: Vec<u64>,
    wanted: Vec<u64>,
}

impl Ext4Metadata for Image {
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), Ext4Stop> {
        let pages = offset / 4096..=(offset + buf.len() as u64 - 1) / 4096;
        let missing: Vec<u64> = pages.filter(|page| !self.present.contains(page)).collect();
        if !missing.is_empty() {
            self.wanted.extend(missing);
            return Err(Ext4Stop::Missing);
        }
        self.file.read_exact_at(buf, offset).expect("within the image");
        Ok(())
    }
}

impl Image {
    /// Calls `f` until nothing is missing.
    fn run<T>(
        &mut self,
        mut f: impl FnMut(&mut dyn Ext4Metadata) -> Result<T, Ext4Stop>,
    ) -> Result<T, Ext4Fault> {
        loop {
            match f(self) {
                Ok(result) => return Ok(result),
                Err(Ext4Stop::Fault(fault)) => return Err(fault),
                Err(Ext4Stop::Missing) => {
                    assert!(!self.wanted.is_empty(), "something new is missing each time");
                    self.present.append(&mut self.wanted);
                }
            }
        }
    }

    fn content(&mut self, system: Ext4<'_>, inode: &Ext4Inode) -> Vec<u8> {
        let block = u64::from(system.superblock.block_bytes);
        let mut content = Vec::new();
        // In parts, as the server reads.
        for first in (0..inode.size.div_ceil(block)).step_by(37) {
            for run in self.run(|m| system.map(m, inode, first, 37)).expect("a valid tree") {
                let mut bytes = vec![0; usize::try_from(run.blocks * block).expect("small")];
                if let Some(start) = run.start {
                    self.file.read_exact_at(&mut bytes, start * block).expect("within");
                }
                content.extend_from_slice(&bytes);
            }
        }
        content.truncate(usize::try_from(inode.size).expect("small"));
        content
    }
}

/// Writes the files of an image, among them one with holes between all of its extents.
fn write_files(files: &Files) {
    for bytes in [0, 1, 59, 4095, 4096, 4097, 100_000, 3_000_000] {
        files.fill(&format!("sizes/{bytes}"), bytes);
    }
    for index in 0..1500_u64 {
        files.fill(&format!("many/a-name-of-some-length-{index:05}.txt"), index);
    }
    files.fill("deep/a/b/c/d/e/f/g", 5000);
    let sparse = files.sparse("sparse", 40 << 20);
    let sparse = fs::OpenOptions::new().write(true).open(sparse).expect("it exists");
    for index in 0..600 {
        sparse.write_all_at(&pattern(4096), index * 65_536).expect("there is room");
    }
    let link = |target: &str, name: &str| {
        symlink(target, files.path().join(name)).expect("a new link");
    };
    link("sizes/4097", "short-link");
    link("/deep/../deep/a/b", "absolute-link");
    link(&format!("{}sizes/59", "./".repeat(100)), "long-link");
    link("loop", "loop");
}

fn make_image(files: &Files, images: &Files, options: &[&str]) -> PathBuf {
    let path = images.sparse("image", IMAGE_BYTES);
    let mut command = Command::new("mkfs.ext4");
    command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").args(["-q", "-F", "-d"]);
    run_for_output(command.arg(files.path()).args(options).arg(&path));
    path
}

fn regular_files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() { regular_files(&path, into) } else { into.push(path) }
    }
}

fn compare(files: &Files, options: &[&str]) {
    let images = Files::new(TMP);
    let path = make_image(files, &images, options);
    let file = File::open(&path).expect("the image");
    let mut image = Image { file, present: Vec::new(), wanted: Vec::new() };
    let crypto = crypto::Provider;
    let superblock = image.run(|m| Ext4Superblock::read(m, &crypto, IMAGE_BYTES));
    let superblock = superblock.expect("a clean file system");
    let system = Ext4 { superblock: &superblock, crypto: &crypto };
    // `ext4-view` 1.0 refuses inodes of 128 bytes.
    let oracle = (!options.contains(&"128"))
        .then(|| ext4_view::Ext4::load_from_path(&path).expect("a valid image"));
    let mut all = Vec::new();
    regular_files(files.path(), &mut all);
    assert!(all.len() > 1500);
    for path in &all {
        let name = path.strip_prefix(files.path()).expect("below").to_str().expect("UTF-8");
        let inode = image.run(|m| system.lookup(m, name.as_bytes())).expect("it is there");
        let expected = fs::read(path).expect("readable");
        assert_eq!(inode.kind, Ext4FileKind::Regular, "{name}");
        assert!(image.content(system, &inode) == expected, "{name} with {options:?}");
        let Some(oracle) = &oracle else { continue };
        let oracle_path = format!("/{name}");
        let metadata = oracle.metadata(oracle_path.as_str()).expect("it is there");
        assert_eq!(metadata.len(), inode.size, "{name}");
        assert!(oracle.read(oracle_path.as_str()).expect("readable") == expected, "{name}");
    }
    for (link, size) in [("short-link", 4097), ("absolute-link/c/d/e/f/g", 5000), ("long-link", 59)]
    {
        let inode = image.run(|m| system.lookup(m, link.as_bytes())).expect(link);
        assert_eq!(inode.size, size, "{link}");
    }
    let fault = |image: &mut Image, path: &[u8]| image.run(|m| system.lookup(m, path)).err();
    assert_eq!(fault(&mut image, b"loop"), Some(Ext4Fault::BadPath));
    assert_eq!(fault(&mut image, b"many/none"), Some(Ext4Fault::NotFound));
    assert_eq!(fault(&mut image, b"sizes/59/x"), Some(Ext4Fault::BadPath));
}

#[test]
fn every_file_of_an_image_is_read_as_it_was_written() {
    let files = Files::new(TMP);
    write_files(&files);
    for options in [
        &[][..],
        &["-b", "1024"],
        &["-b", "2048", "-O", "^metadata_csum,^64bit"],
        &["-O", "metadata_csum_seed", "-I", "512"],
        &["-O", "^has_journal,^dir_index", "-I", "128"],
    ] {
        compare(&files, options);
    }
}

#[test]
fn damaged_and_dirty_images_are_refused() {
    let (files, images) = (Files::new(TMP), Files::new(TMP));
    files.fill("file", 5000);
    let path = make_image(&files, &images, &["-O", "metadata_csum"]);
    let read = || {
        let file = File::open(&path).expect("the image");
        let mut image = Image { file, present: Vec::new(), wanted: Vec::new() };
        image.run(|m| Ext4Superblock::read(m, &crypto::Provider, IMAGE_BYTES))
    };
    read().expect("a clean file system");
    let debugfs = |request: &str| {
        let mut command = Command::new("debugfs");
        command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").args(["-w", "-R", request]);
        run_for_output(command.arg(&path));
    };
    debugfs("feature needs_recovery");
    assert_eq!(read(), Err(Ext4Fault::NeedsRecovery));
    debugfs("feature -needs_recovery");
    read().expect("clean again");
    let raw = fs::OpenOptions::new().read(true).write(true).open(&path).expect("the image");
    let mut byte = [0];
    raw.read_exact_at(&mut byte, 1024 + 0x30).expect("within the image");
    raw.write_all_at(&[!byte[0]], 1024 + 0x30).expect("within the image");
    assert_eq!(read(), Err(Ext4Fault::Checksum("the superblock")));
}
