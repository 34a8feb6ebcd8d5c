//! An initiator on its own stack, for the subcommands that use a target. They send requests from
//! their threads and wait for the answers.
//!
//! [`InitiatorSession::connect`] starts the threads of a queue with an [`Initiator`] and waits
//! until it is connected. A [`InitiatorHandle`] sends requests to it; each has a channel for its
//! completion. The association is shut down orderly when the session is dropped, and at a signal:
//! then open requests fail, and threads that wait for them end.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

use abi::aligned::AlignedBuf;
use apps::nvme::initiator::{
    Discovery, DiscoveryError, Initiator, InitiatorBusy, InitiatorConfig, InitiatorEvent,
    InitiatorNamespace, NvmeRequest, NvmeRequestDone, NvmeRequestError,
};
use apps::pattern_rules::PatternRules;
use base::{Duration, Instant};
use host::{Application, Host, Notice};
use io::clock;
use stack::{MessageSender, Signals, Stack, Switch};
use wire::nvme::nqn::Nqn;

use super::args::{ConnectArgs, SubsystemArgs};
use super::security::InitiatorSecurity;
use crate::alarms::is_alarm;
use crate::interrupt::Interrupt;
use cli::Failure;

/// Longest wait at the end, for the target's shutdown and its acknowledgment of the close.
const END_WAIT: Duration = Duration::from_secs(3);

/// An order of another thread to the initiator.
pub(super) enum InitiatorOrder {
    /// Submits a request.
    Submit {
        /// Namespace ID.
        nsid: u32,
        /// The request.
        request: NvmeRequest,
        /// Buffer for the data of a read.
        buffer: Option<AlignedBuf>,
        /// Receiver of the completion.
        reply: CompletionSender,
    },
    /// Returns the namespaces and the largest request in bytes.
    Namespaces(Sender<(Vec<InitiatorNamespace>, u64)>),
    /// Closes the association.
    Close,
}

/// Reply channel of one request, used once. Dropping it sends `None`, so that a waiting thread is
/// released even if the host thread panics.
pub(super) struct CompletionSender {
    /// The requester's name for the request.
    token: u64,
    /// `None` after the reply was sent.
    to: Option<Sender<Option<NvmeRequestDone>>>,
}

impl CompletionSender {
    /// Creates a reply to a channel, which several requests may share.
    pub(super) const fn new(token: u64, to: Sender<Option<NvmeRequestDone>>) -> Self {
        Self { token, to: Some(to) }
    }

    fn send(mut self, done: NvmeRequestDone) {
        let done = NvmeRequestDone { token: self.token, ..done };
        let _gone = self.to.take().map(|to| to.send(Some(done)));
    }
}

impl Drop for CompletionSender {
    fn drop(&mut self) {
        let _gone = self.to.take().map(|to| to.send(None));
    }
}

/// The initiator as an application of the host thread.
pub(super) struct InitiatorApp {
    initiator: Initiator,
    /// `None` after the association was closed.
    events: Option<Sender<InitiatorEvent>>,
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
                let _gone = self.events.as_ref().map(|events| events.send(event));
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

/// Sends orders to a session's initiator, from any thread.
pub(super) type InitiatorHandle = MessageSender<InitiatorOrder>;

/// A running initiator.
pub(super) struct InitiatorSession {
    /// `None` after it has ended.
    stack: Option<Stack<InitiatorOrder>>,
    handle: InitiatorHandle,
    interrupt: Interrupt,
    pub(super) namespaces: Vec<InitiatorNamespace>,
    /// Maximum number of bytes of data in a request.
    pub(super) data_bytes_max: u64,
    events: Receiver<InitiatorEvent>,
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
        let make = |now, host: &mut Host| {
            let mut initiator = Initiator::new(config, args.connect.target.0);
            initiator.connect(now, host);
            let (replies, waiting) = (BTreeMap::new(), VecDeque::new());
            InitiatorApp { initiator, events: Some(sender), replies, next: 0, waiting }
        };
        let application = (make, InitiatorApp::handle_order as HandleMessage<_, _>);
        let (stack, handle) = start(&args.connect, &signals, inspect, application)?;
        let interrupt = Interrupt::default();
        interrupt.watch(signals, vec![handle.clone()], || InitiatorOrder::Close)?;
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

    /// Waits until the association is established. The first failed attempt is final.
    fn wait(&mut self, args: &SubsystemArgs, security: &InitiatorSecurity) -> Result<(), Failure> {
        match self.events.recv() {
            Ok(InitiatorEvent::Lost(loss) | InitiatorEvent::Failed(loss)) => {
                let why = security.explain(&loss);
                let (nqn, target) = (args.nqn.0, args.connect.target);
                let line = format!("cannot connect to {nqn} at {target}: {why}");
                return Err(Failure::Unavailable(line));
            }
            Ok(_) => {}
            Err(_) => return Err(Failure::System("host thread ended unexpectedly".to_owned())),
        }
        let (reply, answer) = channel();
        self.handle.send(InitiatorOrder::Namespaces(reply));
        let gone = |_| Failure::System("host thread ended unexpectedly".to_owned());
        (self.namespaces, self.data_bytes_max) = answer.recv().map_err(gone)?;
        if self.namespaces.is_empty() {
            // Namespaces are identified after the queues are connected.
            let wait = std::time::Duration::from_secs(10);
            match self.events.recv_timeout(wait) {
                Ok(InitiatorEvent::NamespacesChanged) | Err(RecvTimeoutError::Timeout) => {}
                Ok(_) | Err(RecvTimeoutError::Disconnected) => {}
            }
            let (reply, answer) = channel();
            self.handle.send(InitiatorOrder::Namespaces(reply));
            (self.namespaces, self.data_bytes_max) = answer.recv().map_err(gone)?;
        }
        Ok(())
    }

    /// Waits until a signal ends the association, and prints outages meanwhile.
    ///
    /// # Errors
    /// Fails if the controller is lost for good.
    pub(super) fn wait_for_signal(&self) -> Result<(), Failure> {
        let mut lost = false;
        loop {
            match self.events.recv() {
                // Only the beginning and the end of an outage are printed.
                Ok(InitiatorEvent::Lost(loss)) if !lost => {
                    lost = true;
                    eprintln!("outboard: controller lost: {loss}; reconnecting");
                }
                Ok(InitiatorEvent::Connected) if lost => {
                    lost = false;
                    eprintln!("outboard: reconnected");
                }
                Ok(InitiatorEvent::Failed(loss)) => {
                    let line = NvmeRequestError::ControllerLost(loss).to_string();
                    return Err(Failure::Unavailable(line));
                }
                Ok(_) => {}
                Err(_) if self.interrupt.is_set() => return Ok(()),
                Err(_) => return Err(Failure::System("host thread ended unexpectedly".to_owned())),
            }
        }
    }

    /// Returns a sender of orders to the initiator.
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
        self.handle.send(InitiatorOrder::Close);
        // Orders are handled in sequence, so the association is closed when this one is answered.
        let (reply, answer) = channel();
        self.handle.send(InitiatorOrder::Namespaces(reply));
        drop(answer.recv());
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
    let signals = Signals::take()?;
    let security = InitiatorSecurity::new(args, &Nqn::discovery())?;
    let mut config = config(args, Nqn::discovery(), &security)?;
    // As in [`InitiatorSession::connect`], the first failed attempt is final.
    config.back_off.ctrl_loss = Some(Duration::ZERO);
    let (result, log) = channel();
    let make = |now, host: &mut Host| DiscoveryReader {
        discovery: Discovery::new(now, host, config, args.target.0),
        result,
    };
    let application = (make, DiscoveryReader::close as HandleMessage<_, _>);
    let (stack, sender) = start(args, &signals, false, application)?;
    let interrupt = Interrupt::default();
    interrupt.watch(signals, vec![sender], || ())?;
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

/// Starts a stack with one queue, whose device can inspect data if `inspect` is set; returns it
/// with a sender of messages to its application.
fn start<A: Application + Send + 'static, M: Send + 'static>(
    args: &ConnectArgs,
    signals: &Signals,
    inspect: bool,
    (make, handle): (impl FnOnce(Instant, &mut Host) -> A, HandleMessage<A, M>),
) -> Result<(Stack<M>, MessageSender<M>), Failure> {
    if args.stack.queues != 1 {
        // An initiator with all its connections is an application of one host.
        return Err(Failure::Usage("--queues: an initiator supports only one queue".to_owned()));
    }
    let one_queue = || Failure::System("an initiator supports only one queue".to_owned());
    let mut make = Some(make);
    let mut options = args.stack.clone();
    let network = options.wait_for_addrs(signals)?;
    let stack = Stack::builder()
        .options(options)
        .network(network)
        .configure(|_, device, _| {
            let tls = args.security.is_tls();
            device.l5o = super::l5o_config(args.stack.offload, tls, inspect);
        })
        .application(|queue| {
            let make = make.take().ok_or_else(one_queue)?;
            Ok(make(queue.clock.now(), queue.host))
        })
        .messages(handle)
        .alarms(is_alarm)
        .start()?;
    let sender = stack.senders().first().cloned().ok_or_else(one_queue)?;
    Ok((stack, sender))
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
pub(super) mod tests {
    use super::*;

    /// Returns a sender and its receiving end, in place of a host thread.
    pub(in super::super) fn detached_handle()
    -> (InitiatorHandle, impl Iterator<Item = InitiatorOrder>) {
        MessageSender::detached().unwrap()
    }

    /// Returns a sender to a host thread that has ended.
    pub(in super::super) fn dead_handle() -> InitiatorHandle {
        detached_handle().0
    }

    /// Completes a request successfully.
    pub(in super::super) fn complete(order: InitiatorOrder) {
        let InitiatorOrder::Submit { reply, buffer, .. } = order else { panic!("a request") };
        reply.send(NvmeRequestDone { token: 0, result: Ok(0), buffer });
    }

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
        dead_handle().send(flush(1, &to));
        assert!(done.recv().unwrap().is_none());
    }
}
