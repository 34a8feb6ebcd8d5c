//! An open file, with the fields of the response head that do not change between requests.
//!
//! Created by [`super::file_cache`] once for each open, read by [`super::response`] for each
//! request.

use abi::{FileId, FileStat};

use super::conditional::{ETAG_BYTES, Validators};
use super::date;

/// An open regular file.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) file: FileId,
    /// Size in bytes.
    pub(crate) size: u64,
    /// [`FileStat::version`]: equal means equal bytes.
    pub(crate) version: u64,
    pub(crate) validators: Validators,
    /// Content-Length, Content-Type, Accept-Ranges, ETag, Last-Modified, each with its line end, in
    /// this order: most kinds of response contain a tail of it.
    fields: Box<[u8]>,
    type_at: u16,
    ranges_at: u16,
    etag_at: u16,
}

impl OpenFile {
    /// Prepares the fields. `now_s` is the Unix time in seconds.
    pub(crate) fn new(path: &[u8], file: FileId, stat: &FileStat, now_s: u64) -> Self {
        // RFC 9110 section 8.8.2.1: Last-Modified is never later than now.
        let modified_s = u64::try_from(stat.modified_s).unwrap_or(0).min(now_s);
        let date = date::format(modified_s);
        let etag = etag(stat.version);
        let mut fields = format!("Content-Length: {}\r\n", stat.size).into_bytes();
        let type_at = offset(&fields);
        let mut type_field = String::new();
        write_type_field(path, &mut type_field);
        fields.extend_from_slice(type_field.as_bytes());
        let ranges_at = offset(&fields);
        fields.extend_from_slice(b"Accept-Ranges: bytes\r\n");
        let etag_at = offset(&fields);
        fields.extend_from_slice(b"ETag: ");
        fields.extend_from_slice(&etag);
        fields.extend_from_slice(b"\r\n");
        if let Some(date) = &date {
            fields.extend_from_slice(b"Last-Modified: ");
            fields.extend_from_slice(date.as_bytes());
            fields.extend_from_slice(b"\r\n");
        }
        let validators = Validators { etag, modified_s: date.map(|_| modified_s) };
        let fields = fields.into_boxed_slice();
        Self {
            file,
            size: stat.size,
            version: stat.version,
            validators,
            fields,
            type_at,
            ranges_at,
            etag_at,
        }
    }

    /// Returns all fields: for 200.
    pub(crate) fn fields(&self) -> &[u8] {
        &self.fields
    }

    /// Returns Content-Length: for 200 with another Content-Type.
    pub(crate) fn length_field(&self) -> &[u8] {
        &self.fields[..usize::from(self.type_at)]
    }

    /// Returns Content-Type: for a part of a multipart response.
    pub(crate) fn type_field(&self) -> &[u8] {
        &self.fields[usize::from(self.type_at)..usize::from(self.ranges_at)]
    }

    /// Returns Accept-Ranges, ETag and Last-Modified, which follow Content-Type.
    pub(crate) fn fields_from_ranges(&self) -> &[u8] {
        &self.fields[usize::from(self.ranges_at)..]
    }

    /// Returns ETag and Last-Modified: for 304 (RFC 9110 section 15.4.5).
    pub(crate) fn validator_fields(&self) -> &[u8] {
        &self.fields[usize::from(self.etag_at)..]
    }
}

/// Converts a length to an offset. The fields are a few hundred bytes: a length, a type from a
/// static table, an entity-tag, a date.
fn offset(fields: &[u8]) -> u16 {
    u16::try_from(fields.len()).unwrap_or(u16::MAX)
}

/// Formats a strong entity-tag: equal versions mean equal bytes (RFC 9110 section 8.8.1).
fn etag(version: u64) -> [u8; ETAG_BYTES] {
    let mut etag = [b'"'; ETAG_BYTES];
    for (digit, at) in etag[1..17].iter_mut().zip((0..16).rev()) {
        *digit = b"0123456789abcdef"[((version >> (at * 4)) & 15) as usize];
    }
    etag
}

/// Writes the Content-Type field, with its line end, for a file of that name.
pub(crate) fn write_type_field(path: &[u8], out: &mut impl core::fmt::Write) {
    let kind = content_type(path);
    let charset = if wants_charset(kind) { "; charset=utf-8" } else { "" };
    // Writing to memory cannot fail.
    let _ = write!(out, "Content-Type: {kind}{charset}\r\n");
}

/// Returns the media type for the name's extension.
fn content_type(path: &[u8]) -> &'static str {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    // A leading dot begins no extension, and an extension that is not UTF-8 has no known type.
    let extension = name.iter().rposition(|byte| *byte == b'.').filter(|at| *at > 0);
    let extension = extension.and_then(|at| core::str::from_utf8(&name[at + 1..]).ok());
    let guess = extension.and_then(|extension| mime_guess::from_ext(extension).first_raw());
    guess.unwrap_or("application/octet-stream")
}

/// Returns whether a type gets a charset. Text is assumed to be UTF-8.
fn wants_charset(content_type: &str) -> bool {
    content_type.starts_with("text/")
        || matches!(content_type, "application/javascript" | "application/xml")
}

#[cfg(test)]
pub(super) fn stat(size: u64, version: u64) -> FileStat {
    let (modified_s, modified_ns) = (784_111_777, 5);
    FileStat { kind: abi::FileKind::Regular, size, modified_s, modified_ns, version }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> &str {
        core::str::from_utf8(bytes).expect("fields are text")
    }

    #[test]
    fn prepared_fields() {
        let file = OpenFile::new(b"a/b.html", FileId(1), &stat(12, 0xab), 1_000_000_000);
        assert_eq!(
            text(&file.fields),
            "Content-Length: 12\r\nContent-Type: text/html; charset=utf-8\r\n\
             Accept-Ranges: bytes\r\nETag: \"00000000000000ab\"\r\n\
             Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n"
        );
        assert_eq!(text(file.length_field()), "Content-Length: 12\r\n");
        assert_eq!(text(file.type_field()), "Content-Type: text/html; charset=utf-8\r\n");
        assert!(text(file.fields_from_ranges()).starts_with("Accept-Ranges"));
        assert!(text(file.validator_fields()).starts_with("ETag"));
        assert_eq!(file.validators.modified_s, Some(784_111_777));
    }

    #[test]
    fn types() {
        for (path, expected) in [
            ("a.txt", "text/plain"),
            ("a.CSS", "text/css"),
            ("a.js", "text/javascript"),
            ("a.png", "image/png"),
            ("a.json", "application/json"),
            ("a.mp4", "video/mp4"),
            ("a", "application/octet-stream"),
            (".html", "application/octet-stream"),
            ("a.html/b", "application/octet-stream"),
            ("a.no-such-type", "application/octet-stream"),
            ("a.tar.gz", "application/gzip"),
        ] {
            assert_eq!(content_type(path.as_bytes()), expected, "{path}");
        }
        assert!(wants_charset("text/css") && !wants_charset("image/png"));
    }

    #[test]
    fn odd_times() {
        let mut odd = stat(0, 0);
        odd.modified_s = -5;
        assert_eq!(OpenFile::new(b"a", FileId(1), &odd, 7).validators.modified_s, Some(0));
        odd.modified_s = 9;
        assert_eq!(OpenFile::new(b"a", FileId(1), &odd, 7).validators.modified_s, Some(7));
        odd.modified_s = i64::MAX;
        let file = OpenFile::new(b"a", FileId(1), &odd, u64::MAX);
        assert_eq!(file.validators.modified_s, None);
        assert!(!text(&file.fields).contains("Last-Modified"));
    }
}
