//! The access log: a bounded queue of lines in Combined Log Format.
//!
//! [`super::answer`] adds a line for each response when it is queued; the program takes the lines
//! with [`host::Application::poll_log`]. Lines that find the queue full are dropped and counted.
//! Values from clients are escaped as in nginx, so that they can neither forge lines nor control a
//! terminal.

use core::net::IpAddr;
use std::collections::VecDeque;
use std::fmt::Write as _;

/// Maximum length of the queue in lines.
const LINES_MAX: usize = 4096;
/// Maximum length of each value from a client, in bytes.
const FIELD_BYTES_MAX: usize = 1024;

/// The contents of a line.
#[derive(Debug)]
pub(crate) struct AccessLogRecord<'a> {
    pub(crate) remote: Option<IpAddr>,
    /// Request line as received.
    pub(crate) request: &'a [u8],
    pub(crate) status: u16,
    pub(crate) body_bytes: u64,
    pub(crate) referer: Option<&'a [u8]>,
    pub(crate) user_agent: Option<&'a [u8]>,
}

/// The queue of lines.
#[derive(Debug)]
pub(crate) struct AccessLogQueue {
    enabled: bool,
    lines: VecDeque<String>,
}

impl AccessLogQueue {
    pub(crate) const fn new(enabled: bool) -> Self {
        Self { enabled, lines: VecDeque::new() }
    }

    pub(crate) const fn enabled(&self) -> bool {
        self.enabled
    }

    /// Adds a line; returns whether the queue had room for it.
    pub(crate) fn add(
        &mut self,
        date: impl std::fmt::Display,
        record: &AccessLogRecord<'_>,
    ) -> bool {
        let mut line = String::with_capacity(160 + record.request.len());
        address(&mut line, record.remote);
        // Writing to a String cannot fail.
        let _ = write!(line, " - - [{date}] ");
        quoted(&mut line, Some(record.request));
        let _ = write!(line, " {} {} ", record.status, record.body_bytes);
        quoted(&mut line, record.referer);
        line.push(' ');
        quoted(&mut line, record.user_agent);
        self.push(line)
    }

    /// Adds a remark about a connection, as a comment between the lines.
    pub(crate) fn remark(
        &mut self,
        date: impl std::fmt::Display,
        remote: Option<IpAddr>,
        what: impl std::fmt::Display,
    ) -> bool {
        let mut line = String::from("# ");
        address(&mut line, remote);
        let _ = write!(line, " [{date}] {what}");
        self.push(line)
    }

    /// Removes and returns the oldest line.
    pub(crate) fn poll(&mut self) -> Option<String> {
        self.lines.pop_front()
    }

    /// Adds a line as it is; returns whether the queue had room for it.
    pub(crate) fn push(&mut self, line: String) -> bool {
        let room = self.lines.len() < LINES_MAX;
        if room {
            self.lines.push_back(line);
        }
        room
    }
}

fn address(line: &mut String, remote: Option<IpAddr>) {
    match remote {
        Some(addr) => {
            let _ = write!(line, "{addr}");
        }
        None => line.push('-'),
    }
}

/// Appends a value from a client, in quotes, escaped and truncated.
pub(crate) fn quoted(line: &mut String, value: Option<&[u8]>) {
    line.push('"');
    let value = value.filter(|v| !v.is_empty()).unwrap_or(b"-");
    for &byte in value.iter().take(FIELD_BYTES_MAX) {
        match byte {
            b' '..=b'~' if byte != b'"' && byte != b'\\' => line.push(char::from(byte)),
            _ => {
                let _ = write!(line, "\\x{byte:02X}");
            }
        }
    }
    line.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: AccessLogRecord<'_> = AccessLogRecord {
        remote: Some(IpAddr::V4(core::net::Ipv4Addr::new(10, 77, 0, 1))),
        request: b"GET /a HTTP/1.1",
        status: 200,
        body_bytes: 2326,
        referer: None,
        user_agent: Some(b"curl/8"),
    };

    #[test]
    fn combined_format() {
        let mut log = AccessLogQueue::new(true);
        assert!(log.add("DATE", &RECORD));
        assert_eq!(
            log.poll().as_deref(),
            Some("10.77.0.1 - - [DATE] \"GET /a HTTP/1.1\" 200 2326 \"-\" \"curl/8\"")
        );
        assert!(log.remark("DATE", None, "why"));
        assert_eq!(log.poll().as_deref(), Some("# - [DATE] why"));
        assert_eq!(log.poll(), None);
    }

    #[test]
    fn hostile_fields_are_escaped_and_bounded() {
        let mut log = AccessLogQueue::new(true);
        let long = vec![b'a'; 5000];
        log.add(
            "D",
            &AccessLogRecord { request: b"GET /\"\\\x1b[2J\n\xff", referer: Some(&long), ..RECORD },
        );
        let line = log.poll().expect("a line");
        assert!(line.contains("\"GET /\\x22\\x5C\\x1B[2J\\x0A\\xFF\""), "{line}");
        assert!(line.len() < 1300);
    }

    #[test]
    fn bounded() {
        let mut log = AccessLogQueue::new(true);
        let kept = (0..LINES_MAX + 5).filter(|_| log.add("D", &RECORD)).count();
        assert_eq!(kept, LINES_MAX);
    }
}
