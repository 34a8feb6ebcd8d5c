//! The program's side: the carrier of its host thread, and the thread that attaches again.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

use abi::attach::{AddressClaim, AttachGrant, AttachRefusal, AttachRequest};
use abi::{Capabilities, Event, Op, PacketBuf, Refusal};
use base::{Duration, Instant};
use cli::Failure;
use io::clock::MonotonicClock;
use io::notify::Notifier;
use nic::DeviceConfig;
use node::remote::RemoteHostEnd;

use super::attachment::{Attachment, AttachmentLoss};
use super::channel::AttachedChannel;
use super::claim_extension::{ClaimAnswered, ClaimExtension, ClaimFailure, ProgramClaim};
use super::handshake::DeviceArrival;
use super::program_devices::{ProgramDevices, RETRY};
use crate::record::RunRecorder;
use crate::threads::{CarrierSleeper, HostCarrier, SleepingCarrier};

base::counters! {
    /// Counters of a program's attachment.
    pub struct AttachCounters {
        /// Attachments to a device, the first one included.
        nic_attached,
        /// Devices that ended, or whose end of the carrier was faulty.
        nic_lost: alarm,
        /// Devices left because they violated the rules of the carrier.
        nic_carrier_faults: alarm,
        /// Addresses that the network has assigned, and that the device refuses.
        nic_claims_refused: alarm,
        /// Answers about a claim that was not asked for.
        nic_answers_ignored,
        /// Registered buffers that lost devices had.
        nic_buffers_recalled,
        /// Microseconds without a device, in all.
        nic_absent_us,
    }
}

/// The carrier of a host whose device is another process.
pub(crate) struct ProgramCarrier {
    device: Attachment<RemoteHostEnd<AttachedChannel>>,
    claim: ProgramClaim,
    /// Events about the attachment itself, for the host.
    own_events: VecDeque<Event>,
    /// Returned buffers of the lost device. The host gets them after [`Event::Reset`], as from a
    /// device that was reset.
    recalled: Vec<Event>,
    recorder: RunRecorder,
    clock: MonotonicClock,
    /// Time at which the last device was lost.
    lost_at: Instant,
    arrivals: Receiver<DeviceArrival>,
    /// Asks the attaching thread for another device, with this claim. Dropping it ends the thread.
    lost: Sender<AddressClaim>,
    counters: AttachCounters,
}

impl ProgramCarrier {
    /// Attaches a queue to a device, and starts the thread that attaches again when the device is
    /// lost.
    ///
    /// # Errors
    /// If no device of the list takes the program.
    pub(crate) fn attach(
        devices: &ProgramDevices,
        mut request: AttachRequest,
        recorder: RunRecorder,
    ) -> Result<(AttachGrant, Self), Failure> {
        let claim = ProgramClaim::new(request.claim.clone());
        let DeviceArrival { grant, channel: attached, region } = devices.attach_first(&request)?;
        // The connections from these ports outlive the device.
        request.outgoing = grant.outgoing;
        let mut device = Attachment::new()?;
        device.attach(RemoteHostEnd::new(attached, region));
        let (lost, requests) = channel();
        let (sender, arrivals) = channel();
        let mut attaching = AttachThread {
            devices: devices.clone(),
            request,
            required: grant.capabilities.clone(),
            requests,
            arrivals: sender,
            notifier: device.notifier(),
        };
        drop(crate::spawn("attach".to_owned(), move || attaching.run())?);
        let counters = AttachCounters { nic_attached: 1, ..AttachCounters::default() };
        let (own_events, recalled) = (VecDeque::new(), Vec::new());
        let clock = MonotonicClock::new();
        let lost_at = clock.now();
        let carrier = Self {
            device,
            claim,
            own_events,
            recalled,
            recorder,
            clock,
            lost_at,
            arrivals,
            lost,
            counters,
        };
        Ok((grant, carrier))
    }

    /// Leaves a device that is gone or faulty. Returns whether there was one to leave.
    fn leave_if_lost(&mut self) -> bool {
        let Some((loss, left)) = self.device.leave_if_lost() else { return false };
        let recalled = self.recalled.len();
        self.recalled.extend(left.recall_buffers());
        self.counters.nic_buffers_recalled += (self.recalled.len() - recalled) as u64;
        if let AttachmentLoss::Fault(fault) = loss {
            eprintln!("outboard: leaving the device: {fault}");
            self.counters.nic_carrier_faults += 1;
        }
        self.counters.nic_lost += 1;
        self.lost_at = self.clock.now();
        self.claim.handle_loss();
        // An error means that the thread has ended, because the process does.
        let _ = self.lost.send(self.claim.granted().clone());
        true
    }

    /// Sends the claim that waits for room, if there is one.
    fn send_claim(&mut self) {
        if !self.claim.is_waiting() {
            return;
        }
        let Some(end) = self.device.end() else { return };
        if !end.has_op_room() {
            return;
        }
        if let Some(op) = self.claim.poll() {
            self.recorder.observe_op(|| self.clock.now(), &op);
            end.push_op(op);
            end.publish();
        }
    }

    /// Handles the device's answer about a claim.
    fn handle_claim_answer(&mut self, result: Result<(), AttachRefusal>) {
        match self.claim.handle_answer(result) {
            ClaimAnswered::Settled => {}
            ClaimAnswered::HostRefused(reason) => {
                eprintln!("outboard: the device refuses a new address: {reason}");
                self.counters.nic_claims_refused += 1;
            }
            ClaimAnswered::Unasked => self.counters.nic_answers_ignored += 1,
        }
    }

    /// Takes a device that was found in place of the lost one.
    fn take_arrival(&mut self) -> bool {
        if self.device.is_attached() {
            return false;
        }
        let Ok(DeviceArrival { grant, channel, region }) = self.arrivals.try_recv() else {
            return false;
        };
        self.device.attach(RemoteHostEnd::new(channel, region));
        self.counters.nic_attached += 1;
        self.counters.nic_absent_us += self.clock.now().since(self.lost_at).as_micros();
        self.own_events.push_back(Event::Reset);
        self.own_events.extend(self.recalled.drain(..));
        self.own_events.push_back(Event::LinkChanged { mtu: grant.capabilities.mtu });
        true
    }
}

impl SleepingCarrier for ProgramCarrier {
    type Sleeper = Attachment<RemoteHostEnd<AttachedChannel>>;

    fn sleeper(&mut self) -> &mut Self::Sleeper {
        &mut self.device
    }

    fn has_work(&mut self) -> bool {
        !self.own_events.is_empty() || self.device.has_work()
    }

    fn sleep_limit(&self) -> Option<Duration> {
        let retry = self.claim.is_waiting().then_some(RETRY);
        [self.device.sleep_limit(), retry].into_iter().flatten().min()
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
        self.device.visit(f);
        f("nic_is_attached", self.device.is_attached().into());
    }
}

impl HostCarrier for ProgramCarrier {
    fn pop_event(&mut self) -> Option<Event> {
        let event = if self.own_events.is_empty() {
            self.device.end()?.pop_event()
        } else {
            self.own_events.pop_front()
        };
        if let Some(Event::ClaimExtended { result }) = event {
            self.handle_claim_answer(result);
        }
        if let Some(event) = &event {
            self.recorder.observe_event(|| self.clock.now(), event);
        }
        event
    }

    fn has_op_room(&mut self) -> bool {
        self.device.end().is_some_and(RemoteHostEnd::has_op_room)
    }

    fn push_op(&mut self, op: Op) {
        self.recorder.observe_op(|| self.clock.now(), &op);
        if let Op::ExtendClaim(claim) = &op {
            self.claim.note_claim_of_host(claim);
        }
        if let Some(end) = self.device.end() {
            end.push_op(op);
        }
    }

    fn push_recycled(&mut self, packet: PacketBuf) {
        if let Some(end) = self.device.end() {
            end.recycle(packet);
        }
    }

    fn wake_device(&mut self) {
        if let Some(end) = self.device.end() {
            end.publish();
        }
    }

    fn follow_device(&mut self) -> bool {
        let left = self.leave_if_lost();
        self.send_claim();
        self.take_arrival() || left
    }

    fn extend_claim(&mut self, extension: ClaimExtension) {
        if self.device.is_attached() {
            self.claim.begin(extension);
            self.send_claim();
        } else {
            extension.finish(Err(ClaimFailure::NoDevice));
        }
    }

    fn has_device(&self) -> bool {
        self.device.is_attached()
    }
}

/// Attaches again, each time that the host thread asks.
struct AttachThread {
    devices: ProgramDevices,
    request: AttachRequest,
    /// Capabilities of the first device, which the host relies on.
    required: Capabilities,
    requests: Receiver<AddressClaim>,
    arrivals: Sender<DeviceArrival>,
    notifier: Notifier,
}

impl AttachThread {
    /// Runs until the host thread has ended.
    fn run(&mut self) {
        while let Ok(claim) = self.requests.recv() {
            self.request.claim = claim;
            self.devices.note_loss();
            let Some(arrival) = self.attach() else { return };
            if self.arrivals.send(arrival).is_err() {
                return;
            }
            self.notifier.notify();
        }
    }

    /// Tries until a device takes the program; returns `None` if the host thread has ended.
    fn attach(&mut self) -> Option<DeviceArrival> {
        let mut told = String::new();
        loop {
            let error = match self.devices.attach_again(&self.request, &self.required) {
                Ok(arrival) => return Some(arrival),
                Err(error) => error,
            };
            // A device that is not there yet is what this waits for.
            let line = if error.is_there() { error.to_string() } else { String::new() };
            if !line.is_empty() && line != told {
                eprintln!("outboard: cannot attach again: {line}; retrying");
            }
            told = line;
            let wait = std::time::Duration::from_micros(RETRY.as_micros());
            if matches!(self.requests.recv_timeout(wait), Err(RecvTimeoutError::Disconnected)) {
                return None;
            }
        }
    }
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
        offered.inspect &= wanted.inspect;
        let io_threshold = &mut offered.nvme_tcp.io_threshold;
        *io_threshold = wanted.ddp_io_threshold.max(*io_threshold);
    }
    offered
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use abi::l5o::{L5oLimits, ResyncMode};
    use abi::nvme_tcp::NvmeTcpLimits;
    use abi::splice::SpliceLimits;

    use super::*;
    use crate::attach::handshake::is_enough;

    fn offered() -> Capabilities {
        let l5o = L5oLimits {
            contexts_max: 5,
            resync: ResyncMode::StreamScan,
            tls_tx: true,
            tls_rx: true,
            nvme_tcp: NvmeTcpLimits {
                tx: true,
                rx: true,
                buffers_max: 0,
                buffer_bytes_max: 0,
                io_threshold: 4096,
            },
            inspect: true,
        };
        let mac = [2, 0, 0, 0, 0, 1];
        Capabilities {
            file: Ok(abi::FileLimits { files_max: 9 }),
            l5o: Ok(l5o),
            splice: Ok(SpliceLimits { pairs_max: 3 }),
            decompress: Err(Refusal::NotSupported),
            ..Capabilities::without_engines(mac, 1500, 70_000, Refusal::Disabled)
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
        let crypto = Arc::new(crypto::Provider);
        let some = nic::L5oConfig { tls_rx: false, inspect: false, ..nic::L5oConfig::new(crypto) };
        wanted.l5o = Some(some);
        let l5o = restrict_to(&wanted, offered()).l5o.unwrap();
        assert_eq!((l5o.tls_tx, l5o.tls_rx, l5o.nvme_tcp.tx), (true, false, true));
        assert!(!l5o.inspect);
        let some = nic::L5oConfig { ddp_io_threshold: 8192, ..wanted.l5o.unwrap() };
        wanted.l5o = Some(some);
        let l5o = restrict_to(&wanted, offered()).l5o.unwrap();
        assert_eq!(l5o.nvme_tcp.io_threshold, 8192, "smaller buffers are not worth it");
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
        assert!(!changed(|it| it.l5o.iter_mut().for_each(|l5o| l5o.inspect = false)));
        assert!(!changed(|it| it.l5o.iter_mut().for_each(|l5o| l5o.resync = ResyncMode::Async)));
    }
}
