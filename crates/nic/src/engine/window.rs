//! Which packets can be of a stream, by their place in it.
//!
//! Called by the receive contexts of TLS and of NVMe over TCP, before they look at a packet. TCP
//! takes nothing that lies outside its window, so that anybody who knows a connection's addresses
//! may send such a packet and break nothing; a context that believed it would have its marks so far
//! ahead that it does nothing until the stream has come there. Invariant: several in a row are
//! believed, so that a context whose own place is wrong, for whatever reason, finds back.

/// Packets in a row, outside the window, after which the place of the last is believed.
const OUTSIDE_MAX: u32 = 16;

/// What to do with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lies {
    /// It may be of the stream.
    Inside,
    /// Leave it alone.
    Outside,
    /// Begin again where it begins: nothing of the stream is known.
    There,
}

/// Packets outside the window since one lay inside.
#[derive(Debug, Default)]
pub(crate) struct Window {
    outside: u32,
}

impl Window {
    /// Judges a packet that begins so many bytes behind all that came. As many before it are
    /// implausible too.
    pub(crate) const fn judge(&mut self, ahead: i32, window_bytes: u32) -> Lies {
        if ahead.unsigned_abs() <= window_bytes {
            self.outside = 0;
            return Lies::Inside;
        }
        self.outside += 1;
        if self.outside < OUTSIDE_MAX {
            return Lies::Outside;
        }
        self.outside = 0;
        Lies::There
    }
}
