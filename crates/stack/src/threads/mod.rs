//! Threads of all queues.
//!
//! For each queue there is a host thread ([`host_thread`]) and a device thread ([`device_thread`]),
//! joined by rings ([`queue`]), or one thread that runs both in turn ([`shared_thread`]). A device
//! may have threads that encrypt and decrypt beside it ([`crypto_threads`]). A device process has
//! one thread for all of its programs ([`switch_thread`]).
//! [`crate::Builder`] starts them. This module does not depend on the application.

mod carrier;
mod crypto_threads;
mod device_thread;
mod host_thread;
mod load;
mod queue;
mod shared_thread;
mod shutdown;
mod switch_thread;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use abi::steering::FlowSteering;
use cli::Failure;
use host::{Application, AutoAddrEvent, Host, NetworkAddrs};
use io::clock::MonotonicClock;
use io::disk::Disk;
use io::link::Link;
use nic::Device;

use crate::attach::ClaimExtension;
use crate::control::{self, Probe};
use crate::hooks::Hooks;
use crate::log::AccessLog;
use crate::record::QueueRecorder;
use device_thread::DeviceThread;
use host_thread::HostThread;
use queue::DeviceRings;
use shared_thread::SharedThread;
use switch_thread::SwitchThread;

pub(crate) use carrier::{CarrierSleeper, HostCarrier, SleepingCarrier};
pub use crypto_threads::CryptoThreads;
pub(crate) use queue::{QueueRings, ring_mesh};
pub(crate) use switch_thread::{ProgramCounters, SwitchSide};

/// Names of a queue's threads, before its number: of the device's, of the host's, and of one that
/// both share.
pub(crate) const QUEUE_THREADS: [&str; 3] = ["nic", "host", "both"];

/// A message from another thread to the application of a queue.
pub(crate) enum HostMessage<M> {
    /// Stop accepting connections, and end the open ones.
    Drain,
    /// Replace the local addresses.
    SetAddrs(NetworkAddrs),
    /// Look for steering entries to release.
    ReleaseMovedEntries,
    /// Ask the device for further addresses and ports.
    ExtendClaim(ClaimExtension),
    /// A message in the application's own type.
    Application(M),
}

/// Sends messages to the application of a queue, from any thread.
#[derive(Debug)]
pub struct MessageSender<M> {
    messages: Sender<HostMessage<M>>,
    probe: Probe,
}

// `derive` would require `Clone` of the messages.
impl<M> Clone for MessageSender<M> {
    fn clone(&self) -> Self {
        Self { messages: self.messages.clone(), probe: self.probe.clone() }
    }
}

impl<M> MessageSender<M> {
    /// Sends a message. It is dropped if the host thread has ended.
    pub fn send(&self, message: M) {
        self.send_message(HostMessage::Application(message));
    }

    pub(crate) fn drain(&self) {
        self.send_message(HostMessage::Drain);
    }

    pub(crate) fn set_addrs(&self, addrs: NetworkAddrs) {
        self.send_message(HostMessage::SetAddrs(addrs));
    }

    pub(crate) fn release_moved_entries(&self) {
        self.send_message(HostMessage::ReleaseMovedEntries);
    }

    pub(crate) fn extend_claim(&self, extension: ClaimExtension) {
        self.send_message(HostMessage::ExtendClaim(extension));
    }

    fn send_message(&self, message: HostMessage<M>) {
        let _ended = self.messages.send(message);
        self.probe.wake();
    }

    /// Returns a sender without a stack, and an iterator over the messages sent so far. For tests
    /// of applications.
    ///
    /// # Errors
    /// Fails if no file descriptor is left.
    pub fn detached() -> Result<(Self, impl Iterator<Item = M>), Failure> {
        let (messages, receiver) = channel();
        let bell = queue::ThreadWaker::new()?;
        let (probe, _) = control::probe_channel("host", 0, bell.notifier());
        let sent = std::iter::from_fn(move || match receiver.try_recv() {
            Ok(HostMessage::Application(message)) => Some(message),
            Ok(_) | Err(_) => None,
        });
        Ok((Self { messages, probe }, sent))
    }
}

/// A host with its application, and the resources of their thread.
pub(crate) struct HostSide<A, M> {
    pub(crate) host: Host,
    pub(crate) app: A,
    /// Disk for files that the host reads itself.
    pub(crate) disk: Box<dyn Disk>,
    pub(crate) log: Option<AccessLog>,
    /// Receiver of the host's events of automatic addresses, if it has any.
    pub(crate) addr_events: Option<Sender<AutoAddrEvent>>,
    pub(crate) hooks: Hooks<A, M>,
}

/// A device with its link and its disk.
pub(crate) struct DeviceSide {
    pub(crate) device: Device,
    pub(crate) link: Box<dyn Link>,
    pub(crate) disk: Box<dyn Disk>,
    /// Steering of flows, of which the link may have a copy.
    pub(crate) steering: Arc<FlowSteering>,
    /// `None` if the run is not recorded.
    pub(crate) recorder: Option<QueueRecorder>,
}

/// Threads of all queues. Dropping it ends them.
pub(crate) struct Threads<M> {
    clock: MonotonicClock,
    share_thread: bool,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// Those of each queue: device, then host.
    probes: Vec<Probe>,
    /// One for each host.
    senders: Vec<MessageSender<M>>,
}

impl<M: Send + 'static> Threads<M> {
    /// Creates a set without threads.
    pub(crate) fn new(clock: MonotonicClock, share_thread: bool) -> Self {
        let stop = Arc::default();
        let (threads, probes, senders) = (Vec::new(), Vec::new(), Vec::new());
        Self { clock, share_thread, stop, threads, probes, senders }
    }

    /// Starts the threads of the next queue.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub(crate) fn start<A: Application + Send + 'static>(
        &mut self,
        queue: QueueRings,
        device: DeviceSide,
        host: HostSide<A, M>,
    ) -> Result<(), Failure> {
        let index = queue.device.index;
        let device = self.device_thread(index, device, queue.device);
        let host = self.host_thread(index, host, queue.host);
        let [nic_name, host_name, both_name] = QUEUE_THREADS;
        if self.share_thread {
            let both = SharedThread::new(device, host);
            return self.spawn(both_name, index, move |stop| both.run(stop));
        }
        self.spawn(nic_name, index, move |stop| device.run(stop))?;
        self.spawn(host_name, index, move |stop| host.run(stop))
    }

    /// Starts the thread of the next queue's host, whose device is in another process.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub(crate) fn start_host<A: Application + Send + 'static>(
        &mut self,
        carrier: impl HostCarrier + Send + 'static,
        host: HostSide<A, M>,
    ) -> Result<(), Failure> {
        let index = self.senders.len();
        let host = self.host_thread(index, host, carrier);
        let [_, host_name, _] = QUEUE_THREADS;
        self.spawn(host_name, index, move |stop| host.run(stop))
    }

    /// Starts the thread of a device process.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub(crate) fn start_switch(&mut self, switch: SwitchSide) -> Result<(), Failure> {
        let [nic_name, _, _] = QUEUE_THREADS;
        let notifier = switch.arrivals.notifier().clone();
        let (probe, queries) = control::probe_channel("switch", 0, notifier);
        self.probes.push(probe);
        let switch = SwitchThread::new(self.clock, switch, queries);
        self.spawn(nic_name, 0, move |stop| switch.run(stop))
    }

    fn device_thread(
        &mut self,
        index: usize,
        device: DeviceSide,
        mut rings: DeviceRings,
    ) -> DeviceThread {
        let (probe, queries) = control::probe_channel("nic", index, rings.sleeper().notifier());
        self.probes.push(probe);
        DeviceThread::new(self.clock, device, rings, queries)
    }

    fn host_thread<A: Application, C: HostCarrier>(
        &mut self,
        index: usize,
        host: HostSide<A, M>,
        mut carrier: C,
    ) -> HostThread<A, M, C> {
        let (probe, queries) = control::probe_channel("host", index, carrier.sleeper().notifier());
        let (messages, received) = channel();
        self.senders.push(MessageSender { messages, probe: probe.clone() });
        self.probes.push(probe);
        HostThread::new(self.clock, host, received, carrier, queries)
    }

    fn spawn(
        &mut self,
        name: &str,
        index: usize,
        run: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> Result<(), Failure> {
        let stop = Arc::clone(&self.stop);
        self.threads.push(spawn(format!("{name}{index}"), move || run(&stop))?);
        Ok(())
    }
}

impl<M> Threads<M> {
    /// Returns the clock of all threads.
    pub(crate) fn clock(&self) -> MonotonicClock {
        self.clock
    }

    /// Returns the probes that query and wake each thread.
    pub(crate) fn probes(&self) -> &[Probe] {
        &self.probes
    }

    /// Returns the senders of messages to each host's application.
    pub(crate) fn senders(&self) -> &[MessageSender<M>] {
        &self.senders
    }

    /// Ends all threads, and waits for them.
    ///
    /// # Errors
    /// Fails if a thread has panicked.
    pub(crate) fn stop(&mut self) -> Result<(), Failure> {
        self.stop.store(true, Ordering::Release);
        self.probes.iter().for_each(Probe::wake);
        let panicked = self.threads.drain(..).filter_map(|t| t.join().err()).count();
        if panicked == 0 {
            Ok(())
        } else {
            Err(Failure::System("a thread panicked; please report its output".to_owned()))
        }
    }
}

impl<M> Drop for Threads<M> {
    fn drop(&mut self) {
        // The panic of a thread was printed already.
        let _panicked = self.stop();
    }
}

/// Receiver of messages from other threads.
pub(crate) type Messages<M> = Receiver<HostMessage<M>>;

/// Starts a thread.
///
/// # Errors
/// Fails if no thread is left.
pub fn spawn(
    name: String,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Failure> {
    std::thread::Builder::new()
        .name(name)
        .spawn(work)
        .map_err(|e| Failure::System(format!("cannot start a thread: {e}")))
}
