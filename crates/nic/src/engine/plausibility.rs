//! Plausibility check of sequence numbers: can a packet belong to the stream?
//!
//! Used by the receive contexts of TLS and NVMe/TCP before they process a packet. TCP ignores
//! segments outside its window, so an attacker who knows a connection's addresses can inject them
//! without effect. A context that believed such a segment would set its marks so far ahead that it
//! did nothing until the stream arrived there. Several implausible packets in a row are believed
//! nevertheless, so that a context whose own position is wrong recovers.

/// Number of consecutive packets outside the window after which the position of the last is
/// believed.
const OUTSIDE_MAX: u32 = 16;

/// The verdict on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowCheck {
    /// The packet may belong to the stream.
    InWindow,
    /// Ignore the packet.
    OutOfWindow,
    /// Re-anchor: restart at this packet's sequence number with nothing known of the stream.
    Reanchor,
}

/// Counts consecutive packets outside the window.
#[derive(Debug, Default)]
pub(crate) struct PlausibleWindow {
    outside: u32,
}

impl PlausibleWindow {
    /// Checks a packet that begins `ahead` bytes after the highest sequence number seen (negative:
    /// before it). Distances above `window_bytes` are implausible in both directions.
    pub(crate) const fn judge(&mut self, ahead: i32, window_bytes: u32) -> WindowCheck {
        if ahead.unsigned_abs() <= window_bytes {
            self.outside = 0;
            return WindowCheck::InWindow;
        }
        self.outside += 1;
        if self.outside < OUTSIDE_MAX {
            return WindowCheck::OutOfWindow;
        }
        self.outside = 0;
        WindowCheck::Reanchor
    }
}
