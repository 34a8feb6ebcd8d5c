//! Counters of uploads.

base::counters! {
    /// Counters of the uploads to one content server.
    pub struct UploadCounters {
        /// Uploads whose file was created, or was about to be.
        uploads_begun,
        /// Of those, uploads whose file was published.
        uploads_completed,
        /// Of those, uploads that failed or were given up by the client.
        uploads_failed,
        /// Of those begun, uploads whose content had a content coding.
        uploads_encoded,
        /// Bytes of encoded content that were received.
        upload_encoded_bytes,
        /// Bytes of content, decompressed if it was encoded, that were written to the disk.
        upload_bytes,
        /// Times that an upload waited for the disk or for memory, with its content held back.
        upload_waits,
        /// Refusals because of the path.
        upload_refused_path,
        /// 412: the file exists, or the condition is not supported.
        upload_refused_condition,
        /// 413: larger than the maximum size of a file, or compressed too much.
        upload_refused_size,
        /// 507: the quota was used up.
        upload_refused_quota,
        /// 507: the disk was full.
        upload_refused_no_space,
        /// 503: too many uploads or open files.
        upload_refused_busy,
        /// Refusals because of the content: its coding, damage, a range, its slowness.
        upload_refused_content,
        /// 500 and 503: the disk failed, or did not answer.
        upload_disk_errors: alarm,
    }
}
