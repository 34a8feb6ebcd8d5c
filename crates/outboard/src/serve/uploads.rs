//! The directory for uploads of `outboard serve`.
//!
//! Called by [`super::run`] before the threads start: one directory and one quota for all queues.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use apps::content::{UploadConfig, UploadDecompression, UploadQuota};
use cli::Failure;
use io::clock;
use io::disk::UploadDirectory;

use crate::args::{ServeArgs, UploadArgs};

/// Opens the directory for uploads; `None` if there is none.
///
/// # Errors
/// The directory cannot be used, or namespaces are served.
pub(super) fn open(
    args: &ServeArgs,
    is_remote: bool,
) -> Result<Option<(Arc<UploadDirectory>, UploadConfig)>, Failure> {
    let UploadArgs { upload_dir, upload_quota, upload_max_size, upload_max_ratio } = &args.uploads;
    let Some(path) = upload_dir else { return Ok(None) };
    if is_remote {
        let line = "--upload-dir: not available with remote storage, which is read-only";
        return Err(Failure::Usage(line.to_owned()));
    }
    let directory = UploadDirectory::open(path, clock::entropy());
    let directory = directory.map_err(|e| Failure::NoInput(e.to_string()))?;
    if directory.removed() > 0 {
        let (count, path) = (directory.removed(), path.display());
        eprintln!("outboard: removed incomplete uploads of an earlier run from {path}: {count}");
    }
    let (bytes_max, used) = (upload_quota.unwrap_or(u64::MAX), directory.initial_bytes());
    if used > bytes_max {
        let path = path.display();
        eprintln!(
            "outboard: warning: {path} has {used} bytes, more than --upload-quota {bytes_max}; \
             uploads will be refused until the next start with fewer"
        );
    }
    let config = UploadConfig {
        quota: Arc::new(UploadQuota::new(bytes_max, used)),
        file_bytes_max: upload_max_size.unwrap_or(u64::MAX),
        served_as: served_as(args.dir(), path),
        decompression: Some(UploadDecompression {
            decoders: Arc::new(decompress::Provider),
            ratio_max: *upload_max_ratio,
        }),
    };
    Ok(Some((Arc::new(directory), config)))
}

/// Returns the path of the directory for uploads below the served root; `None` if it is elsewhere.
fn served_as(root: &Path, uploads: &Path) -> Option<Vec<u8>> {
    let (root, uploads) = (root.canonicalize().ok()?, uploads.canonicalize().ok()?);
    Some(uploads.strip_prefix(root).ok()?.as_os_str().as_bytes().to_vec())
}
