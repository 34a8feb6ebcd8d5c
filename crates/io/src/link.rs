//! Interface of a link: transmit a frame, receive a frame, report when to poll again.
//!
//! Called by the thread that runs a device's queue. A link never blocks; its owner sleeps on
//! [`Link::pollable`] until [`Link::poll_timeout`]. Middleware ([`crate::fault`], [`crate::pcap`])
//! is a link that wraps another link.

use std::os::fd::RawFd;

use abi::PacketPool;
pub use abi::link::LinkTxStatus;
use abi::link::{LinkCaps, RxFrame, TxFrame};
use abi::steering::FlowSteering;
use base::Instant;

/// One end of a link.
///
/// Order of calls: [`Self::transmit`] once per frame, [`Self::flush`], [`Self::receive`] until it
/// returns `None`, then sleep. `flush` and `receive` also advance frames that are delayed inside
/// the link, so they must be called at [`Self::poll_timeout`] even if no frame is expected. `now`
/// never decreases.
pub trait Link: Send {
    /// Returns the offloads of the link, which are constant over its life, and its MTU.
    fn capabilities(&self) -> LinkCaps;

    /// Returns how many times the link has come up again, or changed its MTU or the link address of
    /// its interface, since it was opened; modulo 2^32.
    fn changes(&self) -> u32 {
        0
    }

    /// Sends a frame. The payload is not copied unless the medium requires it. A link that keeps
    /// the payload of a sent frame leaves that of an earlier frame, or none, in its place, for the
    /// device to reuse. A frame that was not sent is unchanged.
    fn transmit(&mut self, now: Instant, frame: &mut TxFrame) -> LinkTxStatus;

    /// Sends the frames that [`Self::transmit`] has kept to send several in one system call.
    /// Returns false if some have to wait: call it again.
    fn flush(&mut self, _now: Instant) -> bool {
        true
    }

    /// Returns the next received frame, in a buffer from `pool`.
    fn receive(&mut self, now: Instant, pool: &mut PacketPool) -> Option<RxFrame>;

    /// Returns the time at which a frame delayed inside the link is due; `None` if there is none.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Returns a descriptor that polls readable while received frames wait in the kernel; `None` if
    /// the link has no descriptor.
    fn pollable(&self) -> Option<RawFd>;

    /// Returns a descriptor that polls readable when the state of the link has changed, so that it
    /// must be received from; `None` if it never changes.
    fn pollable_changes(&self) -> Option<RawFd> {
        None
    }

    /// Returns the link address that the device must have; `None` if any will do.
    fn link_address(&self) -> Option<[u8; 6]> {
        None
    }

    /// Makes the kernel select the queues of frames by the present table of the devices, if it
    /// selects them by a copy. Called about ten times a second.
    fn follow_steering(&mut self, _steering: &FlowSteering) {}

    /// Calls `f` with the name and value of each counter.
    fn visit(&self, f: &mut dyn FnMut(&'static str, u64));
}

impl<W: Link + ?Sized> Link for Box<W> {
    fn capabilities(&self) -> LinkCaps {
        (**self).capabilities()
    }

    fn changes(&self) -> u32 {
        (**self).changes()
    }

    fn transmit(&mut self, now: Instant, frame: &mut TxFrame) -> LinkTxStatus {
        (**self).transmit(now, frame)
    }

    fn flush(&mut self, now: Instant) -> bool {
        (**self).flush(now)
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

    fn pollable_changes(&self) -> Option<RawFd> {
        (**self).pollable_changes()
    }

    fn link_address(&self) -> Option<[u8; 6]> {
        (**self).link_address()
    }

    fn follow_steering(&mut self, steering: &FlowSteering) {
        (**self).follow_steering(steering);
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        (**self).visit(f);
    }
}
