//! A TCP segment as a test writes it. Fields that are not set are filled in when a segment is sent,
//! and ignored when segments are compared.
//!
//! Sequence and acknowledgment numbers are relative: 0 is the SYN of the side that sent the byte, 1
//! its first byte of data. The host's timestamps are milliseconds of the test's clock; the peer's
//! are as written.

use core::fmt;

use wire::tcp::TcpFlags;

/// A TCP segment, written with [`seg!`](crate::seg!).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seg {
    /// Control bits. PSH is compared only if the expected segment has it.
    pub flags: TcpFlags,
    /// Sequence number of the first byte.
    pub seq: Option<u32>,
    /// Acknowledgment number.
    pub ack: Option<u32>,
    /// Window field, unscaled.
    pub win: Option<u16>,
    /// Payload length in bytes.
    pub len: Option<u32>,
    /// Payload; `len` zero bytes if not set.
    pub data: Option<Vec<u8>>,
    /// Maximum segment size.
    pub mss: Option<u16>,
    /// Window scale.
    pub wscale: Option<u8>,
    /// SACK permitted.
    pub sack_ok: bool,
    /// TSval of the timestamp option.
    pub tsval: Option<u32>,
    /// TSecr of the timestamp option.
    pub tsecr: Option<u32>,
    /// Sent: no timestamp option, even if the connection uses timestamps. Expected: no timestamp
    /// option.
    pub no_ts: bool,
    /// SACK blocks; if `None`, any are accepted.
    pub sacks: Option<Vec<(u32, u32)>>,
    /// ECN field of the IP header.
    pub ecn: Option<u8>,
    /// True if the host marked the transmit as a retransmission.
    pub again: Option<bool>,
    /// Segment size of a run; 0 for a single segment.
    pub run: Option<u16>,
    /// Offset and length of the payload's bytes that come from a file.
    pub file: Option<(u64, u32)>,
    /// True if the transmit asks for an echo.
    pub echo: Option<bool>,
}

impl Seg {
    /// Returns how `got` differs from this expected segment; empty if it matches.
    #[must_use]
    pub fn differences(&self, got: &Self) -> Vec<String> {
        let mut wrong = Vec::new();
        let push =
            |f: TcpFlags| if self.flags.has(TcpFlags::PSH) { f } else { f.without(TcpFlags::PSH) };
        if push(self.flags) != push(got.flags) {
            wrong.push(format!("flags {:?}, not {:?}", got.flags, self.flags));
        }
        let mut field = |name: &str, want: Option<i64>, have: Option<i64>| {
            if want.is_some() && want != have {
                wrong.push(format!("{name} {have:?}, not {want:?}"));
            }
        };
        field("seq", self.seq.map(i64::from), got.seq.map(i64::from));
        field("ack", self.ack.map(i64::from), got.ack.map(i64::from));
        field("win", self.win.map(i64::from), got.win.map(i64::from));
        field("len", self.len.map(i64::from), got.len.map(i64::from));
        field("mss", self.mss.map(i64::from), got.mss.map(i64::from));
        field("wscale", self.wscale.map(i64::from), got.wscale.map(i64::from));
        field("tsval", self.tsval.map(i64::from), got.tsval.map(i64::from));
        field("tsecr", self.tsecr.map(i64::from), got.tsecr.map(i64::from));
        field("ecn", self.ecn.map(i64::from), got.ecn.map(i64::from));
        field("again", self.again.map(i64::from), got.again.map(i64::from));
        field("run", self.run.map(i64::from), got.run.map(i64::from));
        field("echo", self.echo.map(i64::from), got.echo.map(i64::from));
        if self.file.is_some() && self.file != got.file {
            wrong.push(format!("file {:?}, not {:?}", got.file, self.file));
        }
        if self.sacks.is_some() && self.sacks != got.sacks {
            wrong.push(format!("sack {:?}, not {:?}", got.sacks, self.sacks));
        }
        if self.data.is_some() && self.data != got.data {
            wrong.push(format!("other bytes: {:?}", got.data));
        }
        if self.sack_ok && !got.sack_ok {
            wrong.push("SACK is not permitted".into());
        }
        if self.no_ts && got.tsval.is_some() {
            wrong.push("it has timestamps".into());
        }
        wrong
    }
}

impl fmt::Display for Seg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.flags)?;
        let mut put = |name: &str, value: Option<u64>| match value {
            Some(value) => write!(f, " {name} {value}"),
            None => Ok(()),
        };
        put("seq", self.seq.map(u64::from))?;
        put("ack", self.ack.map(u64::from))?;
        put("len", self.len.map(u64::from))?;
        put("win", self.win.map(u64::from))?;
        put("mss", self.mss.map(u64::from))?;
        put("wscale", self.wscale.map(u64::from))?;
        put("tsval", self.tsval.map(u64::from))?;
        put("tsecr", self.tsecr.map(u64::from))?;
        put("ecn", self.ecn.filter(|&e| e != 0).map(u64::from))?;
        put("run", self.run.filter(|&r| r != 0).map(u64::from))?;
        if self.sack_ok {
            f.write_str(" sack_ok")?;
        }
        if self.again == Some(true) {
            f.write_str(" again")?;
        }
        if self.echo == Some(true) {
            f.write_str(" echo")?;
        }
        if let Some((offset, len)) = self.file {
            write!(f, " file {offset}+{len}")?;
        }
        for (start, end) in self.sacks.iter().flatten() {
            write!(f, " sack {start}..{end}")?;
        }
        Ok(())
    }
}

/// Builds a segment in packetdrill's style: `seg!(SYN ACK seq 0 ack 1 mss 1460)`.
///
/// Flags (`SYN ACK FIN RST PSH ECE CWR`) may be anywhere; fields are a name and a value: `seq ack
/// win len mss wscale tsval tsecr ecn run`, `data (b"..")`, `sack (1, 5)` (repeatable), `no_sack`,
/// `sack_ok`, `no_ts`, `again` (a retransmission), `first` (no retransmission), `file (0, 4096)`,
/// `echo`, `no_echo`. A value of more than one token is enclosed in parentheses.
#[macro_export]
macro_rules! seg {
    ($($t:tt)*) => {{
        let mut s = $crate::Seg::default();
        $crate::seg_fields!(s $($t)*);
        s
    }};
}

/// Parses the fields of [`seg!`](crate::seg!) recursively.
#[doc(hidden)]
#[macro_export]
macro_rules! seg_fields {
    ($s:ident) => {};
    ($s:ident sack ($a:expr, $b:expr) $($r:tt)*) => {
        $s.sacks.get_or_insert_with(Vec::new).push(($a, $b));
        $crate::seg_fields!($s $($r)*);
    };
    ($s:ident no_sack $($r:tt)*) => {
        $s.sacks = Some(Vec::new());
        $crate::seg_fields!($s $($r)*);
    };
    ($s:ident sack_ok $($r:tt)*) => { $s.sack_ok = true; $crate::seg_fields!($s $($r)*); };
    ($s:ident no_ts $($r:tt)*) => { $s.no_ts = true; $crate::seg_fields!($s $($r)*); };
    ($s:ident again $($r:tt)*) => { $s.again = Some(true); $crate::seg_fields!($s $($r)*); };
    ($s:ident first $($r:tt)*) => { $s.again = Some(false); $crate::seg_fields!($s $($r)*); };
    ($s:ident echo $($r:tt)*) => { $s.echo = Some(true); $crate::seg_fields!($s $($r)*); };
    ($s:ident no_echo $($r:tt)*) => { $s.echo = Some(false); $crate::seg_fields!($s $($r)*); };
    ($s:ident file ($a:expr, $b:expr) $($r:tt)*) => {
        $s.file = Some(($a, $b));
        $crate::seg_fields!($s $($r)*);
    };
    ($s:ident data $v:tt $($r:tt)*) => {
        let data: Vec<u8> = $v.to_vec();
        $s.len = u32::try_from(data.len()).ok();
        $s.data = Some(data);
        $crate::seg_fields!($s $($r)*);
    };
    ($s:ident $name:ident $v:literal $($r:tt)*) => {
        $s.$name = Some($v);
        $crate::seg_fields!($s $($r)*);
    };
    ($s:ident $name:ident ($v:expr) $($r:tt)*) => {
        $s.$name = Some($v);
        $crate::seg_fields!($s $($r)*);
    };
    ($s:ident $flag:ident $($r:tt)*) => {
        $s.flags = $s.flags.with($crate::TcpFlags::$flag);
        $crate::seg_fields!($s $($r)*);
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_named_fields_are_compared() {
        let got = seg!(ACK PSH seq 1 ack 5 data b"abc" win 9);
        assert!(seg!(ACK seq 1 len 3).differences(&got).is_empty());
        assert_eq!(seg!(ACK seq 2).differences(&got).len(), 1);
        assert_eq!(seg!(ACK FIN seq 1 data b"abd").differences(&got).len(), 2);
        assert_eq!(seg!(ACK mss 1460).differences(&got), ["mss None, not Some(1460)"]);
        let sacked = seg!(ACK sack (1, 2) sack (4, 6));
        assert_eq!(sacked.sacks, Some(vec![(1, 2), (4, 6)]));
        assert_eq!(seg!(ACK no_sack).differences(&sacked).len(), 1);
        assert_eq!(seg!(SYN seq (1 + 1) wscale 7).to_string(), "S seq 2 wscale 7");
    }
}
