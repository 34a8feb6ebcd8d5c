//! What the device has to tear down (AccelTCP sections 4.2 and 5.2).
//!
//! Called by [`super::Streams`], which decides which connections are handed over, and by
//! [`crate::Host`] with the device's events. The host counts what the device has (AccelTCP: "the
//! number of connection closures being handled by the NIC"), and hands over nothing while the
//! device says that it is busy. What is not handed over the host does itself.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use abi::teardown::{Teardown, TeardownDone, TeardownLimits};
use abi::{Capabilities, Load, Op, Refusal};

use crate::config::Config;
use crate::counters::HostCounters;
use crate::net::outbox::Outbox;

/// The connections that were handed over.
#[derive(Debug)]
pub(crate) struct HandOver {
    limits: Result<TeardownLimits, Refusal>,
    /// The device said that it is busy.
    overloaded: bool,
    /// Connections that were handed over and have not ended.
    closing: u32,
    /// Hashes of the tuples of those that the device had not taken up when the last frame came.
    fresh: VecDeque<u64>,
    /// How many it had, modulo 2^32.
    taken: u32,
}

impl HandOver {
    pub(crate) fn new(config: &Config, capabilities: &Capabilities) -> Self {
        Self {
            limits: config.teardown_offload.and(capabilities.teardown),
            overloaded: false,
            closing: 0,
            fresh: VecDeque::new(),
            taken: 0,
        }
    }

    /// A frame came when the device had taken up so many connections.
    pub(crate) fn note_taken(&mut self, teardowns: u32) {
        let more = teardowns.wrapping_sub(self.taken) as usize;
        // A device that says nonsense is believed while there is something to forget.
        self.fresh.drain(..more.min(self.fresh.len()));
        self.taken = teardowns;
    }

    /// Returns whether the connection of a tuple may have been handed over after the frame of
    /// [`Self::note_taken`] came: by its hash, so that now and then another is taken for one.
    pub(crate) fn is_fresh(&self, hash: u64) -> bool {
        self.fresh.contains(&hash)
    }

    /// Returns the connections that the device has to tear down.
    pub(crate) const fn closing(&self) -> u32 {
        self.closing
    }

    /// Returns what one connection may be that is handed over now, or why none may.
    pub(crate) fn room(&self) -> Result<TeardownLimits, Refusal> {
        let limits = self.limits?;
        if self.overloaded {
            return Err(Refusal::Overloaded);
        }
        if self.closing >= limits.flows_max {
            return Err(Refusal::TableFull);
        }
        Ok(limits)
    }

    /// Hands a connection over. Frames of it that came before the device takes it up are on their
    /// way to us all the same: they are given back ([`Op::Return`]).
    pub(crate) fn push(&mut self, out: &mut Outbox, hash: u64, teardown: Box<Teardown>) {
        self.fresh.push_back(hash);
        self.closing += 1;
        out.counters.handed_over += 1;
        out.ops.push_back(Op::Teardown(teardown));
    }

    /// The device has brought connections to an end.
    pub(crate) fn handle_done(&mut self, counters: &mut HostCounters, done: TeardownDone) {
        self.closing = self.closing.saturating_sub(done.total());
        counters.handed_over_closed += u64::from(done.closed);
        counters.handed_over_reset += u64::from(done.reset);
        counters.handed_over_timed_out += u64::from(done.timed_out);
    }

    /// The device would not have a connection.
    pub(crate) fn note_refused(&mut self, why: Refusal) {
        self.closing = self.closing.saturating_sub(1);
        if matches!(why, Refusal::Disabled | Refusal::NotSupported) {
            self.limits = Err(why);
        }
    }

    /// The device is busy, or no more: AccelTCP section 3, "full control by the host side".
    pub(crate) fn handle_load(&mut self, counters: &mut HostCounters, load: Load) {
        if load.high != self.overloaded {
            self.overloaded = load.high;
            counters.device_overloads += u64::from(load.high);
        }
    }

    /// The device has forgotten every connection that it had. Their peers get a reset when they
    /// speak.
    pub(crate) fn handle_device_reset(&mut self, counters: &mut HostCounters) {
        counters.handed_over_lost += u64::from(self.closing);
        self.closing = 0;
    }
}

/// Counts a connection that was to be handed over and is not, for now.
pub(crate) const fn count_kept(counters: &mut HostCounters, why: Refusal) {
    *match why {
        Refusal::TableFull => &mut counters.hand_over_kept_full,
        Refusal::Overloaded => &mut counters.hand_over_kept_overloaded,
        _ => &mut counters.hand_over_kept_disabled,
    } += 1;
}
