//! Uploads over HTTP/3: content from a request stream to [`crate::content::upload`].
//!
//! Part of [`Http3`]. A stream whose upload has no room is not read, so that its flow control
//! credit is used up, and then that of the connection.

use base::Instant;
use bytes::Bytes;
use quic::{QuicHandle, StreamId};

use super::{Http3, Http3Env, READ_BYTES, frame, message};
use crate::content::answer::{PutFields, RequestContentState};
use crate::content::file_cache::OpenWaiter;
use crate::content::upload::{UploadId, UploadOrder, UploadStatus};

/// An upload in progress.
#[derive(Debug)]
pub(super) struct Http3Upload {
    pub(super) id: UploadId,
    /// Number of the request among those with uploads.
    serial: u32,
    /// Time by which the file must be open, or enough content must have arrived.
    pub(super) deadline: Instant,
    /// The client waits for 100.
    expects_continue: bool,
}

impl Http3 {
    /// Begins the upload that was decided on.
    pub(super) fn begin_upload(
        &mut self,
        cx: &mut Http3Env<'_>,
        (handle, stream): (QuicHandle, StreamId),
        PutFields { replace, coding }: PutFields,
        expects_continue: bool,
    ) {
        self.next_serial = self.next_serial.wrapping_add(1);
        let serial = self.next_serial;
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        let rules = connection.rules.clone();
        let Some(request) = connection.requests.get_mut(&stream) else { return };
        let order = UploadOrder { declared: request.message.declared(), replace, coding };
        let owner = OpenWaiter::Request(serial);
        match cx.responder.begin_upload(cx.host, owner, order, rules) {
            Ok(id) => {
                let deadline = cx.now + self.times.open();
                request.upload = Some(Http3Upload { id, serial, deadline, expects_continue });
                request.waits_for_file = true;
                self.uploading.insert(serial, (handle, stream));
                self.expect_head(cx.now, handle);
            }
            Err(refusal) => {
                request.content = RequestContentState::NotStored(refusal);
                self.answer(cx, handle, stream, None);
            }
        }
    }

    /// Makes progress with an upload for which something has changed.
    pub(crate) fn handle_upload(&mut self, cx: &mut Http3Env<'_>, serial: u32) {
        let Some(&(handle, stream)) = self.uploading.get(&serial) else { return };
        let connection = self.connections.get_mut(&handle);
        let Some(request) = connection.and_then(|c| c.requests.get_mut(&stream)) else { return };
        let (Some(upload), Some(uploads)) = (&mut request.upload, &cx.responder.uploads) else {
            return;
        };
        request.content = match uploads.status(upload.id) {
            UploadStatus::Opening | UploadStatus::Finishing => return,
            UploadStatus::Receiving => {
                let lacks = request.message.lacks_stored_content();
                if core::mem::take(&mut upload.expects_continue) && lacks {
                    self.send_continue(handle, stream);
                }
                self.store_content(cx, handle, stream);
                return self.read(cx, handle, stream);
            }
            UploadStatus::Stored { replaced } => RequestContentState::Stored { replaced },
            UploadStatus::Failed(refusal) => RequestContentState::NotStored(refusal),
        };
        self.answer(cx, handle, stream, None);
    }

    /// Sends an informational response (RFC 9114 section 4.1).
    fn send_continue(&mut self, handle: QuicHandle, stream: StreamId) {
        let (mut section, mut bytes) = (Vec::new(), Vec::new());
        message::response_section(b"HTTP/1.1 100 Continue\r\n\r\n", &mut section);
        frame::put_frame(&mut bytes, frame::HEADERS, &section);
        self.endpoint.write(handle, stream, Bytes::from(bytes));
    }

    /// Returns whether the head of an upload has arrived that has not begun.
    pub(super) fn can_begin_upload(&self, handle: QuicHandle, stream: StreamId) -> bool {
        let connection = self.connections.get(&handle);
        let request = connection.and_then(|connection| connection.requests.get(&stream));
        request.is_some_and(|r| r.message.keeps_content() && r.head.is_some() && r.upload.is_none())
    }

    /// Returns the number of bytes to read from a stream; `None` if its upload has no room.
    pub(super) fn room(
        &self,
        cx: &mut Http3Env<'_>,
        handle: QuicHandle,
        stream: StreamId,
    ) -> Option<usize> {
        let connection = self.connections.get(&handle);
        let request = connection.and_then(|connection| connection.requests.get(&stream));
        let upload = request.and_then(|request| Some((request.upload.as_ref()?, &request.message)));
        let Some((upload, message)) = upload else { return Some(READ_BYTES) };
        if !message.lacks_stored_content() {
            return Some(READ_BYTES);
        }
        let room = cx.responder.uploads.as_mut()?.room(upload.id);
        (room > 0).then_some(room.min(READ_BYTES))
    }

    /// Moves content that was read to the upload, and completes an upload that has all.
    pub(super) fn store_content(
        &mut self,
        cx: &mut Http3Env<'_>,
        handle: QuicHandle,
        stream: StreamId,
    ) {
        let connection = self.connections.get_mut(&handle);
        let Some(request) = connection.and_then(|c| c.requests.get_mut(&stream)) else { return };
        let (Some(upload), Some(uploads)) = (&request.upload, &mut cx.responder.uploads) else {
            return;
        };
        let data = request.message.data();
        if !data.is_empty() {
            // No more is read than there is room for, except with the head.
            if uploads.room(upload.id) < data.len() {
                return;
            }
            uploads.push(upload.id, data);
            uploads.write_if_full(cx.host, upload.id);
            data.clear();
        }
        if request.ended || !request.message.lacks_stored_content() {
            uploads.finish(cx.host, upload.id);
        }
    }

    /// Ends the upload of a request, if it has one.
    pub(super) fn end_upload(
        &mut self,
        cx: &mut Http3Env<'_>,
        handle: QuicHandle,
        stream: StreamId,
    ) {
        let connection = self.connections.get_mut(&handle);
        let request = connection.and_then(|connection| connection.requests.get_mut(&stream));
        let upload = request.and_then(|request| request.upload.take());
        self.release_upload(cx, upload);
    }

    /// Ends an upload that was removed from its request.
    pub(super) fn release_upload(&mut self, cx: &mut Http3Env<'_>, upload: Option<Http3Upload>) {
        if let (Some(upload), Some(uploads)) = (upload, &mut cx.responder.uploads) {
            self.uploading.remove(&upload.serial);
            uploads.end(upload.id);
        }
    }
}
