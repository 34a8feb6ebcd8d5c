//! Change notification for served files, by inotify(7).
//!
//! The content server assumes for up to a second that a path still leads to the file that it has
//! open. A [`FileWatch`] removes that delay: the server calls [`FileWatch::add`] for each path
//! before opening it, and [`FileWatch::poll`] returns the paths that may by now lead to another
//! file or to changed content. The kernel queues an event before the system call that caused it
//! returns; so a client that sends a request after a change never gets an older answer, provided
//! that the watch is polled between request and answer.
//!
//! Each directory and symbolic link on the way from the root to the file is watched, and the file
//! itself. Above the root, only directories that hold a symbolic link of the path, or the root
//! itself, are watched. If the kernel refuses a watch (limit reached, file system without support),
//! only the one-second check remains. Bounded: after `PATHS_MAX` paths all watches are discarded.
#![expect(unsafe_code, reason = "inotify")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{CString, OsStr};
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::notify::replace_descriptor;

/// Maximum number of paths watched at a time.
const PATHS_MAX: usize = 65_536;
/// Maximum number of symbolic links followed in one path, as in Linux.
const LINKS_MAX: usize = 40;
/// Events about names in a directory.
const NAMES: u32 = libc::IN_CREATE
    | libc::IN_DELETE
    | libc::IN_MOVED_FROM
    | libc::IN_MOVED_TO
    | libc::IN_DONT_FOLLOW
    | libc::IN_ONLYDIR;
/// Events about a file. One-shot: the file is watched again when it is opened again.
const CONTENT: u32 = libc::IN_MODIFY | libc::IN_ATTRIB | libc::IN_DONT_FOLLOW | libc::IN_ONESHOT;
/// Size of an inotify event without its name.
const EVENT_BYTES: usize = 16;
/// Size of the buffer for events.
const BUFFER_BYTES: usize = 16 * 1024;
/// Maximum number of reads in one poll. They hold more events than the kernel's default queue
/// (16384).
const READS_MAX: usize = 512;

/// A change that may have happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StaleFile {
    /// Of the file that this path leads to.
    Path(Box<[u8]>),
    /// Of any file.
    All,
}

/// Watches files below a root directory.
#[derive(Debug)]
pub struct FileWatch {
    root: PathBuf,
    queue: File,
    buffer: Vec<u8>,
    /// Names that matter, by the watch descriptor of their directory.
    directories: BTreeMap<i32, BTreeSet<Box<[u8]>>>,
    /// Paths that lead to a file, by its watch descriptor.
    files: BTreeMap<i32, Vec<Box<[u8]>>>,
    /// All watched paths.
    paths: BTreeSet<Box<[u8]>>,
    stale: VecDeque<StaleFile>,
    events: u64,
    failures: u64,
}

fn new_inotify() -> io::Result<File> {
    // SAFETY: no pointers are passed; the result is checked before use.
    let fd = unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

impl FileWatch {
    /// Creates an instance that watches nothing yet.
    ///
    /// # Errors
    /// If the kernel refuses an inotify instance: their number per user is limited.
    pub fn new(root: &Path) -> io::Result<Self> {
        Ok(Self {
            root: std::path::absolute(root)?,
            queue: new_inotify()?,
            buffer: vec![0; BUFFER_BYTES],
            directories: BTreeMap::new(),
            files: BTreeMap::new(),
            paths: BTreeSet::new(),
            stale: VecDeque::new(),
            events: 0,
            failures: 0,
        })
    }

    /// Watches the file that a path below the root leads to. To be called before the file is
    /// opened. A path that leads to no file is not watched.
    pub fn add(&mut self, path: &[u8]) {
        if self.paths.contains(path) {
            return;
        }
        if self.paths.len() == PATHS_MAX {
            self.restart_inotify();
        }
        match self.walk(path) {
            Ok(()) => drop(self.paths.insert(path.into())),
            Err(error) if is_no_file(&error) => {}
            Err(_) => self.failures += 1,
        }
    }

    /// Returns the next change that may have happened since the last call.
    pub fn poll(&mut self) -> Option<StaleFile> {
        // One read may return only events that concern no path, with others queued behind them.
        let mut reads = 0;
        while self.stale.is_empty() && self.read_events() {
            reads += 1;
            if reads == READS_MAX {
                // Unread events may concern any path.
                self.mark_all_stale();
            }
        }
        self.stale.pop_front()
    }

    /// Returns a descriptor that polls readable when [`Self::poll`] may return a change.
    #[must_use]
    pub fn pollable(&self) -> RawFd {
        self.queue.as_raw_fd()
    }

    /// Calls `f` with the name and value of each counter.
    pub fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        f("watch_paths", self.paths.len() as u64);
        f("watch_events", self.events);
        f("watch_failures", self.failures);
    }

    fn restart_inotify(&mut self) {
        // Replacing the old queue removes its watches. The descriptor keeps its number, because the
        // caller polls it. If no new queue can be created, the old one stays.
        let replaced = new_inotify().and_then(|queue| replace_descriptor(&queue, &self.queue));
        self.failures += u64::from(replaced.is_err());
        self.directories.clear();
        self.mark_all_stale();
    }

    /// Forgets all paths; each is watched again when it is opened again. The kernel's watches and
    /// the directory entries stay, since the kernel reports when they end.
    fn mark_all_stale(&mut self) {
        self.paths.clear();
        self.files.clear();
        self.directories.values_mut().for_each(BTreeSet::clear);
        self.stale.clear();
        self.stale.push_back(StaleFile::All);
    }

    /// Walks from the root of the file system to a file as the kernel does, adding each watch
    /// before following the name.
    fn walk(&mut self, path: &[u8]) -> io::Result<()> {
        let mut ahead = Vec::new();
        push_names(&mut ahead, path);
        let below_root = ahead.len();
        push_names(&mut ahead, self.root.as_os_str().as_bytes());
        let (mut at, mut links) = (PathBuf::from("/"), 0);
        while let Some(name) = ahead.pop() {
            if *name == *b".." {
                at.pop();
                continue;
            }
            let next = at.join(OsStr::from_bytes(&name));
            let is_link = |meta: &Metadata| meta.file_type().is_symlink();
            let wanted = ahead.len() <= below_root || is_link(&next.symlink_metadata()?);
            if wanted {
                self.watch_name(&at, &next, &name)?;
            }
            // Examined only after the watch exists, so that no change is missed.
            let meta = next.symlink_metadata()?;
            if is_link(&meta) {
                links += 1;
                if links > LINKS_MAX {
                    return Err(io::Error::from_raw_os_error(libc::ELOOP));
                }
                let target = next.read_link()?.into_os_string().into_vec();
                if target.first() == Some(&b'/') {
                    at = PathBuf::from("/");
                }
                push_names(&mut ahead, &target);
            } else {
                at = next;
            }
        }
        if at.symlink_metadata()?.is_file() {
            let watch = self.watch(&at, CONTENT)?;
            self.files.entry(watch).or_default().push(path.into());
        }
        Ok(())
    }

    /// Watches a name in a directory. Names that do not exist are not kept, since clients choose
    /// them.
    fn watch_name(&mut self, directory: &Path, whole: &Path, name: &[u8]) -> io::Result<()> {
        let watch = self.watch(directory, NAMES)?;
        let names = self.directories.entry(watch).or_default();
        whole.symlink_metadata()?;
        names.insert(name.into());
        Ok(())
    }

    fn watch(&self, path: &Path, mask: u32) -> io::Result<i32> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: the path is NUL-terminated and outlives the call; the descriptor is open.
        match unsafe { libc::inotify_add_watch(self.queue.as_raw_fd(), path.as_ptr(), mask) } {
            watch @ 0.. => Ok(watch),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Handles the next events; returns whether there were any.
    fn read_events(&mut self) -> bool {
        let mut buffer = core::mem::take(&mut self.buffer);
        // EAGAIN: no events.
        let read = self.queue.read(&mut buffer).unwrap_or(0);
        let mut rest = buffer.get(..read).unwrap_or_default();
        while let Some((head, behind)) = rest.split_first_chunk::<EVENT_BYTES>() {
            let word = |at: usize| head[at..at + 4].try_into().map_or(0, u32::from_ne_bytes);
            let watch = i32::from_ne_bytes(word(0).to_ne_bytes());
            let (mask, len) = (word(4), word(12));
            let Some((name, next)) = behind.split_at_checked(len as usize) else { break };
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            self.handle_event(watch, mask, name);
            rest = next;
        }
        self.buffer = buffer;
        read > 0
    }

    fn handle_event(&mut self, watch: i32, mask: u32, name: &[u8]) {
        self.events += 1;
        if mask & libc::IN_Q_OVERFLOW != 0 {
            return self.mark_all_stale();
        }
        if let Some(paths) = self.files.remove(&watch) {
            for path in paths {
                self.paths.remove(&path);
                self.stale.push_back(StaleFile::Path(path));
            }
        }
        let Some(names) = self.directories.get(&watch) else { return };
        if mask & libc::IN_IGNORED != 0 {
            // The directory is gone.
            self.directories.remove(&watch);
            self.mark_all_stale();
        } else if names.contains(name) {
            self.mark_all_stale();
        }
    }
}

/// Returns whether an error means that a path leads to no file. Not counted as a failure: clients
/// choose paths.
fn is_no_file(error: &io::Error) -> bool {
    let nowhere = [libc::ENOENT, libc::ENOTDIR, libc::ENAMETOOLONG, libc::ELOOP];
    error.raw_os_error().is_some_and(|code| nowhere.contains(&code))
}

/// Pushes the names of a path onto a stack, the first name last.
fn push_names(stack: &mut Vec<Box<[u8]>>, path: &[u8]) {
    let names = path.split(|byte| *byte == b'/').rev();
    stack.extend(names.filter(|name| !matches!(*name, b"" | b".")).map(Box::from));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, OpenOptions};
    use std::io::Write as _;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    /// Changes something below a folder.
    type TreeChange<'a> = &'a dyn Fn(&TempDir);

    fn site() -> (TempDir, FileWatch) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("one/sub")).unwrap();
        fs::create_dir_all(dir.path().join("two/sub")).unwrap();
        for release in ["one", "two"] {
            fs::write(dir.path().join(release).join("sub/a"), release).unwrap();
            fs::write(dir.path().join(release).join("b"), release).unwrap();
        }
        symlink("sub/a", dir.path().join("one/link")).unwrap();
        symlink("one", dir.path().join("site")).unwrap();
        let watch = FileWatch::new(&dir.path().join("site")).unwrap();
        (dir, watch)
    }

    fn all(watch: &mut FileWatch) -> Vec<StaleFile> {
        core::iter::from_fn(|| watch.poll()).collect()
    }

    fn path(path: &[u8]) -> StaleFile {
        StaleFile::Path(path.into())
    }

    #[test]
    fn content_and_attributes_of_a_file_concern_its_paths() {
        let (dir, mut watch) = site();
        for name in [&b"sub/a"[..], b"b", b"link"] {
            watch.add(name);
        }
        assert_eq!(all(&mut watch), []);
        let file = dir.path().join("one/sub/a");
        OpenOptions::new().append(true).open(&file).unwrap().write_all(b"more").unwrap();
        assert_eq!(all(&mut watch), [path(b"sub/a"), path(b"link")]);
        // Reported once; the file is watched again when it is added again.
        fs::write(&file, "again").unwrap();
        assert_eq!(all(&mut watch), []);
        watch.add(b"sub/a");
        fs::write(&file, "again").unwrap();
        assert_eq!(all(&mut watch), [path(b"sub/a")]);
        fs::set_permissions(
            dir.path().join("one/b"),
            std::os::unix::fs::PermissionsExt::from_mode(0o600),
        )
        .unwrap();
        assert_eq!(all(&mut watch), [path(b"b")]);
        // Reading is not a change.
        watch.add(b"b");
        fs::read(dir.path().join("one/b")).unwrap();
        assert_eq!(all(&mut watch), []);
    }

    #[test]
    fn names_on_the_way_concern_every_path() {
        let swap = |dir: &TempDir, from: &str, to: &str| {
            fs::rename(dir.path().join(from), dir.path().join(to)).unwrap();
        };
        let changes: [(&str, TreeChange<'_>); 4] = [
            ("the root leads elsewhere", &|dir| {
                symlink("two", dir.path().join("new")).unwrap();
                swap(dir, "new", "site");
            }),
            ("a file is replaced", &|dir| swap(dir, "two/sub/a", "one/sub/a")),
            ("a directory is moved away", &|dir| swap(dir, "one/sub", "one/gone")),
            ("a link leads elsewhere", &|dir| {
                symlink("b", dir.path().join("new")).unwrap();
                swap(dir, "new", "one/link");
            }),
        ];
        for (what, change) in changes {
            let (dir, mut watch) = site();
            watch.add(b"link");
            assert_eq!(all(&mut watch), [], "{what}");
            change(&dir);
            assert!(all(&mut watch).contains(&StaleFile::All), "{what}");
            watch.add(b"link");
            assert_eq!(all(&mut watch), [], "{what}: watched anew");
        }
    }

    #[test]
    fn the_pollable_descriptor_outlives_a_restart() {
        let (dir, mut watch) = site();
        watch.add(b"b");
        let before = watch.pollable();
        watch.restart_inotify();
        assert_eq!((watch.poll(), watch.pollable()), (Some(StaleFile::All), before));
        watch.add(b"b");
        fs::write(dir.path().join("one/b"), "changed").unwrap();
        let mut polled = libc::pollfd { fd: before, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid structure is passed for the time of the call.
        assert_eq!(unsafe { libc::poll(&raw mut polled, 1, 0) }, 1);
        assert_eq!((watch.poll(), watch.failures), (Some(path(b"b")), 0));
    }

    #[test]
    fn what_does_not_concern_a_path_is_silent() {
        let (dir, mut watch) = site();
        watch.add(b"sub/a");
        for nth in 0..100 {
            watch.add(format!("missing/{nth}").as_bytes());
            watch.add(format!("sub/missing{nth}").as_bytes());
        }
        fs::write(dir.path().join("one/sub/other"), "other").unwrap();
        fs::write(dir.path().join("one/other"), "other").unwrap();
        fs::write(dir.path().join("two/b"), "other").unwrap();
        assert_eq!(all(&mut watch), []);
        let names: usize = watch.directories.values().map(BTreeSet::len).sum();
        assert!(names <= 4 && watch.paths.len() == 1, "{names}: what is not there is not kept");
    }

    #[test]
    fn memory_stays_bounded_while_names_change() {
        let (dir, mut watch) = site();
        let mut sizes = BTreeSet::new();
        for _ in 0..100 {
            watch.add(b"sub/a");
            watch.add(b"b");
            fs::write(dir.path().join("one/new"), "new").unwrap();
            fs::rename(dir.path().join("one/new"), dir.path().join("one/b")).unwrap();
            let names: usize = watch.directories.values().map(BTreeSet::len).sum();
            let paths: usize = watch.files.values().map(Vec::len).sum();
            sizes.insert((watch.directories.len(), names, watch.files.len(), paths));
            assert!(all(&mut watch).contains(&StaleFile::All));
        }
        assert_eq!(sizes.len(), 1, "(directories, names, files, paths): {sizes:?}");
    }

    #[test]
    fn events_of_no_concern_do_not_hide_those_behind_them() {
        let (dir, mut watch) = site();
        watch.add(b"b");
        // Three buffers of events.
        for nth in 0..3 * BUFFER_BYTES / (EVENT_BYTES + 16) {
            fs::write(dir.path().join(format!("one/other{nth}")), "").unwrap();
        }
        fs::write(dir.path().join("one/b"), "changed").unwrap();
        assert_eq!(watch.poll(), Some(path(b"b")));
        assert_eq!(watch.poll(), None);
    }

    #[test]
    fn paths_that_lead_nowhere_are_no_failures() {
        let (dir, mut watch) = site();
        symlink("loop", dir.path().join("one/loop")).unwrap();
        let long = [b'x'; 256];
        for path in [&b"b/c"[..], b"missing", b"loop", &long] {
            watch.add(path);
        }
        assert_eq!((watch.paths.len(), watch.failures), (0, 0));
    }
}
