//! Which changes of an open file count, and roots that are symbolic links. For all backends.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use abi::disk::{DiskAccess, DiskFile};
use abi::{FileFault, FileStat};
use base::Duration;
use tempfile::TempDir;

use super::content::{ContentPromise, GROWTH_WAIT};
use super::tests::{DiskTester, KINDS, each, pattern, tree};
use super::*;
use crate::clock::MonotonicClock;

const NAME: &str = "1048577";
const BYTES: usize = (1 << 20) + 1;

/// An open file, with its metadata at the open.
struct PromisedFile<'a> {
    asker: &'a mut DiskTester,
    path: PathBuf,
    file: DiskFile,
    at_open: FileStat,
}

impl<'a> PromisedFile<'a> {
    fn open(dir: &TempDir, asker: &'a mut DiskTester) -> Self {
        let (file, at_open) = asker.open(NAME).unwrap();
        // The first read lets io_uring complete the read of the sample.
        assert_eq!(asker.read(file, 0, 1).unwrap().1, at_open);
        Self { asker, path: dir.path().join("root").join(NAME), file, at_open }
    }

    /// Asserts that the promised bytes are unchanged and the disk reports that.
    fn assert_kept(&mut self, what: &str) {
        for offset in [0, 1 << 19, 1 << 20] {
            let (bytes, stat) = self.asker.read(self.file, offset, 2).unwrap();
            assert_eq!(stat, self.at_open, "{what}");
            let from = usize::try_from(offset).unwrap();
            let len = bytes.len().min(BYTES - from);
            assert!(bytes[..len] == pattern(BYTES)[from..from + len], "{what}");
        }
    }

    fn assert_changed(&mut self, what: &str) {
        for _ in 0..2 {
            let (_, stat) = self.asker.read(self.file, 0, 1).unwrap();
            assert_ne!(stat.version, self.at_open.version, "{what}");
        }
    }

    fn writer(&self) -> File {
        OpenOptions::new().write(true).open(&self.path).unwrap()
    }

    fn append(&self, bytes: &[u8]) {
        let mut file = OpenOptions::new().append(true).open(&self.path).unwrap();
        file.write_all(bytes).unwrap();
    }
}

/// A change of the file at a path.
type PathChange = fn(&Path);
/// A change of the file that is being read.
type Rewrite = fn(&PromisedFile<'_>);

/// Changes of metadata only, by name.
const TOUCHES: [(&str, PathChange); 6] = [
    ("chmod", |path| fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap()),
    ("touch -a", |path| run(Command::new("touch").arg("-a").arg(path))),
    ("link", |path| fs::hard_link(path, path.with_extension("link")).unwrap()),
    ("mv to another name", |path| {
        fs::rename(path, path.with_extension("moved")).unwrap();
        fs::rename(path.with_extension("moved"), path).unwrap();
    }),
    ("mv over it", |path| {
        let other = path.with_extension("new");
        fs::write(&other, "another file").unwrap();
        fs::rename(other, path).unwrap();
    }),
    ("unlink", |path| fs::remove_file(path).unwrap()),
];

fn run(command: &mut Command) {
    assert!(command.status().unwrap().success(), "{command:?}");
}

#[test]
fn what_touches_only_metadata_is_no_change() {
    each(|dir, asker| {
        let mut subject = PromisedFile::open(dir, asker);
        for (what, touch) in TOUCHES {
            touch(&subject.path);
            subject.assert_kept(what);
        }
    });
}

#[test]
fn an_append_is_no_change_of_what_was_promised() {
    each(|dir, asker| {
        let mut subject = PromisedFile::open(dir, asker);
        for round in 0..10 {
            subject.append(&[7; 5000]);
            subject.assert_kept(&format!("append {round}"));
        }
        // The next open sees the appended bytes.
        let (_, now) = subject.asker.open(NAME).unwrap();
        assert_eq!(now.size, BYTES as u64 + 50_000);
        assert_ne!(now.version, subject.at_open.version);
    });
}

/// A write sets mtime before it moves the end of the file. An append that is seen between the two
/// does not count as a rewrite in place, unless the writer is suspended there for
/// [`GROWTH_WAIT`]: a round in which it was suspended for so long is repeated.
#[test]
fn an_append_in_progress_is_no_change() {
    for _ in 0..20 {
        let (seen, longest_write) = check_during_appends();
        if seen.is_ok() {
            return;
        }
        assert!(longest_write >= GROWTH_WAIT, "{seen:?} during appends of {longest_write}");
    }
    panic!("the writer was suspended in every round");
}

/// Checks a file all the time while another thread appends to it. Returns the first change that was
/// seen, and the duration of the longest append.
fn check_during_appends() -> (Result<(), Result<FileStat, FileFault>>, Duration) {
    let (dir, over) = (tree(), AtomicBool::new(false));
    let path = dir.path().join("root").join(NAME);
    let file = File::open(&path).unwrap();
    let promise = ContentPromise::new(&file, DiskAccess::Content, ChangeRule::Content).unwrap();
    promise.read_and_record_sample(&file);
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                let seen = promise.check(&file);
                if seen != Ok(promise.stat()) {
                    return Err(seen);
                }
            }
            Ok(())
        });
        let mut writer = OpenOptions::new().append(true).open(&path).unwrap();
        // The clock of the file system ticks every few milliseconds.
        let clock = MonotonicClock::new();
        let (end, mut longest) = (clock.now() + Duration::from_millis(500), Duration::ZERO);
        while clock.now() < end && !looks.is_finished() {
            let start = clock.now();
            writer.write_all(&[7]).unwrap();
            longest = longest.max(clock.now().since(start));
        }
        over.store(true, Ordering::Release);
        (looks.join().unwrap(), longest)
    })
}

#[test]
fn truncation_and_rewriting_in_place_are_changes() {
    let changes: [(&str, Rewrite); 6] = [
        ("one byte rewritten", |s| s.writer().write_all_at(b"!", 70_000).unwrap()),
        ("cut short", |s| s.writer().set_len(BYTES as u64 - 1).unwrap()),
        ("emptied", |s| s.writer().set_len(0).unwrap()),
        ("made anew, as long", |s| fs::write(&s.path, vec![7; BYTES]).unwrap()),
        ("made anew, and longer, with all moved by one", |s| {
            fs::write(&s.path, [b"x", &pattern(BYTES)[..], b"and more"].concat()).unwrap();
        }),
        ("rewritten, with its time set back", |s| {
            let modified = fs::metadata(&s.path).unwrap().modified().unwrap();
            let file = s.writer();
            file.write_all_at(&[9; 64], BYTES as u64 - 64).unwrap();
            file.set_modified(modified).unwrap();
        }),
    ];
    for (what, change) in changes {
        each(|dir, asker| {
            let mut subject = PromisedFile::open(dir, asker);
            change(&subject);
            subject.assert_changed(what);
            // No later append restores it.
            subject.append(b"more");
            subject.assert_changed(what);
        });
    }
}

#[test]
fn an_append_does_not_hide_what_was_rewritten_before() {
    each(|dir, asker| {
        let mut subject = PromisedFile::open(dir, asker);
        subject.append(b"more");
        subject.assert_kept("append");
        subject.writer().write_all_at(b"!", 70_000).unwrap();
        subject.assert_changed("rewritten");
    });
    each(|dir, asker| {
        let mut subject = PromisedFile::open(dir, asker);
        subject.append(&[7; 100]);
        subject.assert_kept("append");
        // Shorter than before, but not shorter than promised.
        subject.writer().set_len(BYTES as u64 + 50).unwrap();
        subject.assert_changed("cut short");
    });
}

fn strict(kind: DiskKind) -> DiskOptions {
    DiskOptions { kind, rule: ChangeRule::Strict, ..DiskOptions::default() }
}

#[test]
fn strict_disks_take_every_touch_for_a_change() {
    for kind in KINDS {
        for (what, touch) in TOUCHES {
            let dir = tree();
            let disk = open_disk_with(&dir.path().join("root"), strict(kind)).unwrap();
            let mut asker = DiskTester::with(disk);
            let mut subject = PromisedFile::open(&dir, &mut asker);
            subject.assert_kept("nothing");
            touch(&subject.path);
            subject.assert_changed(what);
        }
        let dir = tree();
        let disk = open_disk_with(&dir.path().join("root"), strict(kind)).unwrap();
        let mut asker = DiskTester::with(disk);
        let mut subject = PromisedFile::open(&dir, &mut asker);
        subject.append(b"more");
        subject.assert_changed("append");
    }
}

#[test]
fn names_that_are_not_utf8_are_opened() {
    each(|dir, asker| {
        for name in [&b"\xe9t\xe9.html"[..], b"\xff", b"sub/\x80\xc0"] {
            let path = dir.path().join("root").join(std::ffi::OsStr::from_bytes(name));
            fs::write(path, name).unwrap();
            let (file, _) = asker.open(name).unwrap();
            assert_eq!(asker.read(file, 0, 1).unwrap().0, name);
        }
        assert_eq!(asker.open(b"\xfe"), Err(FileFault::NotFound));
    });
}

#[test]
fn a_root_that_is_a_link_is_followed_when_it_leads_elsewhere() {
    for kind in KINDS {
        let dir = tree();
        let (link, other) = (dir.path().join("current"), dir.path().join("other"));
        fs::create_dir(&other).unwrap();
        fs::write(other.join("4096"), "another release").unwrap();
        symlink("../secret", other.join("out")).unwrap();
        symlink("root", &link).unwrap();
        let mut asker = DiskTester::at(&link, kind);
        let (before, _) = asker.open("4096").unwrap();
        // As `ln -sfn` does.
        symlink("other", dir.path().join("current.new")).unwrap();
        fs::rename(dir.path().join("current.new"), &link).unwrap();
        let (after, _) = asker.open("4096").unwrap();
        assert_eq!(asker.read(after, 0, 1).unwrap().0, b"another release");
        assert!(asker.read(before, 0, 1).unwrap().0 == pattern(4096), "what was open stays open");
        for path in ["../secret", "out", "../root/4096"] {
            assert_eq!(asker.open(path), Err(FileFault::Denied), "{path}");
        }
        // Without the link the last directory is used.
        fs::remove_file(&link).unwrap();
        assert!(asker.open("4096").is_ok());
        symlink("root", &link).unwrap();
        let (back, _) = asker.open("4096").unwrap();
        assert!(asker.read(back, 0, 1).unwrap().0 == pattern(4096));
    }
}
