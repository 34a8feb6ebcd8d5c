//! Machines whose device is another process: operations and events cross as descriptors.
//!
//! In some runs the device of a machine has the carrier of `outboard nic` ([`node::remote`]), over
//! queues in memory or over Ethernet with faults: each operation and event is encoded and decoded
//! by the ends that two processes have. A reset of such a device is the death of its process:
//! whatever was on the way is lost with its state, frames that arrive meanwhile are lost, and
//! after a while the host attaches to another process. Data for registered buffers crosses in a
//! region, as small as to be full now and then. Called by [`crate::node`].

use std::collections::VecDeque;
use std::sync::Arc;

use abi::nvme_tcp::{DdpSetup, DdpTeardownDone};
use abi::region::{HeapRegion, SharedRegion};
use abi::{Event, Op, PacketBuf, PacketPool};
use base::{Duration, Instant, Prng};
use node::pattern_table::ImmediateCompiler;
use node::remote::{CarrierRegion, RemoteDeviceEnd, RemoteEnd as _, RemoteHostEnd};

use crate::carrier_link::SimChannel;

/// Length of the region of each attachment in bytes.
pub(crate) const REGION_BYTES: usize = 512 << 10;
/// Longest time from the death of a device's process until the host has another one.
const DOWN_MAX: Duration = Duration::from_millis(50);

/// Carrier between the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemoteCarrier {
    /// Queues, and a region that both have.
    SharedMemory,
    /// Frames, and a region of each.
    Ethernet,
}

/// State of the attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttachmentState {
    Attached,
    /// The process is dead; the host attaches to another one at this time.
    Lost {
        until: Instant,
    },
}

base::counters! {
    /// Counters of a device in a process of its own.
    struct RemoteDeviceCounters {
        /// Operations that crossed to the device.
        remote_device_ops,
        /// Events that crossed to the host.
        remote_device_events,
        /// Deaths of the device's process.
        remote_device_deaths,
        /// Registered buffers that the host has recalled from a dead process.
        remote_device_buffers_recalled,
        /// Operations that crossed over Ethernet.
        remote_device_ethernet_ops,
        /// Frames of the Ethernet carrier that were sent again.
        remote_device_frames_repeated,
    }
}

/// The carrier between a host and its device.
#[derive(Debug)]
pub(crate) struct RemoteDevice {
    carrier: RemoteCarrier,
    host: RemoteHostEnd<SimChannel>,
    device: RemoteDeviceEnd<SimChannel>,
    state: AttachmentState,
    /// Events about the attachment, for the host.
    own_events: VecDeque<Event>,
    /// Returned buffers of the dead process, for the host to get with [`Event::Reset`].
    recalled: Vec<Event>,
    random: Prng,
    /// Number of operations after which the process dies.
    dies_after: Option<u64>,
    counters: RemoteDeviceCounters,
}

impl RemoteDevice {
    /// Creates the carrier of a device whose process dies after this many operations, if any.
    /// `random` draws how long the host is without a device.
    pub(crate) fn new(carrier: RemoteCarrier, mut random: Prng, dies_after: Option<u64>) -> Self {
        let (host, device) = new_ends(carrier, &mut random);
        Self {
            carrier,
            host,
            device,
            state: AttachmentState::Attached,
            own_events: VecDeque::new(),
            recalled: Vec::new(),
            random,
            dies_after,
            counters: RemoteDeviceCounters::default(),
        }
    }

    /// Calls `f` with the name and value of each counter.
    pub(crate) fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        let mut counters = self.counters.clone();
        counters.remote_device_frames_repeated += self.host.channel().frames_repeated();
        counters.visit(f);
    }

    /// Returns whether the process is about to die: it takes no more operations.
    pub(crate) fn is_dying(&self) -> bool {
        self.dies_after.is_some_and(|ops| self.counters.remote_device_ops >= ops)
    }

    /// Passes an operation to the device's side, which has this pool. Returns `None` if the host's
    /// end has answered it itself.
    pub(crate) fn cross_op(&mut self, op: Op, pool: &mut PacketPool) -> Option<Op> {
        self.counters.remote_device_ops += 1;
        self.counters.remote_device_ethernet_ops +=
            u64::from(self.carrier == RemoteCarrier::Ethernet);
        self.host.push_op(op);
        let crossed = self.device.pop_op(pool);
        assert_eq!(self.device.fault(), None, "the device refused an operation");
        assert!(crossed.is_some() || self.host.has_own_events(), "an operation was lost");
        crossed
    }

    /// Passes an event to the host's side. Returns its buffer, which stays with the device.
    pub(crate) fn cross_event(&mut self, event: Event) -> (Event, Option<PacketBuf>) {
        self.counters.remote_device_events += 1;
        assert!(self.device.push_event(event).is_ok(), "the channel has room");
        let crossed = self.host.pop_event();
        let event = crossed.unwrap_or_else(|| panic!("the host refused: {:?}", self.host.fault()));
        (event, self.device.pop_recycled())
    }

    /// Returns the next event that the device has not sent.
    pub(crate) fn pop_own_event(&mut self) -> Option<Event> {
        let attached = self.own_events.pop_front();
        attached.or_else(|| self.host.has_own_events().then(|| self.host.pop_event()).flatten())
    }

    /// Takes back the buffer of a frame that the host has processed.
    pub(crate) fn recycle(&mut self, packet: PacketBuf) {
        self.host.recycle(packet);
    }

    /// Returns whether the host has a device and knows of it.
    pub(crate) fn is_settled(&self) -> bool {
        self.state == AttachmentState::Attached
            && self.own_events.is_empty()
            && !self.host.has_own_events()
    }

    /// Returns whether the host has a device.
    pub(crate) fn is_attached(&self) -> bool {
        self.state == AttachmentState::Attached
    }

    /// Kills the device's process.
    pub(crate) fn die(&mut self, now: Instant) {
        let down = Duration::from_nanos(self.random.below(DOWN_MAX.as_nanos()));
        self.counters.remote_device_deaths += 1;
        let unread = self.own_events.drain(..);
        self.recalled.extend(unread.filter(|event| matches!(event, Event::DdpTeardownDone(_))));
        let (host, device) = new_ends(self.carrier, &mut self.random);
        let former = std::mem::replace(&mut self.host, host);
        self.counters.remote_device_frames_repeated += former.channel().frames_repeated();
        self.device = device;
        let recalled = former.recall_buffers();
        let count = self.recalled.len();
        self.recalled.extend(recalled);
        self.counters.remote_device_buffers_recalled += (self.recalled.len() - count) as u64;
        self.dies_after = None;
        self.state = AttachmentState::Lost { until: now + down };
    }

    /// Takes a registration that was on the way to a process that died.
    pub(crate) fn recall_unsent(&mut self, setup: DdpSetup) {
        let DdpSetup { context, flow, tag, id, buffer, .. } = setup;
        let returned = DdpTeardownDone { context, flow, tag, id, buffer, refused: None };
        self.recalled.push(Event::DdpTeardownDone(Box::new(returned)));
    }

    /// Returns the time at which the host attaches to the next process, if there is none.
    pub(crate) fn lost_until(&self) -> Option<Instant> {
        match self.state {
            AttachmentState::Lost { until } => Some(until),
            AttachmentState::Attached => None,
        }
    }

    /// Creates the carrier anew, for a machine that starts again with both processes.
    pub(crate) fn restart(&mut self) {
        let (random, mut counters) = (self.random.fork(), self.counters.clone());
        counters.remote_device_frames_repeated += self.host.channel().frames_repeated();
        *self = Self { counters, ..Self::new(self.carrier, random, None) };
    }

    /// Attaches the host to another process, whose link has this MTU.
    pub(crate) fn attach(&mut self, mtu: u16) {
        self.state = AttachmentState::Attached;
        self.random = self.random.fork();
        self.own_events.push_back(Event::Reset);
        self.own_events.extend(self.recalled.drain(..));
        self.own_events.push_back(Event::LinkChanged { mtu });
    }
}

/// Returns the ends of a new attachment.
fn new_ends(
    carrier: RemoteCarrier,
    random: &mut Prng,
) -> (RemoteHostEnd<SimChannel>, RemoteDeviceEnd<SimChannel>) {
    let memory = || -> Arc<dyn SharedRegion> { Arc::new(HeapRegion::new(REGION_BYTES)) };
    let compiler = Box::new(ImmediateCompiler::default());
    if carrier == RemoteCarrier::Ethernet {
        let (of_host, of_device) = SimChannel::ethernet(random.fork());
        let host = RemoteHostEnd::new(of_host, CarrierRegion::OfDevice(REGION_BYTES));
        return (host, RemoteDeviceEnd::new(of_device, Some(memory()), compiler));
    }
    let (of_host, of_device) = SimChannel::memory();
    let region = memory();
    let host = RemoteHostEnd::new(of_host, CarrierRegion::Shared(Arc::clone(&region)));
    (host, RemoteDeviceEnd::new(of_device, Some(region), compiler))
}
