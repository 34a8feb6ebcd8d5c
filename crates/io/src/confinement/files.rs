//! Files that the process may open, enforced by Landlock (landlock(7)).

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};

use super::ConfinementError;

/// Version of Landlock whose rights are handled; older kernels handle those that they know.
const VERSION: ABI = ABI::V6;

/// Files and directories that every program may read: configuration of the system, libraries that
/// are loaded late (name service), the kernel's view of processes and interfaces.
const READABLE: [&str; 7] = ["/etc", "/usr", "/lib", "/lib64", "/run/systemd", "/proc", "/sys"];
/// Files that every program may read and write: devices without state, and the settings of its
/// interfaces.
const WRITABLE: [&str; 5] =
    ["/dev/null", "/dev/urandom", "/dev/net/tun", "/proc/self", "/proc/sys/net"];

/// Files and directories that a program may open, each with everything below it.
#[derive(Clone, Debug, Default)]
pub struct ConfinedFiles {
    listable: Vec<PathBuf>,
    readable: Vec<PathBuf>,
    writable: Vec<PathBuf>,
}

impl ConfinedFiles {
    /// Allows to open directories, and thus to list them.
    pub fn allow_list(&mut self, path: impl AsRef<Path>) {
        self.listable.push(path.as_ref().to_owned());
    }

    /// Allows to read a file or directory.
    pub fn allow_read(&mut self, path: impl AsRef<Path>) {
        self.readable.push(path.as_ref().to_owned());
    }

    /// Allows to read, write, create and remove.
    pub fn allow_write(&mut self, path: impl AsRef<Path>) {
        self.writable.push(path.as_ref().to_owned());
    }

    /// Allows to read the directory of a file, which may be replaced by another file of its name.
    pub fn allow_read_replaced(&mut self, file: impl AsRef<Path>) {
        self.readable.push(directory_of(file.as_ref()));
    }

    /// Allows to create, replace and remove a file in its directory, and all others there.
    pub fn allow_create(&mut self, file: impl AsRef<Path>) {
        self.writable.push(directory_of(file.as_ref()));
    }
}

/// Returns the directory of a file, the working directory for a plain name.
fn directory_of(file: &Path) -> PathBuf {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or_else(|| Path::new(".")).to_owned()
}

/// Restricts the calling thread, and the threads that it creates from now on, to these files and to
/// signals within the process.
///
/// # Errors
/// If a path does not exist, or the kernel has no Landlock.
pub fn restrict_files(files: &ConfinedFiles) -> Result<(), ConfinementError> {
    let (all, read) = (AccessFs::from_all(VERSION), AccessFs::from_read(VERSION));
    // Programs start no other programs.
    let (all, read) = (all & !AccessFs::Execute, read & !AccessFs::Execute);
    let created = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(VERSION))
        .and_then(|ruleset| ruleset.scope(Scope::Signal))
        .and_then(Ruleset::create)
        .map_err(ConfinementError::Landlock)?;
    let given = |paths: &[PathBuf], access| -> Result<Vec<_>, ConfinementError> {
        paths.iter().map(|path| rule(path, access)).collect()
    };
    // Not every system has all of these.
    let common = |paths: &[&str], access| -> Vec<_> {
        paths.iter().filter_map(|path| rule(Path::new(path), access).ok()).collect()
    };
    let rules = [
        common(&READABLE, read),
        common(&WRITABLE, all),
        given(&files.listable, AccessFs::ReadDir.into())?,
        given(&files.readable, read)?,
        given(&files.writable, all)?,
    ];
    let rules = rules.into_iter().flatten().map(Ok::<_, landlock::RulesetError>);
    let status = created
        .add_rules(rules)
        .and_then(landlock::RulesetCreated::restrict_self)
        .map_err(ConfinementError::Landlock)?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err(ConfinementError::NoLandlock),
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
    }
}

fn rule(path: &Path, access: BitFlags<AccessFs>) -> Result<PathBeneath<PathFd>, ConfinementError> {
    let opened = PathFd::new(path).map_err(ConfinementError::Path)?;
    // Rights of directories are refused for a file.
    let access = if path.is_dir() { access } else { access & AccessFs::from_file(VERSION) };
    Ok(PathBeneath::new(opened, access))
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::{fs, thread};

    use super::*;

    /// A thread opens the named files, those below them, and no others.
    #[test]
    fn only_named_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_owned();
        let at = move |name: &str| root.join(name);
        for name in ["read", "write", "logs", "other"] {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join("file"), name).unwrap();
        }
        let mut files = ConfinedFiles::default();
        files.allow_read(at("read"));
        files.allow_write(at("write"));
        files.allow_create(at("logs").join("new"));
        let confined = move || {
            restrict_files(&files).unwrap();
            assert_eq!(fs::read_to_string(at("read/file")).unwrap(), "read");
            fs::write(at("write/file"), "changed").unwrap();
            fs::write(at("logs/new"), "created").unwrap();
            fs::remove_file(at("logs/new")).unwrap();
            let denied =
                |error: std::io::Error| assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            denied(fs::read_to_string(at("other/file")).unwrap_err());
            denied(fs::write(at("read/file"), "").unwrap_err());
            denied(fs::write(at("read/new"), "").unwrap_err());
            denied(fs::rename(at("write/file"), at("other/file")).unwrap_err());
            denied(fs::read_dir(at("other")).unwrap_err());
        };
        thread::spawn(confined).join().unwrap();
        let mut missing = ConfinedFiles::default();
        missing.allow_read("/none");
        let error = restrict_files(&missing).unwrap_err().to_string();
        assert!(error.contains("/none"), "{error}");
    }

    #[test]
    fn a_plain_name_is_in_the_working_directory() {
        assert_eq!(directory_of(Path::new("log")), Path::new("."));
        assert_eq!(directory_of(Path::new("/var/log/a")), Path::new("/var/log"));
    }
}
