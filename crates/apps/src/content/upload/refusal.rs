//! The reasons for which an upload fails, with status and text of the response.

use abi::FileFault;

use super::counters::UploadCounters;
use crate::content::status::HttpStatus;

/// Reason for which an upload is refused or has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UploadRefusal {
    /// The target is no path of a file.
    PathMalformed,
    PathNotNormal,
    PathIsDirectory,
    PathHidden,
    /// The directory of the file does not exist.
    NoDirectory,
    /// The path leads out of the directory, or the user may not write there.
    Denied,
    /// A condition that uploads do not support.
    Condition,
    /// `If-None-Match: *`, and the file exists.
    Exists,
    /// Content-Range: only whole files are uploaded.
    Partial,
    /// The content has codings that are not decoded.
    Encoded,
    /// The encoded content is malformed, or breaks off.
    Damaged,
    /// The encoded content needs more memory than a decoder may have.
    Window,
    /// The content decompresses to too many times its length.
    Ratio,
    TooLarge,
    Quota,
    /// The disk has no space left.
    NoSpace,
    /// The chunked coding is malformed.
    Coding,
    /// The content does not arrive, or too slowly.
    Slow,
    /// A pattern of a denying rule.
    Pattern,
    TooManyUploads,
    /// The disk does not answer.
    DiskSlow,
    DiskFailed,
}

impl UploadRefusal {
    /// Returns the status of the response.
    pub(crate) const fn status(self) -> HttpStatus {
        match self {
            Self::PathMalformed
            | Self::PathNotNormal
            | Self::PathIsDirectory
            | Self::Partial
            | Self::Damaged
            | Self::Window
            | Self::Coding => HttpStatus::BadRequest,
            Self::PathHidden | Self::Denied | Self::Pattern => HttpStatus::Forbidden,
            Self::NoDirectory => HttpStatus::NotFound,
            Self::Condition | Self::Exists => HttpStatus::PreconditionFailed,
            Self::Encoded => HttpStatus::UnsupportedMediaType,
            Self::TooLarge | Self::Ratio => HttpStatus::ContentTooLarge,
            Self::Quota | Self::NoSpace => HttpStatus::InsufficientStorage,
            Self::Slow => HttpStatus::RequestTimeout,
            Self::TooManyUploads | Self::DiskSlow => HttpStatus::ServiceUnavailable,
            Self::DiskFailed => HttpStatus::InternalServerError,
        }
    }

    /// Returns what the client is told after the status.
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::PathMalformed => "the target is not the path of a file; check its encoding",
            Self::PathNotNormal => "the path has empty, . or .. parts; remove them",
            Self::PathIsDirectory => "the path names a directory; add the name of a file",
            Self::PathHidden => "names must not begin with a dot; choose another name",
            Self::NoDirectory => "the directory of the file does not exist; create it first",
            Self::Denied => "the server may not write there; choose another path",
            Self::Condition => "the only condition of uploads is If-None-Match: *; omit others",
            Self::Exists => "the file exists; omit If-None-Match to replace it",
            Self::Partial => "parts of files cannot be uploaded; omit Content-Range",
            Self::Encoded => "the content coding is not decoded here; use one of Accept-Encoding",
            Self::Damaged => "the encoded content is damaged or incomplete; encode it again",
            Self::Window => "the window is larger than 8 MiB; compress with a smaller one",
            Self::Ratio => "the content decompresses to too much; send it without coding",
            Self::TooLarge => "the file is larger than the server accepts; send a smaller one",
            Self::Quota => "the quota for uploads is used up; send less, or ask for more room",
            Self::NoSpace => "the server's disk is full; try again later",
            Self::Coding => "the chunked coding is malformed; send it again",
            Self::Slow => "the content arrives too slowly; send it again",
            Self::Pattern => "the content has a denied pattern; remove it",
            Self::TooManyUploads => "too many uploads are in progress; try again later",
            Self::DiskSlow => "the server's disk does not answer; try again later",
            Self::DiskFailed => "the server's disk failed; try again later",
        }
    }

    /// Counts a refusal, before or after the upload has begun.
    pub(super) const fn count(self, counters: &mut UploadCounters) {
        match self {
            Self::PathMalformed
            | Self::PathNotNormal
            | Self::PathIsDirectory
            | Self::PathHidden
            | Self::NoDirectory
            | Self::Denied => counters.upload_refused_path += 1,
            Self::Condition | Self::Exists => counters.upload_refused_condition += 1,
            Self::TooLarge | Self::Ratio => counters.upload_refused_size += 1,
            Self::Quota => counters.upload_refused_quota += 1,
            Self::NoSpace => counters.upload_refused_no_space += 1,
            Self::TooManyUploads => counters.upload_refused_busy += 1,
            Self::DiskFailed | Self::DiskSlow => counters.upload_disk_errors += 1,
            Self::Partial
            | Self::Encoded
            | Self::Damaged
            | Self::Window
            | Self::Coding
            | Self::Slow
            | Self::Pattern => counters.upload_refused_content += 1,
        }
    }
}

impl From<FileFault> for UploadRefusal {
    fn from(fault: FileFault) -> Self {
        match fault {
            FileFault::NotFound => Self::NoDirectory,
            FileFault::Denied => Self::Denied,
            FileFault::BadPath => Self::PathIsDirectory,
            FileFault::NoSpace => Self::NoSpace,
            FileFault::Exists => Self::Exists,
            FileFault::Refused(_) => Self::TooManyUploads,
            _ => Self::DiskFailed,
        }
    }
}
