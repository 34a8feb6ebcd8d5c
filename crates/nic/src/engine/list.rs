//! The list of all engines, and what the device has every one of them do.
//!
//! A new engine is added here, and nowhere else in the device. Calls are static: an engine that
//! leaves a method of [`Engine`] as it is costs nothing there.

use abi::{Capabilities, Header, Op};
use base::Instant;

use super::count::CountEngine;
use super::file::FileEngine;
use super::l5o::L5oEngine;
use super::quic::QuicEngine;
use super::setup::SetupEngine;
use super::splice::SpliceEngine;
use super::teardown::TeardownEngine;
use super::{Engine, Request};
use crate::config::DeviceConfig;
use crate::counters::{DeliveryCounters, InternalCounters, RxCounters, TxCounters};
use crate::pipeline::Egress;
use crate::pipeline::rx::Offered;

macro_rules! engines {
    ($($name:ident: $engine:ty,)*) => {
        /// The engines that are switched on.
        #[derive(Debug)]
        pub(crate) struct Engines {
            $(pub(crate) $name: Option<$engine>,)*
        }

        /// The names of the device's counters that honest traffic never moves, by part.
        pub const ALARMS: [&[&str]; 4 + [$(stringify!($name)),*].len()] = [
            InternalCounters::ALARMS,
            RxCounters::ALARMS,
            DeliveryCounters::ALARMS,
            TxCounters::ALARMS,
            $(<$engine as Engine>::ALARMS,)*
        ];

        impl Engines {
            /// Those that the configuration switches on.
            pub(crate) fn new(config: &DeviceConfig) -> Self {
                Self { $($name: <$engine as Engine>::from_config(config),)* }
            }

            /// Says what each offers.
            pub(crate) fn offer(&self, capabilities: &mut Capabilities) {
                $(if let Some(engine) = &self.$name {
                    Engine::offer(engine, capabilities);
                })*
            }

            /// Has an operation done by the engine that knows it; gives it back if none does.
            #[inline]
            pub(crate) fn handle_op(
                &mut self,
                now: Instant,
                queue: usize,
                op: Op,
                out: &mut Egress,
            ) -> Option<Op> {
                $(
                    let engine = self.$name.as_mut();
                    let op = <$engine as Engine>::handle_op(engine, now, queue, op, out)?;
                )*
                Some(op)
            }

            /// Offers a frame to each. Says whether one has taken it, and its buffer.
            #[inline]
            pub(crate) fn take(
                &mut self,
                now: Instant,
                arrived: &mut Offered<'_>,
                out: &mut Egress,
            ) -> bool {
                $(if let Some(engine) = &mut self.$name {
                    if Engine::take(engine, now, arrived, out) {
                        return true;
                    }
                })*
                false
            }

            /// Has each do what it can with a frame that is about to be delivered.
            #[inline]
            pub(crate) fn open(&mut self, arrived: &mut Offered<'_>, out: &mut Egress) {
                $(if let Some(engine) = &mut self.$name {
                    Engine::open(engine, arrived, out);
                })*
            }

            /// Shows each a frame that is about to leave.
            #[inline]
            pub(crate) fn note_sent(
                &mut self,
                now: Instant,
                header: &Header,
                packets: u64,
                bytes: u64,
            ) {
                $(if let Some(engine) = &mut self.$name {
                    Engine::note_sent(engine, now, header, packets, bytes);
                })*
            }

            /// Shows each a frame that the wire found too long, and that leaves in shorter ones.
            pub(crate) fn note_refused(&mut self, header: &Header, packets: u64, bytes: u64) {
                $(if let Some(engine) = &mut self.$name {
                    Engine::note_refused(engine, header, packets, bytes);
                })*
            }

            /// Whether one of them may want something of the device.
            #[inline]
            pub(crate) fn have_requests(&self) -> bool {
                false $(|| self.$name.as_ref().is_some_and(Engine::has_requests))*
            }

            /// Returns the next thing that one of them wants of the device.
            pub(crate) fn poll_request(&mut self) -> Option<Request> {
                $(if let Some(engine) = &mut self.$name {
                    let request = Engine::poll_request(engine);
                    if request.is_some() {
                        return request;
                    }
                })*
                None
            }

            /// Says that all requests were fulfilled.
            #[inline]
            pub(crate) fn note_settled(&mut self) {
                $(if let Some(engine) = &mut self.$name {
                    Engine::note_settled(engine);
                })*
            }

            /// Whether all of them have room for what the next operation may bring.
            pub(crate) fn have_room(&self) -> bool {
                true $(&& self.$name.as_ref().is_none_or(Engine::has_room))*
            }

            /// Whether one of them waits for memory that only frames on their way will free.
            pub(crate) fn are_starved(&self) -> bool {
                false $(|| self.$name.as_ref().is_some_and(Engine::is_starved))*
            }

            /// Has each look for memory that frames have freed.
            #[inline]
            pub(crate) fn find_memory(&mut self) {
                $(if let Some(engine) = &mut self.$name {
                    Engine::find_memory(engine);
                })*
            }

            /// Runs what is due, and says whether anything was.
            #[inline]
            pub(crate) fn handle_timeouts(&mut self, now: Instant, out: &mut Egress) -> bool {
                let mut due = false;
                $(if let Some(engine) = &mut self.$name {
                    if Engine::poll_timeout(engine).is_some_and(|at| at <= now) {
                        Engine::handle_timeout(engine, now, out);
                        due = true;
                    }
                })*
                due
            }

            /// When something is due.
            pub(crate) fn poll_timeout(&self) -> Option<Instant> {
                Instant::earliest([$(self.$name.as_ref().and_then(Engine::poll_timeout)),*])
            }

            /// Resets every connection of a queue that they have taken over.
            pub(crate) fn quiesce(&mut self, now: Instant, queue: usize, out: &mut Egress) {
                $(if let Some(engine) = &mut self.$name {
                    Engine::quiesce(engine, now, queue, out);
                })*
            }

            /// Has each forget everything.
            pub(crate) fn reset(&mut self, out: &mut Egress) {
                $(if let Some(engine) = &mut self.$name {
                    Engine::reset(engine, out);
                })*
            }

            /// Calls `f` with each counter and gauge.
            pub(crate) fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
                $(if let Some(engine) = &self.$name {
                    Engine::visit(engine, f);
                })*
            }
        }
    };
}

// Received segments are offered in this order, and what is due is done in it.
engines! {
    count: CountEngine,
    splice: SpliceEngine,
    teardown: TeardownEngine,
    setup: SetupEngine,
    l5o: L5oEngine,
    files: FileEngine,
    quic: QuicEngine,
}
