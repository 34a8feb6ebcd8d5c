//! What every wire can do: take a frame, give a frame, say when to come back.
//!
//! Called by the thread that runs a device's queue. A wire never blocks; its owner sleeps on
//! [`Wire::pollable`] until [`Wire::poll_timeout`]. Middleware ([`crate::fault`], [`crate::pcap`])
//! is a wire around a wire.

use std::os::fd::RawFd;

use abi::PacketPool;
pub use abi::port::TxStatus;
use abi::port::{RxFrame, TxFrame, WireCaps};
use base::Instant;

/// One end of a wire.
///
/// Order of calls: [`Self::transmit`] as often as there are frames, [`Self::receive`] until it
/// gives `None`, then sleep. `receive` also moves what waits inside the wire, so it is called at
/// [`Self::poll_timeout`] even where nobody expects a frame. `now` never goes back.
pub trait Wire: Send {
    /// What frames may ask of it. Constant over its life.
    fn capabilities(&self) -> WireCaps;

    /// Sends a frame. Its payload is not copied unless the wire's medium demands it.
    fn transmit(&mut self, now: Instant, frame: &TxFrame) -> TxStatus;

    /// The next frame that has arrived, in a buffer from `pool`.
    fn receive(&mut self, now: Instant, pool: &mut PacketPool) -> Option<RxFrame>;

    /// When something that waits inside the wire is due; `None` where nothing waits.
    fn poll_timeout(&self) -> Option<Instant>;

    /// A descriptor that polls readable while frames wait outside; `None` where there is no
    /// outside.
    fn pollable(&self) -> Option<RawFd>;

    /// Calls `f` with the name and value of each counter.
    fn visit(&self, f: &mut dyn FnMut(&'static str, u64));
}

impl<W: Wire + ?Sized> Wire for Box<W> {
    fn capabilities(&self) -> WireCaps {
        (**self).capabilities()
    }

    fn transmit(&mut self, now: Instant, frame: &TxFrame) -> TxStatus {
        (**self).transmit(now, frame)
    }

    fn receive(&mut self, now: Instant, pool: &mut PacketPool) -> Option<RxFrame> {
        (**self).receive(now, pool)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        (**self).poll_timeout()
    }

    fn pollable(&self) -> Option<RawFd> {
        (**self).pollable()
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        (**self).visit(f);
    }
}
