//! Options of reading files, for the content server and the NVMe/TCP target.

use std::path::Path;
use std::sync::Arc;

use clap::Args;
use io::disk::{ChangeRule, Disk, DiskKind, DiskOptions, UploadDirectory};
use nic::FileConfig;

use cli::Failure;

/// Bytes of a page in KiB, the unit of blocks.
const PAGE_KIB: u16 = 4;

/// Default values.
const MEMORY_MIB: u32 = 256;
const BLOCK_KIB: u16 = 64;
const READ_AHEAD_BLOCKS: u32 = 4;
const ACK_KIB: u32 = 256;

/// Options of reading files. They have no default value here, so that those given for namespaces
/// are found.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct FileArgs {
    /// Device memory for file content, in MiB [default: 256]
    #[arg(long, value_name = "MIB")]
    file_memory: Option<u32>,
    /// Size of a block in KiB, the unit of sequential reads and of sharing: a multiple of 4
    /// [default: 64]
    #[arg(long, value_name = "KIB", value_parser = parse_block_kib)]
    file_block: Option<u16>,
    /// Blocks to read ahead of a sequential reader; 0 disables read-ahead [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1024))]
    file_read_ahead: Option<u32>,
    /// Acknowledged bytes, in KiB, after which the host releases them in the device; less needs
    /// less device memory, and more operations [default: 256]
    #[arg(long, value_name = "KIB", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    file_ack: Option<u32>,
    /// Backend for reading and writing files [default: auto]
    #[arg(long, value_enum)]
    disk: Option<DiskArg>,
    /// Read without the page cache if the file system can (O_DIRECT); the device's memory is then
    /// the only cache
    #[arg(long)]
    direct_io: bool,
}

impl FileArgs {
    /// Returns the configuration of a device's file engine.
    pub(crate) fn config(&self) -> FileConfig {
        FileConfig {
            memory_bytes_max: (self.file_memory.unwrap_or(MEMORY_MIB) as usize) << 20,
            block_pages: usize::from(self.file_block.unwrap_or(BLOCK_KIB) / PAGE_KIB),
            read_ahead_blocks: self.file_read_ahead.unwrap_or(READ_AHEAD_BLOCKS),
            ..FileConfig::default()
        }
    }

    /// Applies the options of a host.
    pub(crate) fn configure_host(&self, host: &mut host::HostConfig) {
        host.tcp.file_ack_bytes = u64::from(self.file_ack.unwrap_or(ACK_KIB)) << 10;
    }

    /// Checks the options of a server of namespaces, which has none of these.
    ///
    /// # Errors
    /// An option is given.
    pub(crate) fn check_absent(&self) -> Result<(), Failure> {
        let given = [
            ("--file-memory", self.file_memory.is_some()),
            ("--file-block", self.file_block.is_some()),
            ("--file-read-ahead", self.file_read_ahead.is_some()),
            ("--file-ack", self.file_ack.is_some()),
            ("--disk", self.disk.is_some()),
            ("--direct-io", self.direct_io),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            None => Ok(()),
            Some((name, _)) => Err(Failure::Usage(format!(
                "{name} is for files of a directory, and namespaces are served; omit it, or see \
                 the --remote options"
            ))),
        }
    }

    /// Opens a disk for the files below `root`.
    ///
    /// # Errors
    /// Fails if the directory cannot be opened, or if the backend is not available.
    pub(crate) fn open_disk(
        &self,
        root: &Path,
        rule: ChangeRule,
    ) -> Result<Box<dyn Disk>, Failure> {
        io::disk::open_disk_with(root, self.disk_options(rule))
            .map_err(|e| Failure::NoInput(e.to_string()))
    }

    /// Opens a disk that also creates files in a directory for uploads.
    ///
    /// # Errors
    /// As [`Self::open_disk`].
    pub(crate) fn open_disk_for_uploads(
        &self,
        root: &Path,
        rule: ChangeRule,
        uploads: Arc<UploadDirectory>,
    ) -> Result<Box<dyn Disk>, Failure> {
        io::disk::open_disk_for_uploads(root, self.disk_options(rule), uploads)
            .map_err(|e| Failure::NoInput(e.to_string()))
    }

    fn disk_options(&self, rule: ChangeRule) -> DiskOptions {
        let kind = self.disk.unwrap_or(DiskArg::Auto).kind();
        DiskOptions { kind, rule, direct_io: self.direct_io }
    }
}

/// Parses the size of a block in KiB.
fn parse_block_kib(text: &str) -> Result<u16, String> {
    let fits = |kib: &u16| (PAGE_KIB..=1024).contains(kib) && kib % PAGE_KIB == 0;
    text.parse().ok().filter(fits).ok_or_else(|| "expected a multiple of 4, 4 to 1024".to_owned())
}

/// Backends for reading files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DiskArg {
    /// io_uring, or threads if the kernel refuses it
    Auto,
    /// io_uring only
    Uring,
    /// Thread pool
    Threads,
}

impl DiskArg {
    /// Returns the backend.
    const fn kind(self) -> DiskKind {
        match self {
            Self::Auto => DiskKind::Auto,
            Self::Uring => DiskKind::Uring,
            Self::Threads => DiskKind::Threads,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_directories_are_refused_for_namespaces() {
        assert!(FileArgs::default().check_absent().is_ok());
        for (args, name) in [
            (FileArgs { file_memory: Some(256), ..FileArgs::default() }, "--file-memory"),
            (FileArgs { file_ack: Some(1), ..FileArgs::default() }, "--file-ack"),
            (FileArgs { disk: Some(DiskArg::Auto), ..FileArgs::default() }, "--disk"),
            (FileArgs { direct_io: true, ..FileArgs::default() }, "--direct-io"),
        ] {
            let why = args.check_absent().expect_err("it has no effect").to_string();
            assert!(why.starts_with(name), "{why}");
        }
    }

    #[test]
    fn blocks_are_whole_pages() {
        assert_eq!(parse_block_kib("64"), Ok(64));
        assert_eq!((parse_block_kib("4"), parse_block_kib("1024")), (Ok(4), Ok(1024)));
        for bad in ["0", "2", "6", "1028", "-4", "x", ""] {
            assert!(parse_block_kib(bad).is_err(), "{bad}");
        }
    }
}
