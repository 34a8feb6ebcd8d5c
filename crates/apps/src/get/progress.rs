//! Progress of an exchange, and the bounds of its parts, for both versions of HTTP.

use super::response::ResponseHead;

/// Maximum length of a head over HTTP/1.1 in bytes; that over HTTP/3 is a part of our settings.
pub(super) const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of bytes of content that are returned at once.
pub(super) const CONTENT_BYTES_MAX: usize = 128 * 1024;

/// Progress of an exchange.
#[derive(Debug)]
pub(super) enum ExchangeProgress {
    /// Nothing has arrived, or there is no room for it.
    Waiting,
    /// The head of the final response.
    Head(ResponseHead),
    /// Bytes of the content, at least one.
    Content(Vec<u8>),
    /// The content is complete.
    Finished,
}
