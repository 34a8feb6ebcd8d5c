//! Content that the application provides, in place of the host's own disk: files on remote storage.
//!
//! With [`crate::ContentSource::Application`] each open and read of content becomes a
//! [`ContentRequest`] for the application ([`crate::Host::poll_content_request`]), which answers
//! when it can. The bytes of an answer are shared and never copied: send streams hold them until
//! they are acknowledged, and the device sends and encrypts them from where they are.
//!
//! Called by `files`, which keeps the open files and the pending requests.

use abi::FileFault;
use abi::disk::{DiskFile, DiskRequestId};
use bytes::Bytes;

use super::files::{DiskOwner, FileCompletion, Files, PendingDiskRequest};
use super::source::UnreadRange;
use crate::api::ContentRequest;
use crate::net::outbox::Outbox;

impl Files {
    /// Requests the bytes of `unread`, `want` at most, from the application.
    pub(super) fn request_content(
        &mut self,
        out: &mut Outbox,
        owner: DiskOwner,
        unread: &UnreadRange,
        (disk, want): (DiskFile, u64),
    ) -> bool {
        let len_min = unread.bytes_min.min(unread.bytes);
        let (Ok(len), Ok(len_min), Ok(bytes)) =
            (u32::try_from(want), u32::try_from(len_min), usize::try_from(want))
        else {
            return false;
        };
        let &UnreadRange { file, offset, .. } = unread;
        let least = len_min as usize;
        let id = self.request(PendingDiskRequest::Content { file, owner, bytes, least });
        self.count_request(file);
        let expected = unread.bytes;
        out.content.push_back(ContentRequest::Read {
            id,
            file: disk,
            offset,
            len,
            len_min,
            expected,
        });
        true
    }

    /// Handles the application's answer to a read.
    pub(crate) fn handle_content_read(
        &mut self,
        out: &mut Outbox,
        id: DiskRequestId,
        result: Result<Bytes, FileFault>,
    ) -> Option<FileCompletion> {
        let Some(PendingDiskRequest::Content { file, owner, bytes, least }) = self.take_request(id)
        else {
            return None;
        };
        self.uncount_request(file);
        let result = result.and_then(|content| {
            let fits = (least..=bytes).contains(&content.len());
            debug_assert!(fits, "{} bytes were provided, not {least}..={bytes}", content.len());
            if fits { Ok(content) } else { Err(FileFault::Io) }
        });
        if let Ok(content) = &result {
            out.counters.file_provided_bytes += content.len() as u64;
        }
        self.remove_if_unused(out, file);
        Some(FileCompletion::Read { owner, result })
    }
}
