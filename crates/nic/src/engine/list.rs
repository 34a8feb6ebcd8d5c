//! The list of all engines, and the calls that the device makes to every one of them.
//!
//! A new engine is added here and nowhere else in the device. Calls are static, so a default method
//! of [`Engine`] costs nothing.

use abi::link::TxFrame;
use abi::{Capabilities, Op, PacketHeader};
use base::Instant;
use wire::Tuple;

use super::count::CountEngine;
use super::decompress::DecompressEngine;
use super::file::FileEngine;
use super::l5o::L5oEngine;
use super::quic::QuicEngine;
use super::setup::SetupEngine;
use super::splice::SpliceEngine;
use super::teardown::TeardownEngine;
use super::{Engine, EngineRequest};
use crate::config::DeviceConfig;
use crate::counters::{
    CryptoJobCounters, DeliveryCounters, InternalCounters, RxCounters, TxCounters,
};
use crate::pipeline::Egress;
use crate::pipeline::rx::OfferedRxFrame;

macro_rules! engines {
    ($($name:ident: $engine:ty,)*) => {
        /// The enabled engines.
        #[derive(Debug)]
        pub(crate) struct Engines {
            $(pub(crate) $name: Option<$engine>,)*
        }

        /// Names of the device's alarms, by part: counters that conforming traffic never
        /// increments.
        pub const ALARMS: [&[&str]; 5 + [$(stringify!($name)),*].len()] = [
            InternalCounters::ALARMS,
            RxCounters::ALARMS,
            DeliveryCounters::ALARMS,
            TxCounters::ALARMS,
            CryptoJobCounters::ALARMS,
            $(<$engine as Engine>::ALARMS,)*
        ];

        impl Engines {
            /// Creates the engines that `config` enables.
            pub(crate) fn new(config: &DeviceConfig) -> Self {
                Self { $($name: <$engine as Engine>::from_config(config),)* }
            }

            /// Adds the limits of each engine to `capabilities`.
            pub(crate) fn add_capabilities(&self, capabilities: &mut Capabilities) {
                $(if let Some(engine) = &self.$name {
                    Engine::add_capabilities(engine, capabilities);
                })*
            }

            /// Passes an operation to the engine that it belongs to; returns it if it belongs to
            /// none.
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

            /// Offers a frame to each engine. Returns true if one has consumed it with its buffer.
            #[inline]
            pub(crate) fn consume_frame(
                &mut self,
                now: Instant,
                arrived: &mut OfferedRxFrame<'_>,
                out: &mut Egress,
            ) -> bool {
                $(if let Some(engine) = &mut self.$name {
                    if Engine::consume_frame(engine, now, arrived, out) {
                        return true;
                    }
                })*
                false
            }

            /// Has each engine process a frame that is about to be delivered.
            #[inline]
            pub(crate) fn process_frame(
                &mut self,
                arrived: &mut OfferedRxFrame<'_>,
                out: &mut Egress,
            ) {
                $(if let Some(engine) = &mut self.$name {
                    Engine::process_frame(engine, arrived, out);
                })*
            }

            /// Announces to each engine a frame that is about to leave.
            #[inline]
            pub(crate) fn on_frame_sent(
                &mut self,
                now: Instant,
                frame: &TxFrame,
                packets: u64,
                bytes: u64,
            ) {
                $(if let Some(engine) = &mut self.$name {
                    Engine::on_frame_sent(engine, now, frame, packets, bytes);
                })*
            }

            /// Calls `f` for each connection that an engine has taken over.
            pub(crate) fn visit_connections(&self, f: &mut dyn FnMut(&Tuple)) {
                $(if let Some(engine) = &self.$name {
                    Engine::visit_connections(engine, f);
                })*
            }

            /// Withdraws from each engine a frame that was too long for the link and leaves in
            /// shorter ones.
            pub(crate) fn on_frame_refused(
                &mut self,
                header: &PacketHeader,
                packets: u64,
                bytes: u64,
            ) {
                $(if let Some(engine) = &mut self.$name {
                    Engine::on_frame_refused(engine, header, packets, bytes);
                })*
            }

            /// Returns whether an engine may have requests.
            #[inline]
            pub(crate) fn have_requests(&self) -> bool {
                false $(|| self.$name.as_ref().is_some_and(Engine::has_requests))*
            }

            /// Returns the next request of any engine.
            pub(crate) fn poll_request(&mut self) -> Option<EngineRequest> {
                $(if let Some(engine) = &mut self.$name {
                    let request = Engine::poll_request(engine);
                    if request.is_some() {
                        return request;
                    }
                })*
                None
            }

            /// Notifies each engine that all requests have been fulfilled.
            #[inline]
            pub(crate) fn on_requests_done(&mut self) {
                $(if let Some(engine) = &mut self.$name {
                    Engine::on_requests_done(engine);
                })*
            }

            /// Returns whether every engine has memory for whatever the next operation may need.
            pub(crate) fn have_room(&self) -> bool {
                true $(&& self.$name.as_ref().is_none_or(Engine::has_room))*
            }

            /// Returns whether an engine waits for memory that only frames in flight will free.
            pub(crate) fn are_starved(&self) -> bool {
                false $(|| self.$name.as_ref().is_some_and(Engine::is_starved))*
            }

            /// Has each engine reclaim memory that transmitted frames have freed.
            #[inline]
            pub(crate) fn reclaim_memory(&mut self) {
                $(if let Some(engine) = &mut self.$name {
                    Engine::reclaim_memory(engine);
                })*
            }

            /// Handles due deadlines. Returns whether there were any.
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

            /// Time of the earliest deadline.
            pub(crate) fn poll_timeout(&self) -> Option<Instant> {
                Instant::earliest([$(self.$name.as_ref().and_then(Engine::poll_timeout)),*])
            }

            /// Resets every connection of `queue` that an engine has taken over.
            pub(crate) fn quiesce(&mut self, now: Instant, queue: usize, out: &mut Egress) {
                $(if let Some(engine) = &mut self.$name {
                    Engine::quiesce(engine, now, queue, out);
                })*
            }

            /// Has each engine discard all state except counters.
            pub(crate) fn reset(&mut self, out: &mut Egress) {
                $(if let Some(engine) = &mut self.$name {
                    Engine::reset(engine, out);
                })*
            }

            /// Calls `f` with the name and value of each counter and gauge.
            pub(crate) fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
                $(if let Some(engine) = &self.$name {
                    Engine::visit(engine, f);
                })*
            }
        }
    };
}

// Received segments are offered, and deadlines handled, in this order.
engines! {
    count: CountEngine,
    splice: SpliceEngine,
    teardown: TeardownEngine,
    setup: SetupEngine,
    l5o: L5oEngine,
    files: FileEngine,
    quic: QuicEngine,
    decompress: DecompressEngine,
}
