//! Decompression of the content of uploads: jobs to the host, and what becomes of their output.
//!
//! Part of [`Uploads`]. All limits apply to the decompressed bytes, and are checked after each job,
//! so that no more than a buffer exceeds them.

use abi::decompress::{DecodeFault, DecodeProgress};
use host::DecompressDone;
use structures::slab::SlabKey;

use super::{UploadRefusal, UploadState, Uploads};
use crate::content::sockets::ContentSockets;
use crate::pattern_inspection::ContentInspection;

/// Inspects decompressed bytes; returns whether they may be stored.
pub(crate) type ContentFilter<'a> = dyn FnMut(&mut ContentInspection, &[u8]) -> bool + 'a;

impl Uploads {
    /// Begins the decompression of content for which there is a decoder and a buffer.
    pub(crate) fn begin_decoding<S: ContentSockets>(&mut self, host: &mut S) {
        while let Some(key) = self.decodable.pop_front() {
            self.begin_job(host, key);
        }
    }

    fn begin_job<S: ContentSockets>(&mut self, host: &mut S, key: SlabKey) {
        let Some(upload) = self.uploads.get(key) else { return };
        let takes = matches!(upload.state, UploadState::Receiving | UploadState::Decoding);
        if !takes || upload.encoded.as_ref().is_none_or(|encoded| !encoded.is_idle()) {
            return;
        }
        self.take_buffer(key);
        let Some(upload) = self.uploads.get_mut(key) else { return };
        let (Some(encoded), Some(output)) = (&mut upload.encoded, upload.buffer.take()) else {
            return;
        };
        if let Some(job) = encoded.begin_job(output, upload.filled) {
            host.decompress(upload.token(key), job);
        }
    }

    /// Handles a completed job.
    pub(super) fn handle_decompressed<S: ContentSockets>(
        &mut self,
        host: &mut S,
        DecompressDone { number, job, result }: DecompressDone,
        admits: &mut ContentFilter<'_>,
    ) {
        let key = SlabKey::from_u64(number);
        let Some(upload) = self.uploads.get_mut(key) else { return };
        let output = upload.encoded.as_mut().and_then(|encoded| encoded.end_job(job));
        let Some((buffer, lease)) = output else { return };
        match upload.state {
            UploadState::Receiving | UploadState::Decoding => {
                upload.buffer = Some((buffer, lease));
                match self.accept(key, result, admits) {
                    Ok(is_complete) => self.continue_decoding(host, key, is_complete),
                    Err(refusal) => self.fail(key, refusal),
                }
            }
            state => {
                self.return_buffer(lease, Some(buffer));
                if state == UploadState::Ended {
                    self.remove_if_done(key);
                }
            }
        }
    }

    /// Takes the output of a job into the file. Returns whether the content may end here.
    fn accept(
        &mut self,
        key: SlabKey,
        result: Result<DecodeProgress, DecodeFault>,
        admits: &mut ContentFilter<'_>,
    ) -> Result<bool, UploadRefusal> {
        let progress = result?;
        let upload = self.uploads.get_mut(key);
        let Some(upload) = upload else { return Err(UploadRefusal::Damaged) };
        let (Some(encoded), Some((buffer, _))) = (&mut upload.encoded, &upload.buffer) else {
            return Err(UploadRefusal::Damaged);
        };
        encoded.advance(progress)?;
        if encoded.produced() > self.config.file_bytes_max {
            return Err(UploadRefusal::TooLarge);
        }
        let missing = encoded.produced().saturating_sub(upload.reserved);
        if !self.config.quota.reserve(missing) {
            return Err(UploadRefusal::Quota);
        }
        upload.reserved += missing;
        let end = (upload.filled + progress.produced).min(buffer.len());
        let bytes = &buffer.as_slice()[upload.filled..end];
        upload.filled = end;
        if !admits(&mut encoded.inspection, bytes) {
            return Err(UploadRefusal::Pattern);
        }
        Ok(progress.is_complete)
    }

    /// Writes a full buffer, and continues with the rest of the input or with more content.
    fn continue_decoding<S: ContentSockets>(
        &mut self,
        host: &mut S,
        key: SlabKey,
        is_complete: bool,
    ) {
        let Some(upload) = self.uploads.get_mut(key) else { return };
        let buffer = upload.buffer.as_ref();
        let is_full = buffer.is_some_and(|(buffer, _)| buffer.len() == upload.filled);
        let has_input = upload.encoded.as_ref().is_some_and(|encoded| encoded.has_input());
        match upload.state {
            _ if has_input => self.decodable.push_back(key),
            UploadState::Decoding if is_complete => {
                upload.state = UploadState::Writing;
                self.write(host, key);
                return self.advance(host, key);
            }
            // The decoder may hold more.
            UploadState::Decoding if is_full => self.decodable.push_back(key),
            UploadState::Decoding => return self.fail(key, UploadRefusal::Damaged),
            _ if upload.waits_for_room => self.resumed.push_back(upload.owner),
            _ => {}
        }
        if is_full {
            self.write(host, key);
        }
    }
}
