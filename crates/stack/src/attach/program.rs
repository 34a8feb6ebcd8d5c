//! The program's side: the carrier of its host thread, and the thread that attaches again.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

use abi::attach::{AttachRefusal, RootIdentity};
use abi::{Capabilities, Event, Op, PacketBuf, Refusal};
use cli::Failure;
use io::clock::MonotonicClock;
use io::notify::{Notifier, Poller};
use nic::DeviceConfig;
use node::remote::{CarrierCounters, RemoteHostEnd};

use super::channel::SharedMemoryChannel;
use super::{AttachError, NicAddress, handshake};
use crate::threads::{HostCarrier, SleepingCarrier};

/// Time between two attempts to attach again.
const RETRY: std::time::Duration = std::time::Duration::from_millis(10);
/// Longest time to wait at the start for a device that still serves an earlier program, and time
/// between two attempts.
const IN_USE_TIME_MAX: base::Duration = base::Duration::from_secs(1);
const IN_USE_INTERVAL: base::Duration = base::Duration::from_millis(10);

base::counters! {
    /// Counters of a program's attachment.
    pub struct AttachCounters {
        /// Attachments to a device, the first one included.
        nic_attached,
        /// Devices that ended, or whose end of the carrier was faulty.
        nic_lost: alarm,
        /// Devices left because they violated the rules of the carrier.
        nic_carrier_faults: alarm,
    }
}

/// A new attachment.
type Arrival = (Capabilities, SharedMemoryChannel);

/// The carrier of a host whose device is another process.
pub(crate) struct ProgramCarrier {
    notifier: Notifier,
    /// Positions of the notifier and of the channel in the thread's poller.
    polled: [usize; 2],
    end: Option<RemoteHostEnd<SharedMemoryChannel>>,
    /// Events about the attachment itself, for the host.
    own_events: VecDeque<Event>,
    arrivals: Receiver<Arrival>,
    /// Asks the attaching thread for another device. Dropping it ends the thread.
    lost: Sender<()>,
    counters: AttachCounters,
    /// Counters of former ends, and their doorbells.
    former: CarrierCounters,
    former_doorbells: u64,
}

impl ProgramCarrier {
    /// Attaches to a device, and starts the thread that attaches again when the device is lost.
    ///
    /// # Errors
    /// If no device of the list takes the program.
    pub(crate) fn attach(
        address: &NicAddress,
        root: Option<RootIdentity>,
    ) -> Result<(Capabilities, Self), Failure> {
        let (index, (capabilities, attached)) = attach_first(address, root)?;
        let notifier =
            Notifier::new().map_err(|e| Failure::System(format!("cannot create eventfd: {e}")))?;
        let (lost, requests) = channel();
        let (sender, arrivals) = channel();
        let mut attaching = AttachThread {
            paths: address.paths().to_vec(),
            next: index,
            root,
            required: capabilities.clone(),
            requests,
            arrivals: sender,
            notifier: notifier.clone(),
        };
        drop(crate::spawn("attach".to_owned(), move || attaching.run())?);
        let carrier = Self {
            notifier,
            polled: [0; 2],
            end: Some(RemoteHostEnd::new(attached)),
            own_events: VecDeque::new(),
            arrivals,
            lost,
            counters: AttachCounters { nic_attached: 1, ..AttachCounters::default() },
            former: CarrierCounters::default(),
            former_doorbells: 0,
        };
        Ok((capabilities, carrier))
    }

    /// Leaves a device that is gone or faulty. Returns whether there was one to leave.
    fn leave_if_lost(&mut self) -> bool {
        let Some(end) = &mut self.end else { return false };
        let fault = end.fault();
        if fault.is_none() && !end.channel().is_peer_gone() {
            return false;
        }
        if let Some(fault) = fault {
            eprintln!("outboard: leaving the device: {fault}");
            self.counters.nic_carrier_faults += 1;
        }
        self.counters.nic_lost += 1;
        self.former.add(end.counters());
        self.former_doorbells += end.channel().doorbells;
        self.end = None;
        // An error means that the thread has ended, because the process does.
        let _ = self.lost.send(());
        true
    }

    /// Takes a device that was found in place of the lost one.
    fn take_arrival(&mut self) -> bool {
        if self.end.is_some() {
            return false;
        }
        let Ok((capabilities, channel)) = self.arrivals.try_recv() else { return false };
        self.end = Some(RemoteHostEnd::new(channel));
        self.counters.nic_attached += 1;
        self.own_events.push_back(Event::Reset);
        self.own_events.push_back(Event::LinkChanged { mtu: capabilities.mtu });
        true
    }
}

impl SleepingCarrier for ProgramCarrier {
    fn register(&mut self, poller: &mut Poller) {
        self.polled[0] = poller.add(self.notifier.as_raw_fd());
        let fd = self.end.as_mut().map(|end| end.channel().fd());
        // Without a device the second position is that of the notifier.
        self.polled[1] = fd.map_or(self.polled[0], |fd| poller.add(fd));
    }

    fn prepare_sleep(&mut self) {
        if let Some(end) = &mut self.end {
            end.channel().prepare_sleep();
        }
    }

    fn finish_sleep(&mut self, slept: Option<&Poller>) {
        let ready = |index: usize| slept.is_some_and(|poller| poller.is_ready(index));
        if ready(self.polled[0]) {
            self.notifier.drain();
        }
        if let Some(end) = &mut self.end {
            end.channel().finish_sleep(ready(self.polled[1]));
        }
    }

    fn has_work(&mut self) -> bool {
        !self.own_events.is_empty() || self.end.as_mut().is_some_and(|end| end.channel().has_work())
    }

    fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
        let (mut all, mut doorbells) = (self.former.clone(), self.former_doorbells);
        if let Some(end) = &self.end {
            all.add(end.counters());
            doorbells += end.channel_ref().doorbells;
        }
        all.visit(f);
        f("carrier_doorbells", doorbells);
        f("nic_is_attached", self.end.is_some().into());
    }
}

impl HostCarrier for ProgramCarrier {
    fn pop_event(&mut self) -> Option<Event> {
        self.own_events.pop_front().or_else(|| self.end.as_mut()?.pop_event())
    }

    fn has_op_room(&mut self) -> bool {
        self.end.as_mut().is_some_and(RemoteHostEnd::has_op_room)
    }

    fn push_op(&mut self, op: Op) {
        if let Some(end) = &mut self.end {
            end.push_op(op);
        }
    }

    fn push_recycled(&mut self, packet: PacketBuf) {
        if let Some(end) = &mut self.end {
            end.recycle(packet);
        }
    }

    fn wake_device(&mut self) {
        if let Some(end) = &mut self.end {
            end.publish();
        }
    }

    fn follow_device(&mut self) -> bool {
        let left = self.leave_if_lost();
        self.take_arrival() || left
    }

    fn has_device(&self) -> bool {
        self.end.is_some()
    }
}

/// Attaches to the first device of a list that takes the program; returns its position. Waits for a
/// device that has not noticed yet that an earlier program has ended.
fn attach_first(
    address: &NicAddress,
    root: Option<RootIdentity>,
) -> Result<(usize, Arrival), Failure> {
    let clock = MonotonicClock::new();
    let until = clock.now() + IN_USE_TIME_MAX;
    loop {
        let mut last = None;
        for (index, path) in address.paths().iter().enumerate() {
            match handshake::attach(path, root) {
                Ok(arrival) => return Ok((index, arrival)),
                Err(error) => last = Some((path, error)),
            }
        }
        let Some((path, error)) = last else {
            return Err(Failure::Usage("--nic names no device".to_owned()));
        };
        let is_in_use = matches!(error, AttachError::Refused(AttachRefusal::InUse));
        if !is_in_use || clock.now() >= until {
            return Err(failure(path, &error));
        }
        io::clock::sleep(IN_USE_INTERVAL);
    }
}

fn failure(path: &Path, error: &AttachError) -> Failure {
    let advice = match error {
        AttachError::Connect(_) => "start `outboard nic --listen PATH` first",
        AttachError::Answer(_) | AttachError::Rings(_) => "see its messages",
        AttachError::Version(_) => "run the same version of both",
        AttachError::Refused(AttachRefusal::UnknownRoot) => {
            "start it with --root NAME=DIR for this directory, or omit file from --offload"
        }
        AttachError::Refused(_) => "stop the other program, or start another device",
    };
    Failure::Unavailable(format!("device {}: {error}; {advice}", path.display()))
}

/// Attaches again, each time that the host thread asks.
struct AttachThread {
    paths: Vec<PathBuf>,
    /// The device to try first: the one that was lost.
    next: usize,
    root: Option<RootIdentity>,
    /// Capabilities of the first device, which the host relies on.
    required: Capabilities,
    requests: Receiver<()>,
    arrivals: Sender<Arrival>,
    notifier: Notifier,
}

impl AttachThread {
    /// Runs until the host thread has ended.
    fn run(&mut self) {
        while self.requests.recv().is_ok() {
            eprintln!(
                "outboard: the device at {} is gone; connections wait for another one",
                self.paths[self.next].display()
            );
            let mut told = None;
            loop {
                match self.attach_any() {
                    Ok(arrival) => {
                        eprintln!(
                            "outboard: attached to the device at {}",
                            self.paths[self.next].display()
                        );
                        if self.arrivals.send(arrival).is_err() {
                            return;
                        }
                        self.notifier.notify();
                        break;
                    }
                    // A device that is not there yet is what this waits for.
                    Err(error) if told.as_ref() != Some(&error) => {
                        if let Some(error) = &error {
                            eprintln!("outboard: cannot attach again: {error}; retrying");
                        }
                        told = Some(error);
                    }
                    Err(_) => {}
                }
                match self.requests.recv_timeout(RETRY) {
                    Err(RecvTimeoutError::Disconnected) => return,
                    Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                }
            }
        }
    }

    /// Tries each device once. The error is `None` if no device is there.
    fn attach_any(&mut self) -> Result<Arrival, Option<String>> {
        let mut last = None;
        for offset in 0..self.paths.len() {
            let index = (self.next + offset) % self.paths.len();
            match handshake::attach(&self.paths[index], self.root) {
                Ok((capabilities, _)) if !is_enough(&capabilities, &self.required) => {
                    last = Some("it has another link address, or fewer offloads".to_owned());
                }
                Ok(arrival) => {
                    self.next = index;
                    return Ok(arrival);
                }
                // It is not there yet, or was about to end.
                Err(AttachError::Connect(_) | AttachError::Answer(_)) => {}
                Err(error) => last = Some(error.to_string()),
            }
        }
        Err(last)
    }
}

/// Returns whether a device can take the place of one with the capabilities `required`. Sizes of
/// tables may differ: a device refuses what does not fit, as it does in any case.
fn is_enough(capabilities: &Capabilities, required: &Capabilities) -> bool {
    let l5o = match (&capabilities.l5o, &required.l5o) {
        (_, Err(_)) => true,
        (Err(_), Ok(_)) => false,
        (Ok(got), Ok(need)) => {
            got.resync == need.resync
                && (got.tls_tx || !need.tls_tx)
                && (got.tls_rx || !need.tls_rx)
                && (got.nvme_tcp.tx || !need.nvme_tcp.tx)
                && (got.nvme_tcp.rx || !need.nvme_tcp.rx)
        }
    };
    l5o && capabilities.mac == required.mac
        && capabilities.transmit_bytes_max >= required.transmit_bytes_max
        && (capabilities.file.is_ok() || required.file.is_err())
        && (capabilities.setup.is_ok() || required.setup.is_err())
        && (capabilities.teardown.is_ok() || required.teardown.is_err())
        && (capabilities.splice.is_ok() || required.splice.is_err())
        && (capabilities.quic.is_ok() || required.quic.is_err())
}

/// Returns the capabilities of a device without those that the program would not give a device of
/// its own.
pub(crate) fn restrict_to(wanted: &DeviceConfig, mut offered: Capabilities) -> Capabilities {
    fn keep<T>(offer: &mut Result<T, Refusal>, is_wanted: bool) {
        if !is_wanted && offer.is_ok() {
            *offer = Err(Refusal::Disabled);
        }
    }
    keep(&mut offered.file, wanted.file.is_some());
    keep(&mut offered.l5o, wanted.l5o.is_some());
    keep(&mut offered.setup, wanted.setup.is_some());
    keep(&mut offered.teardown, wanted.teardown.is_some());
    keep(&mut offered.splice, wanted.splice.is_some());
    keep(&mut offered.quic, wanted.quic.is_some());
    if let (Ok(offered), Some(wanted)) = (&mut offered.l5o, &wanted.l5o) {
        offered.tls_tx &= wanted.tls_tx;
        offered.tls_rx &= wanted.tls_rx;
        offered.nvme_tcp.tx &= wanted.nvme_tcp_tx;
        offered.nvme_tcp.rx &= wanted.nvme_tcp_rx;
    }
    offered
}

#[cfg(test)]
mod tests {
    use abi::l5o::{L5oLimits, ResyncMode};
    use abi::nvme_tcp::NvmeTcpLimits;
    use abi::splice::SpliceLimits;

    use super::*;

    fn offered() -> Capabilities {
        let none = Refusal::Disabled;
        let nvme_tcp = NvmeTcpLimits {
            tx: true,
            rx: true,
            buffers_max: 0,
            buffer_bytes_max: 0,
            io_threshold: 4096,
        };
        Capabilities {
            transmit_bytes_max: 70_000,
            mtu: 1500,
            mac: [2, 0, 0, 0, 0, 1],
            file: Ok(abi::FileLimits { files_max: 9 }),
            l5o: Ok(L5oLimits {
                contexts_max: 5,
                resync: ResyncMode::StreamScan,
                tls_tx: true,
                tls_rx: true,
                nvme_tcp,
                inspect: false,
            }),
            setup: Err(none),
            teardown: Err(none),
            splice: Ok(SpliceLimits { pairs_max: 3 }),
            quic: Err(none),
            decompress: Err(Refusal::NotSupported),
        }
    }

    /// A program gets no engine that it would not give a device of its own.
    #[test]
    fn capabilities_are_restricted_to_those_wanted() {
        let mut wanted = DeviceConfig::new([2, 0, 0, 0, 0, 9]);
        wanted.splice = None;
        let got = restrict_to(&wanted, offered());
        assert_eq!((got.file, got.mac), (offered().file, offered().mac));
        assert_eq!((got.l5o, got.splice), (Err(Refusal::Disabled), Err(Refusal::Disabled)));
        assert_eq!(got.decompress, Err(Refusal::NotSupported), "the device's own reason stays");
        let crypto = std::sync::Arc::new(crypto::Provider);
        wanted.l5o = Some(nic::L5oConfig { tls_rx: false, ..nic::L5oConfig::new(crypto) });
        let l5o = restrict_to(&wanted, offered()).l5o.unwrap();
        assert_eq!((l5o.tls_tx, l5o.tls_rx, l5o.nvme_tcp.tx), (true, false, true));
    }

    /// Another device may have other sizes, and more engines, but not fewer, and no other address.
    #[test]
    fn another_device_must_have_the_engines_of_the_first() {
        let required = offered();
        assert!(is_enough(&offered(), &required));
        let changed = |change: fn(&mut Capabilities)| {
            let mut capabilities = offered();
            change(&mut capabilities);
            is_enough(&capabilities, &required)
        };
        assert!(changed(|it| it.file = Ok(abi::FileLimits { files_max: 1 })));
        assert!(changed(
            |it| it.teardown = Ok(abi::teardown::TeardownLimits { flows_max: 1, bytes_max: 1 })
        ));
        assert!(changed(|it| it.mtu = 1400), "the host is told of it");
        assert!(!changed(|it| it.mac[5] = 2));
        assert!(!changed(|it| it.file = Err(Refusal::Disabled)));
        assert!(!changed(|it| it.splice = Err(Refusal::Disabled)));
        assert!(!changed(|it| it.transmit_bytes_max -= 1));
        assert!(!changed(|it| it.l5o.iter_mut().for_each(|l5o| l5o.tls_rx = false)));
        assert!(!changed(|it| it.l5o.iter_mut().for_each(|l5o| l5o.resync = ResyncMode::Async)));
    }
}
