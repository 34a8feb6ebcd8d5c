//! Uploads over HTTP/1.1: content from the connection to [`crate::content::upload`].
//!
//! Half of [`HttpConnection`]. The content stays in the receive buffer while the upload has no
//! room, so that TCP's window closes. The bytes of the chunked coding are bounded between two
//! pieces of content.

use bytes::Bytes;

use super::{
    CONTINUE, ConnAction, HttpConnection, HttpConnectionEnv, HttpConnectionPhase, RequestProgress,
};
use crate::content::answer::{PutFields, RequestContentState};
use crate::content::reader::ContentReader;
use crate::content::request::ContentFraming;
use crate::content::response::ResponsePiece;
use crate::content::sockets::ContentSockets;
use crate::content::upload::{UploadId, UploadOrder, UploadRefusal, UploadStatus};

/// Maximum number of bytes of the chunked coding between two pieces of content: extensions and
/// trailers.
const CODING_BYTES_MAX: usize = 16 * 1024;

/// Properties of an upload that follow from the head.
#[derive(Clone, Copy, Debug)]
pub(super) struct UploadParts {
    pub(super) framing: ContentFraming,
    pub(super) put: PutFields,
    pub(super) expects_continue: bool,
}

/// An upload in progress.
#[derive(Debug)]
pub(super) struct HttpUpload {
    id: UploadId,
    reader: ContentReader,
    /// Bytes of the coding since the last piece of content.
    coding_bytes: usize,
    /// The client waits for 100.
    expects_continue: bool,
    /// The file is open: the deadline is that of the content.
    is_open: bool,
}

impl<I: Copy + Eq> HttpConnection<I> {
    /// Stores the head, and begins to create the file.
    pub(super) fn begin_upload<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
        head_bytes: usize,
        UploadParts { framing, put, expects_continue }: UploadParts,
    ) -> RequestProgress {
        let (reader, declared) = match framing {
            ContentFraming::None => (ContentReader::length(0), Some(0)),
            ContentFraming::Length(bytes) => (ContentReader::length(bytes), Some(bytes)),
            ContentFraming::Chunked => (ContentReader::chunked(), None),
        };
        let owner = self.waiter::<S>();
        let PutFields { replace, coding } = put;
        let order = UploadOrder { declared, replace, coding };
        let begun = cx.responder.begin_upload(cx.host, owner, order, self.rules.clone());
        let partial = self.keep_head(cx, head_bytes);
        match begun {
            Ok(id) => {
                partial.upload = Some(HttpUpload {
                    id,
                    reader,
                    coding_bytes: 0,
                    expects_continue,
                    is_open: false,
                });
                self.phase = HttpConnectionPhase::Uploading;
                // The disk's time is not the client's fault, but must be bounded too.
                self.deadline = cx.now + cx.config.send_timeout;
                RequestProgress::Again
            }
            Err(refusal) => {
                partial.content = RequestContentState::NotStored(refusal);
                self.phase = HttpConnectionPhase::Head;
                self.answer(cx, None)
            }
        }
    }

    /// Makes progress with an upload: reads content, or answers the request.
    pub(super) fn receive_upload<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
    ) -> RequestProgress {
        if let Err(error) = self.flush(cx) {
            return self.send_failed(cx, error);
        }
        let Some(partial) = &mut self.partial else { return self.answer(cx, None) };
        let (Some(upload), Some(uploads)) = (&mut partial.upload, &mut cx.responder.uploads) else {
            return self.answer(cx, None);
        };
        partial.content = match uploads.status(upload.id) {
            UploadStatus::Opening | UploadStatus::Finishing => return RequestProgress::Wait,
            UploadStatus::Receiving => return self.receive_content(cx),
            UploadStatus::Stored { replaced } => RequestContentState::Stored { replaced },
            UploadStatus::Failed(refusal) => RequestContentState::NotStored(refusal),
        };
        self.phase = HttpConnectionPhase::Head;
        self.answer(cx, None)
    }

    /// Reads content for which the upload has room.
    fn receive_content<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
    ) -> RequestProgress {
        let upload = self.partial.as_mut().and_then(|partial| partial.upload.as_mut());
        let Some(upload) = upload else { return RequestProgress::Wait };
        let (id, begins) = (upload.id, core::mem::take(&mut upload.expects_continue));
        if !core::mem::replace(&mut upload.is_open, true) {
            self.deadline = cx.now + cx.config.content_timeout;
        }
        // RFC 9110 section 10.1.1: 100 is omitted if content has already arrived.
        if begins && cx.host.peek(self.socket).is_empty() && !upload.reader.is_done() {
            let piece = ResponsePiece::Bytes(Bytes::from_static(CONTINUE));
            if let Err(error) = self.send(cx, piece) {
                return self.send_failed(cx, error);
            }
        }
        let refusal = match self.take_content(cx, id) {
            Ok(true) => {
                if let Some(uploads) = &mut cx.responder.uploads {
                    uploads.finish(cx.host, id);
                }
                self.deadline = cx.now + cx.config.send_timeout;
                return RequestProgress::Wait;
            }
            // An upload that has failed is resumed.
            Ok(false) => return RequestProgress::Wait,
            Err(refusal) => refusal,
        };
        if let Some(uploads) = &mut cx.responder.uploads {
            uploads.refuse(id, refusal);
        }
        RequestProgress::Again
    }

    /// Moves content to the upload, until it is complete (returns true), or no more has arrived or
    /// has room (returns false).
    fn take_content<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
        id: UploadId,
    ) -> Result<bool, UploadRefusal> {
        loop {
            if !cx.admits(self.socket, &self.rules) {
                return Err(UploadRefusal::Pattern);
            }
            let upload = self.partial.as_mut().and_then(|partial| partial.upload.as_mut());
            let (Some(upload), Some(uploads)) = (upload, &mut cx.responder.uploads) else {
                return Ok(false);
            };
            if upload.reader.is_done() {
                return Ok(true);
            }
            if cx.host.peek(self.socket).is_empty() {
                return Ok(false);
            }
            let room = uploads.room(id);
            if room == 0 {
                return Ok(false);
            }
            let received = cx.host.peek(self.socket);
            let mut rest = &received[..received.len().min(room)];
            let before = rest.len();
            let piece = upload.reader.take(&mut rest).map_err(|_| UploadRefusal::Coding)?;
            let coding = before - rest.len() - piece.len();
            upload.coding_bytes = if piece.is_empty() { upload.coding_bytes + coding } else { 0 };
            if upload.coding_bytes > CODING_BYTES_MAX {
                return Err(UploadRefusal::Coding);
            }
            let taken = before - rest.len();
            uploads.push(id, piece);
            cx.host.consume(self.socket, taken);
            uploads.write_if_full(cx.host, id);
            if matches!(uploads.status(id), UploadStatus::Failed(_)) {
                return Ok(false);
            }
        }
    }

    /// Handles the deadline of an upload: continues if enough has arrived meanwhile.
    pub(super) fn check_upload<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
    ) -> ConnAction {
        let upload = self.partial.as_mut().and_then(|partial| partial.upload.as_mut());
        if let (Some(upload), Some(uploads)) = (upload, &mut cx.responder.uploads) {
            match uploads.check_pace(upload.id) {
                Ok(()) => self.deadline = cx.now + cx.config.content_timeout,
                Err(refusal) => cx.responder.counters.count_upload_timeout(refusal),
            }
        }
        self.answer_requests(cx)
    }

    /// Returns whether all content of an upload has arrived, so that it no longer needs the client.
    pub(super) fn has_whole_upload(&self) -> bool {
        let upload = self.partial.as_ref().and_then(|partial| partial.upload.as_ref());
        upload.is_some_and(|upload| upload.reader.is_done())
    }

    /// Returns the upload in progress, which ends with the connection.
    pub(crate) fn upload(&self) -> Option<UploadId> {
        self.partial.as_ref()?.upload.as_ref().map(|upload| upload.id)
    }

    /// Removes the stored head, and ends the upload that belongs to it. Returns whether there was
    /// one.
    pub(super) fn take_partial<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
    ) -> bool {
        if let (Some(id), Some(uploads)) = (self.upload(), &mut cx.responder.uploads) {
            uploads.end(id);
        }
        self.partial.take().is_some()
    }
}
