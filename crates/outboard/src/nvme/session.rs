//! Initiators on their own stack, for the subcommands that use a target. They send requests from
//! their threads and wait for the answers.
//!
//! [`InitiatorSession::connect`] starts the threads of each device queue with an [`Initiator`], and
//! waits until all are connected. Each has an association of its own, whose connections use ports
//! that lead to its queue. An [`InitiatorHandle`] sends requests to them; each has a channel for
//! its completion. The associations are shut down orderly when the session is dropped, and at a
//! signal: then open requests fail, and threads that wait for them end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use apps::nvme::initiator::{
    Discovery, DiscoveryError, Initiator, InitiatorBusy, InitiatorConfig, InitiatorEvent,
    InitiatorNamespace, NvmeRequestError,
};
use apps::pattern_rules::PatternRules;
use base::{Duration, Instant};
use host::{Application, Host, Notice};
use io::clock;
use stack::{Signals, Stack, Switch};
use wire::nvme::nqn::Nqn;

use super::args::{ConnectArgs, SubsystemArgs};
use super::handle::{CompletionSender, InitiatorHandle, InitiatorOrder};
use super::security::InitiatorSecurity;
use crate::alarms::is_alarm;
use crate::interrupt::Interrupt;
use cli::Failure;

/// Longest wait at the end, for the target's shutdown and its acknowledgment of the close.
const END_WAIT: Duration = Duration::from_secs(3);
/// Longest wait for the namespaces of a connected controller.
const IDENTIFY_WAIT: std::time::Duration = std::time::Duration::from_secs(10);

/// An event of the initiator of a device queue.
type SessionEvent = (usize, InitiatorEvent);

/// The initiator as an application of a host thread.
pub(super) struct InitiatorApp {
    initiator: Initiator,
    /// Index of its device queue.
    queue: usize,
    /// `None` after the association was closed.
    events: Option<Sender<SessionEvent>>,
    replies: BTreeMap<u64, CompletionSender>,
    next: u64,
    /// Requests for which the initiator has no room.
    waiting: VecDeque<InitiatorOrder>,
}

impl InitiatorApp {
    fn handle_order(&mut self, now: Instant, host: &mut Host, order: InitiatorOrder) {
        match order {
            InitiatorOrder::Submit { .. } if self.waiting.is_empty() => {
                self.submit(now, host, order)
            }
            InitiatorOrder::Submit { .. } => self.waiting.push_back(order),
            InitiatorOrder::Namespaces(reply) => {
                let all = self.initiator.namespaces().copied().collect();
                let most = self.initiator.data_bytes_max().unwrap_or(0);
                let _gone = reply.send((all, most));
            }
            InitiatorOrder::Close => {
                self.events = None;
                self.initiator.close(now, host);
            }
        }
        self.forward_results(now, host);
    }

    fn submit(&mut self, now: Instant, host: &mut Host, order: InitiatorOrder) {
        let InitiatorOrder::Submit { nsid, request, buffer, reply } = order else { return };
        let name = self.next;
        match self.initiator.submit(now, host, (name, nsid), request, buffer) {
            Ok(()) => {
                self.next += 1;
                self.replies.insert(name, reply);
            }
            Err(InitiatorBusy(request, buffer)) => {
                self.waiting.push_front(InitiatorOrder::Submit { nsid, request, buffer, reply });
            }
        }
    }

    /// Forwards events and completions, and submits waiting requests. These may complete at once,
    /// so it repeats until none does.
    fn forward_results(&mut self, now: Instant, host: &mut Host) {
        loop {
            while let Some(event) = self.initiator.poll_event() {
                // `None` if the subcommand is ending.
                let _gone = self.events.as_ref().map(|events| events.send((self.queue, event)));
            }
            let mut ended = false;
            while let Some(done) = self.initiator.poll_done() {
                ended = true;
                if let Some(reply) = self.replies.remove(&done.token) {
                    reply.send(done);
                }
            }
            if !ended {
                return;
            }
            while let Some(order) = self.waiting.pop_front() {
                let left = self.waiting.len();
                self.submit(now, host, order);
                if self.waiting.len() > left {
                    break;
                }
            }
        }
    }
}

impl Application for InitiatorApp {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        self.initiator.handle_notice(now, host, notice);
        self.forward_results(now, host);
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.initiator.handle_timeout(now, host);
        self.forward_results(now, host);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.initiator.poll_timeout()
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.initiator.visit_counters(f);
        f("nvmei_requests_open", self.initiator.open_requests() as u64);
    }
}

/// Running initiators.
pub(super) struct InitiatorSession {
    /// `None` after it has ended.
    stack: Option<Stack<InitiatorOrder>>,
    handle: InitiatorHandle,
    interrupt: Interrupt,
    pub(super) namespaces: Vec<InitiatorNamespace>,
    /// Maximum number of bytes of data in a request.
    pub(super) data_bytes_max: u64,
    events: Receiver<SessionEvent>,
}

impl InitiatorSession {
    /// Connects to a target, and waits until that is done.
    ///
    /// # Errors
    /// Fails if a resource is missing or the target cannot be connected.
    pub(super) fn connect(args: &SubsystemArgs) -> Result<Self, Failure> {
        Self::connect_with(args, None)
    }

    /// As [`Self::connect`], with rules about patterns in data that is read.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub(super) fn connect_with(
        args: &SubsystemArgs,
        rules: Option<Arc<PatternRules>>,
    ) -> Result<Self, Failure> {
        // Before anything is opened, so that no signal is lost.
        let signals = Signals::take()?;
        let security = InitiatorSecurity::new(&args.connect, &args.nqn.0)?;
        let mut config = subsystem_config(args, &security)?;
        config.back_off.ctrl_loss = Some(Duration::from_secs(args.ctrl_loss_timeout.into()));
        let inspect = rules.is_some();
        config.pattern_rules = rules;
        let (sender, events) = channel();
        let queues = u16::from(args.connect.stack.queues);
        let make = |(now, queue): (Instant, usize), host: &mut Host| {
            let config = InitiatorConfig {
                queues: io_queues_of(args.io_queues, queues, queue),
                ..config.clone()
            };
            let mut initiator = Initiator::new(config, args.connect.target.0);
            initiator.connect(now, host);
            let (events, replies) = (Some(sender.clone()), BTreeMap::new());
            InitiatorApp { initiator, queue, events, replies, next: 0, waiting: VecDeque::new() }
        };
        let application = (make, InitiatorApp::handle_order as HandleMessage<_, _>);
        let stack = start(&args.connect, &signals, inspect, application)?;
        let handle = InitiatorHandle::new(stack.senders());
        let interrupt = Interrupt::default();
        interrupt.watch(signals, stack.senders().to_vec(), || InitiatorOrder::Close)?;
        let mut session = Self {
            stack: Some(stack),
            handle,
            interrupt,
            namespaces: Vec::new(),
            data_bytes_max: 0,
            events,
        };
        session.wait(args, &security).map_err(|failure| session.interrupt.or(failure))?;
        Ok(session)
    }

    /// Waits until all associations are established. The first failed attempt is final.
    fn wait(&mut self, args: &SubsystemArgs, security: &InitiatorSecurity) -> Result<(), Failure> {
        let gone = || Failure::System("host thread ended unexpectedly".to_owned());
        let mut connected = vec![false; self.handle.queues()];
        let mut identified = connected.clone();
        while connected.contains(&false) {
            let (queue, event) = self.events.recv().map_err(|_| gone())?;
            match event {
                InitiatorEvent::Lost(loss) | InitiatorEvent::Failed(loss) => {
                    let why = security.explain(&loss);
                    let (nqn, target) = (args.nqn.0, args.connect.target);
                    let line = format!("cannot connect to {nqn} at {target}: {why}");
                    return Err(Failure::Unavailable(line));
                }
                InitiatorEvent::NamespacesChanged => identified[queue] = true,
                _ => {}
            }
            connected[queue] = true;
        }
        self.data_bytes_max = u64::MAX;
        for queue in 0..self.handle.queues() {
            let mut found = self.handle.namespaces(queue).ok_or_else(gone)?;
            // Namespaces are identified after the queues are connected.
            while found.0.is_empty() && !identified[queue] {
                match self.events.recv_timeout(IDENTIFY_WAIT) {
                    Ok((other, InitiatorEvent::NamespacesChanged)) => identified[other] = true,
                    // An event of a loss, which requests will meet too, or a target without any.
                    Ok((other, _)) if other != queue => {}
                    Ok(_) | Err(_) => identified[queue] = true,
                }
                found = self.handle.namespaces(queue).ok_or_else(gone)?;
            }
            let (namespaces, most) = found;
            self.data_bytes_max = self.data_bytes_max.min(most);
            if queue == 0 {
                self.namespaces = namespaces;
            }
        }
        Ok(())
    }

    /// Waits until a signal ends the association, and prints outages meanwhile.
    ///
    /// # Errors
    /// Fails if the controller is lost for good.
    pub(super) fn wait_for_signal(&self) -> Result<(), Failure> {
        let mut lost = BTreeSet::new();
        loop {
            match self.events.recv() {
                // Only the beginning and the end of an outage of all controllers are printed.
                Ok((queue, InitiatorEvent::Lost(loss))) => {
                    if lost.is_empty() {
                        eprintln!("outboard: controller lost: {loss}; reconnecting");
                    }
                    lost.insert(queue);
                }
                Ok((queue, InitiatorEvent::Connected)) => {
                    if lost.remove(&queue) && lost.is_empty() {
                        eprintln!("outboard: reconnected");
                    }
                }
                Ok((_, InitiatorEvent::Failed(loss))) => {
                    let line = NvmeRequestError::ControllerLost(loss).to_string();
                    return Err(Failure::Unavailable(line));
                }
                Ok(_) => {}
                Err(_) if self.interrupt.is_set() => return Ok(()),
                Err(_) => return Err(Failure::System("host thread ended unexpectedly".to_owned())),
            }
        }
    }

    /// Returns a sender of orders to the initiators.
    pub(super) fn handle(&self) -> InitiatorHandle {
        self.handle.clone()
    }

    /// Returns a namespace.
    ///
    /// # Errors
    /// Fails if there is none with this ID.
    pub(super) fn namespace(&self, nsid: u32) -> Result<InitiatorNamespace, Failure> {
        let found = self.namespaces.iter().find(|namespace| namespace.nsid == nsid);
        found.copied().ok_or_else(|| {
            let all: Vec<_> = self.namespaces.iter().map(|n| n.nsid.to_string()).collect();
            let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
            Failure::Unavailable(format!("no such namespace: {nsid}; available: {all}"))
        })
    }

    /// Returns the signal that ends the session.
    pub(super) fn interrupt(&self) -> Interrupt {
        self.interrupt.clone()
    }

    /// Returns the counters of host and device: `{"host": {..}, "nic": {..}}`.
    pub(super) fn counters(&self) -> serde_json::Value {
        self.stack.as_ref().map(Stack::counters).unwrap_or_default()
    }

    /// Closes the association and ends the threads.
    ///
    /// # Errors
    /// Fails if a thread has panicked.
    pub(super) fn end(mut self) -> Result<(), Failure> {
        self.close()
    }

    fn close(&mut self) -> Result<(), Failure> {
        let Some(stack) = self.stack.take() else { return Ok(()) };
        self.handle.close();
        stack.stop_when_closed(END_WAIT)
    }
}

impl Drop for InitiatorSession {
    fn drop(&mut self) {
        // A caller that wants to know about a panic calls `end` instead.
        drop(self.close());
    }
}

/// Application that reads a discovery log.
struct DiscoveryReader {
    discovery: Discovery,
    result: Sender<DiscoveryLogResult>,
}

/// A discovery log, or why it cannot be read.
type DiscoveryLogResult = Result<Vec<wire::nvme::log::DiscoveryEntry>, DiscoveryError>;

impl DiscoveryReader {
    fn send_result(&mut self) {
        if let Some(result) = self.discovery.poll() {
            let _gone = self.result.send(result);
        }
    }

    /// Cancels the reading.
    fn close(&mut self, now: Instant, host: &mut Host, (): ()) {
        self.discovery.close(now, host);
        self.send_result();
    }
}

impl Application for DiscoveryReader {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        self.discovery.handle_notice(now, host, notice);
        self.send_result();
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.discovery.handle_timeout(now, host);
        self.send_result();
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.discovery.poll_timeout()
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.discovery.counters().visit(f);
    }
}

/// Reads the discovery log at a target's address.
///
/// # Errors
/// Fails if a resource is missing or the log cannot be read.
pub(super) fn discover(
    args: &ConnectArgs,
) -> Result<Vec<wire::nvme::log::DiscoveryEntry>, Failure> {
    if args.stack.queues != 1 {
        return Err(Failure::Usage("--queues: discovery uses one connection".to_owned()));
    }
    let signals = Signals::take()?;
    let security = InitiatorSecurity::new(args, &Nqn::discovery())?;
    let mut config = config(args, Nqn::discovery(), &security)?;
    // As in [`InitiatorSession::connect`], the first failed attempt is final.
    config.back_off.ctrl_loss = Some(Duration::ZERO);
    let (result, log) = channel();
    let make = |(now, _): (Instant, usize), host: &mut Host| DiscoveryReader {
        discovery: Discovery::new(now, host, config.clone(), args.target.0),
        result: result.clone(),
    };
    let application = (make, DiscoveryReader::close as HandleMessage<_, _>);
    let stack = start(args, &signals, false, application)?;
    // The reader has the only sender.
    drop(result);
    let interrupt = Interrupt::default();
    interrupt.watch(signals, stack.senders().to_vec(), || ())?;
    let log = log.recv();
    stack.stop_when_closed(END_WAIT)?;
    let log = log.map_err(|_| Failure::System("host thread ended unexpectedly".to_owned()))?;
    log.map_err(|error| {
        let why = match &error {
            DiscoveryError::Controller(loss) => security.explain(loss),
            _ => error.to_string(),
        };
        let line = format!("cannot read discovery log from {}: {why}", args.target);
        interrupt.or(Failure::Unavailable(line))
    })
}

/// An application's function that handles a message.
type HandleMessage<A, M> = fn(&mut A, Instant, &mut Host, M);

/// Starts a stack whose devices can inspect data if `inspect` is set. `make` creates the
/// application of each queue.
fn start<A: Application + Send + 'static, M: Send + 'static>(
    args: &ConnectArgs,
    signals: &Signals,
    inspect: bool,
    (make, handle): (impl Fn((Instant, usize), &mut Host) -> A, HandleMessage<A, M>),
) -> Result<Stack<M>, Failure> {
    let mut options = args.stack.clone();
    let network = options.wait_for_addrs(signals)?;
    Stack::builder()
        .options(options)
        .network(network)
        .configure(|_, device, _| {
            let tls = args.security.is_tls();
            device.l5o = super::l5o_config(args.stack.offload, tls, inspect);
        })
        .application(|queue| Ok(make((queue.clock.now(), queue.index), queue.host)))
        .messages(handle)
        .alarms(is_alarm)
        .start()
}

/// Returns the number of I/O queues of the initiator of a device queue: its part of `all`, at least
/// one.
fn io_queues_of(all: u16, queues: u16, queue: usize) -> u16 {
    let queues = queues.max(1);
    let more = u16::from(queue < usize::from(all % queues));
    (all / queues + more).max(1)
}

/// Returns the configuration of an initiator for the options of a subsystem.
///
/// # Errors
/// An option is missing, or a file cannot be read or is invalid.
pub(crate) fn initiator_config(args: &SubsystemArgs) -> Result<InitiatorConfig, Failure> {
    subsystem_config(args, &InitiatorSecurity::new(&args.connect, &args.nqn.0)?)
}

fn subsystem_config(
    args: &SubsystemArgs,
    security: &InitiatorSecurity,
) -> Result<InitiatorConfig, Failure> {
    let mut config = config(&args.connect, args.nqn.0, security)?;
    config.queues = args.io_queues;
    config.queue_entries = args.queue_size;
    Ok(config)
}

/// Returns the configuration of an initiator.
fn config(
    args: &ConnectArgs,
    subsystem: Nqn,
    security: &InitiatorSecurity,
) -> Result<InitiatorConfig, Failure> {
    let random =
        || (u128::from(clock::entropy()) << 64 | u128::from(clock::entropy())).to_be_bytes();
    let mut host_id = random();
    // A random UUID: RFC 9562, version 4.
    host_id[6] = host_id[6] & 0x0f | 0x40;
    host_id[8] = host_id[8] & 0x3f | 0x80;
    let named = |id: &[u8; 16]| {
        let digits: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
        Nqn::new(&format!("nqn.2014-08.org.nvmexpress:uuid:{}", parts.join("-")))
    };
    let host = args.hostnqn.map(|nqn| nqn.0).or_else(|| named(&host_id));
    let host =
        host.ok_or_else(|| Failure::System("cannot create an NQN for this host".to_owned()))?;
    let mut config = InitiatorConfig::new(host, host_id, subsystem, Arc::new(crypto::Provider));
    security.configure(&mut config);
    config.header_digest = args.header_digest == Switch::On;
    config.data_digest = args.data_digest == Switch::On;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::super::handle::tests::dead_handle;
    use super::*;
    use apps::nvme::initiator::{NvmeRequest, NvmeRequestDone};

    fn flush(token: u64, to: &Sender<Option<NvmeRequestDone>>) -> InitiatorOrder {
        let reply = CompletionSender::new(token, to.clone());
        InitiatorOrder::Submit { nsid: 1, request: NvmeRequest::Flush, buffer: None, reply }
    }

    #[test]
    fn waiting_requests_that_end_at_once_are_answered() {
        let link = abi::link::LinkCaps {
            segmentation: false,
            udp_segmentation: false,
            checksum: false,
            mtu: 1500,
        };
        let device = nic::Device::new(nic::DeviceConfig::new([2; 6]), link);
        let mut host = Host::new(host::HostConfig::default(), &device.capabilities(), 1);
        let name = Nqn::discovery();
        let config = InitiatorConfig::new(name, [1; 16], name, Arc::new(crypto::Provider));
        let remote = wire::Endpoint { addr: [10, 0, 0, 1].into(), port: 4420 };
        let (to, done) = channel();
        let mut client = InitiatorApp {
            // There is no namespace yet, so requests end at once.
            initiator: Initiator::new(config, remote),
            queue: 0,
            events: None,
            replies: BTreeMap::new(),
            next: 0,
            waiting: [flush(2, &to), flush(3, &to)].into(),
        };
        client.submit(Instant::ZERO, &mut host, flush(1, &to));
        client.forward_results(Instant::ZERO, &mut host);
        let told: Vec<_> = done.try_iter().map(|done| done.map(|done| done.token)).collect();
        assert_eq!(told, [Some(1), Some(2), Some(3)]);
        assert!(client.replies.is_empty() && client.waiting.is_empty());
    }

    #[test]
    fn waiters_are_released_when_the_thread_ends() {
        let (to, done) = channel();
        let reply = CompletionSender::new(1, to);
        dead_handle().submit(1, NvmeRequest::Flush, None, reply);
        assert!(done.recv().unwrap().is_none());
    }

    #[test]
    fn io_queues_are_spread_over_device_queues() {
        let spread = |all, queues: u16| {
            (0..queues.into()).map(|queue| io_queues_of(all, queues, queue)).collect::<Vec<_>>()
        };
        assert_eq!(spread(1, 1), [1]);
        assert_eq!(spread(8, 3), [3, 3, 2]);
        assert_eq!(spread(1, 3), [1, 1, 1], "each controller needs one");
    }
}
