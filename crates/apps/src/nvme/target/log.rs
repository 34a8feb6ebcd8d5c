//! The connection log: connects, refusals and ends of connections with their reasons, and changes
//! of namespaces.
//!
//! Called by `queue`, `server` and `namespaces`; the program takes the lines with
//! [`host::Application::poll_log`]. The log is bounded: lines that do not fit are dropped and
//! counted. Names from initiators are escaped, so no line can be forged.

use core::fmt::{self, Write as _};

use base::{Duration, Instant};
use wire::Endpoint;
use wire::nvme::fabrics::{CONNECT_DATA_BYTES, ConnectData};
use wire::nvme::nqn::Nqn;

use crate::content::date::HttpClock;
use crate::content::log::{AccessLogQueue, quoted};

/// The connection log of a target.
#[derive(Debug)]
pub(super) struct ConnectionLog {
    log: AccessLogQueue,
    clock: HttpClock,
    /// Lines dropped because the log was full.
    pub(super) lost: u64,
}

impl ConnectionLog {
    /// Creates a log that keeps lines if `enabled`. `unix_epoch` is the Unix time at
    /// [`Instant::ZERO`].
    pub(super) fn new(enabled: bool, unix_epoch: Duration) -> Self {
        Self { log: AccessLogQueue::new(enabled), clock: HttpClock::new(unix_epoch), lost: 0 }
    }

    /// Adds a line about a peer, or about the target itself.
    pub(super) fn add(&mut self, now: Instant, remote: Option<Endpoint>, what: impl fmt::Display) {
        if !self.log.enabled() {
            return;
        }
        self.clock.advance(now);
        let mut line = String::new();
        // Writing to a String cannot fail.
        let _ = match remote {
            Some(Endpoint { addr, port }) => {
                write!(line, "{}", core::net::SocketAddr::new(addr, port))
            }
            None => line.write_char('-'),
        };
        let _ = write!(line, " [{}] {what}", self.clock.log());
        self.lost += u64::from(!self.log.push(line));
    }

    /// Removes and returns the oldest line.
    pub(super) fn poll(&mut self) -> Option<String> {
        self.log.poll()
    }
}

/// Formats an NQN for a line: quoted and escaped.
pub(super) struct QuotedNqn<'a>(pub(super) &'a Nqn);

impl fmt::Display for QuotedNqn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        quoted(&mut text, Some(self.0.as_str().as_bytes()));
        f.write_str(&text)
    }
}

/// Formats a host identifier as a UUID.
pub(super) struct HostId(pub(super) [u8; 16]);

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_char('-')?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// Formats the initiator's names in the data of a Connect command.
pub(super) struct ConnectNames<'a>(pub(super) &'a [u8]);

impl fmt::Display for ConnectNames<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(data) = <&[u8; CONNECT_DATA_BYTES]>::try_from(self.0) else {
            return f.write_str("host=?");
        };
        let ConnectData { hostid, subnqn, hostnqn, .. } = ConnectData::parse(data);
        match &hostnqn {
            Some(host) => write!(f, "host={}", QuotedNqn(host))?,
            None => f.write_str("host=?")?,
        }
        write!(f, " hostid={}", HostId(hostid))?;
        match &subnqn {
            Some(subsystem) => write!(f, " subsystem={}", QuotedNqn(subsystem)),
            None => f.write_str(" subsystem=?"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_cannot_be_forged_and_are_bounded() {
        let mut log = ConnectionLog::new(true, Duration::from_secs(784_111_777));
        let name = Nqn::new("nqn.2026-11.example:a\n10.0.0.1 \"b\"");
        let data = ConnectData { hostid: [0xab; 16], cntlid: 0, subnqn: None, hostnqn: name };
        let remote = Endpoint { addr: [192, 0, 2, 1].into(), port: 999 };
        log.add(Instant::ZERO, Some(remote), ConnectNames(&data.to_bytes()));
        let line = log.poll().unwrap();
        let start = "192.0.2.1:999 [06/Nov/1994:08:49:37 +0000] host=";
        assert!(line.starts_with(start) && !line.contains('\n'), "{line}");
        let end = "hostid=abababab-abab-abab-abab-abababababab subsystem=?";
        assert!(line.ends_with(end), "{line}");
        (0..5000).for_each(|count| log.add(Instant::ZERO, None, count));
        assert_eq!(log.lost, 5000 - 4096);
        let mut off = ConnectionLog::new(false, Duration::ZERO);
        off.add(Instant::ZERO, None, "x");
        assert_eq!((off.poll(), off.lost), (None, 0));
    }
}
