//! Options of reading files, for the content server and the NVMe/TCP target.

use std::path::Path;
use std::sync::Arc;

use clap::Args;
use io::disk::{ChangeRule, Disk, DiskKind, DiskOptions, UploadDirectory};
use nic::FileConfig;

use cli::Failure;

/// Bytes of a page in KiB, the unit of blocks.
const PAGE_KIB: u16 = 4;

/// Options of reading files.
#[derive(Clone, Debug, Args)]
pub(crate) struct FileArgs {
    /// Device memory for file content, in MiB
    #[arg(long, default_value_t = 256, value_name = "MIB")]
    pub(crate) file_memory: u32,
    /// Size of a block in KiB, the unit of sequential reads and of sharing: a multiple of 4
    #[arg(long, default_value_t = 64, value_name = "KIB",
        value_parser = parse_block_kib)]
    pub(crate) file_block: u16,
    /// Blocks to read ahead of a sequential reader; 0 disables read-ahead
    #[arg(long, default_value_t = 4, value_name = "N",
        value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub(crate) file_read_ahead: u32,
    /// Acknowledged bytes, in KiB, after which the host releases them in the device; less needs
    /// less device memory, and more operations
    #[arg(long, default_value_t = 256, value_name = "KIB",
        value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) file_ack: u32,
    /// Backend for reading and writing files
    #[arg(long, value_enum, default_value_t = DiskArg::Auto)]
    pub(crate) disk: DiskArg,
    /// Read without the page cache if the file system can (O_DIRECT); the device's memory is then
    /// the only cache
    #[arg(long)]
    pub(crate) direct_io: bool,
}

impl FileArgs {
    /// Returns the configuration of a device's file engine.
    pub(crate) fn config(&self) -> FileConfig {
        FileConfig {
            memory_bytes_max: (self.file_memory as usize) << 20,
            block_pages: usize::from(self.file_block / PAGE_KIB),
            read_ahead_blocks: self.file_read_ahead,
            ..FileConfig::default()
        }
    }

    /// Applies the options of a host.
    pub(crate) fn configure_host(&self, host: &mut host::HostConfig) {
        host.tcp.file_ack_bytes = u64::from(self.file_ack) << 10;
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
        DiskOptions { kind: self.disk.kind(), rule, direct_io: self.direct_io }
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
    fn blocks_are_whole_pages() {
        assert_eq!(parse_block_kib("64"), Ok(64));
        assert_eq!((parse_block_kib("4"), parse_block_kib("1024")), (Ok(4), Ok(1024)));
        for bad in ["0", "2", "6", "1028", "-4", "x", ""] {
            assert!(parse_block_kib(bad).is_err(), "{bad}");
        }
    }
}
