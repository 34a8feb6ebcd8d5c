//! Assembles a stack and starts it.

use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::Sender;

use abi::Capabilities;
use abi::attach::{AttachGrant, AttachRequest, PortRange};
use abi::steering::FlowSteering;
use base::Instant;
use cli::Failure;
use host::{Application, AutoAddrEvent, Host, HostConfig};
use io::clock::{self, MonotonicClock};
use io::disk::{Disk, DiskKind};
use io::link::Link;
use nic::DeviceConfig;
use quic::ConnectionInfo;

use crate::assigned_addrs::AssignedAddrs;
use crate::attach::{self, NicAddress, ProgramCarrier, ProgramDevices};
use crate::balance;
use crate::control::metrics::IsAlarm;
use crate::control::{ControlHandlers, ControlSocket, OrderHandler};
use crate::device::create_device;
use crate::hooks::Hooks;
use crate::link::{LinkName, open_links};
use crate::log::open_access_log;
use crate::network::Network;
use crate::no_disk::NoDisk;
use crate::options::StackOptions;
use crate::record::{RunRecord, RunRecorder};
use crate::running::{AsideThreads, Stack};
use crate::signals::Signals;
use crate::threads::{DeviceSide, HostSide, MessageSender, QueueRings, Threads, ring_mesh};

/// The queue that an application is made for.
#[derive(Debug)]
pub struct QueueSetup<'a> {
    /// Index of the queue.
    pub index: usize,
    /// Clock of the stack's threads, which `now` in the application's calls is read from.
    pub clock: MonotonicClock,
    /// The host of the queue.
    pub host: &'a mut Host,
}

/// Links, one for each queue.
type OpenedLinks = Result<Vec<Box<dyn Link>>, Failure>;
type OpenLinks<'a> = Box<dyn FnOnce(&StackOptions, &MonotonicClock) -> OpenedLinks + 'a>;
type OpenDisk<'a> = Box<dyn Fn() -> Result<Box<dyn Disk>, Failure> + 'a>;
type Configure<'a> = Box<dyn Fn(usize, &mut DeviceConfig, &mut HostConfig) + 'a>;
type MakeApplication<'a, A> = Box<dyn FnMut(QueueSetup<'_>) -> Result<A, Failure> + 'a>;
type MakeOrderHandler<'a, M> = Box<dyn FnOnce(Vec<MessageSender<M>>) -> OrderHandler + 'a>;

/// Parts of a stack with an application of type `A`, which receives messages of type `M` from other
/// threads.
pub struct Builder<'a, A = (), M = ()> {
    options: StackOptions,
    open_links: Option<OpenLinks<'a>>,
    network: Option<Network>,
    open_disk: Option<OpenDisk<'a>>,
    root: Option<&'a Path>,
    configure: Option<Configure<'a>>,
    make_application: MakeApplication<'a, A>,
    hooks: Hooks<A, M>,
    make_order_handler: Option<MakeOrderHandler<'a, M>>,
    is_alarm: IsAlarm,
}

impl<'a> Builder<'a> {
    pub(crate) fn new() -> Self {
        Self {
            options: StackOptions::default(),
            open_links: None,
            network: None,
            open_disk: None,
            root: None,
            configure: None,
            make_application: Box::new(|_| Ok(())),
            hooks: Hooks::default(),
            make_order_handler: None,
            is_alarm: |name| crate::alarms().any(|alarm| alarm == name),
        }
    }

    /// Sets the function that creates the application of each queue, with its host. It is called
    /// when links and devices are open; if it fails, so does [`Self::start`].
    #[must_use]
    pub fn application<A: Application + Send + 'static>(
        self,
        make: impl FnMut(QueueSetup<'_>) -> Result<A, Failure> + 'a,
    ) -> Builder<'a, A> {
        Builder {
            options: self.options,
            open_links: self.open_links,
            network: self.network,
            open_disk: self.open_disk,
            root: self.root,
            configure: self.configure,
            make_application: Box::new(make),
            hooks: Hooks::default(),
            make_order_handler: None,
            is_alarm: self.is_alarm,
        }
    }
}

impl<'a, A: Application + Send + 'static> Builder<'a, A> {
    /// Sets the application's function that handles messages from other threads, between two turns.
    /// They are sent by [`Stack::senders`].
    #[must_use]
    pub fn messages<M: Send + 'static>(
        self,
        handle_message: fn(&mut A, Instant, &mut Host, M),
    ) -> Builder<'a, A, M> {
        let Hooks { list_quic_connections, pollable, .. } = self.hooks;
        Builder {
            options: self.options,
            open_links: self.open_links,
            network: self.network,
            open_disk: self.open_disk,
            root: self.root,
            configure: self.configure,
            make_application: self.make_application,
            hooks: Hooks { handle_message, list_quic_connections, pollable },
            make_order_handler: None,
            is_alarm: self.is_alarm,
        }
    }
}

impl<'a, A, M> Builder<'a, A, M> {
    /// Sets all options.
    #[must_use]
    pub fn options(self, options: StackOptions) -> Self {
        Self { options, ..self }
    }

    /// Sets the link to open, with as many queues as the stack has.
    #[must_use]
    pub fn link(self, link: LinkName) -> Self {
        Self { options: StackOptions { link, ..self.options }, ..self }
    }

    /// Sets the function that opens the links, one for each queue, instead of the options' link.
    #[must_use]
    pub fn links(
        self,
        open: impl FnOnce(&StackOptions, &MonotonicClock) -> OpenedLinks + 'a,
    ) -> Self {
        Self { open_links: Some(Box::new(open)), ..self }
    }

    /// Sets the opened links and the clients of automatic addresses, as
    /// [`StackOptions::wait_for_addrs`] returned them, instead of the options' link.
    #[must_use]
    pub fn network(self, network: Option<Network>) -> Self {
        Self { network, ..self }
    }

    /// Serves the files below this folder. The device's file engine sends them, unless
    /// [`StackOptions::offload`] excludes it.
    #[must_use]
    pub fn folder(self, root: &'a Path) -> Self {
        self.root(root).disk(move || {
            let disk = io::disk::open_disk(root, DiskKind::Auto);
            disk.map_err(|e| Failure::NoInput(e.to_string()))
        })
    }

    /// Sets the directory that the disks of [`Self::disk`] open. A device in another process finds
    /// it among its roots; without it that device sends no files.
    #[must_use]
    pub fn root(self, root: &'a Path) -> Self {
        Self { root: Some(root), ..self }
    }

    /// Sets the function that opens a disk; each device and each host has its own.
    #[must_use]
    pub fn disk(self, open: impl Fn() -> Result<Box<dyn Disk>, Failure> + 'a) -> Self {
        Self { open_disk: Some(Box::new(open)), ..self }
    }

    /// Sets a function that changes the configurations of each queue's device and host: for engines
    /// that need crypto, and for the host's limits. The limits of the device's tables are applied
    /// after it.
    #[must_use]
    pub fn configure(
        self,
        change: impl Fn(usize, &mut DeviceConfig, &mut HostConfig) + 'a,
    ) -> Self {
        Self { configure: Some(Box::new(change)), ..self }
    }

    /// Sets a function that calls its second argument for each QUIC connection of the application.
    #[must_use]
    pub fn quic_connections(self, list: fn(&A, &mut dyn FnMut(ConnectionInfo))) -> Self {
        Self { hooks: Hooks { list_quic_connections: list, ..self.hooks }, ..self }
    }

    /// Sets a function that returns a descriptor which polls readable when
    /// [`Application::begin_turn`] has changes to read. It is called once, when the thread starts.
    #[must_use]
    pub fn pollable(self, pollable: fn(&A) -> Option<RawFd>) -> Self {
        Self { hooks: Hooks { pollable, ..self.hooks }, ..self }
    }

    /// Sets the function that returns whether a counter is an alarm, for the metrics.
    #[must_use]
    pub fn alarms(self, is_alarm: fn(&str) -> bool) -> Self {
        Self { is_alarm, ..self }
    }

    /// Accepts orders on the control socket. `handler` receives the senders of messages to the
    /// application of each queue.
    #[must_use]
    pub fn orders(self, handler: impl FnOnce(Vec<MessageSender<M>>) -> OrderHandler + 'a) -> Self {
        Self { make_order_handler: Some(Box::new(handler)), ..self }
    }
}

impl<A: Application + Send + 'static, M: Send + 'static> Builder<'_, A, M> {
    /// Runs the stack until a signal: SIGTERM or SIGINT drains and ends it, a second one ends it at
    /// once, SIGUSR1 reopens the access log.
    ///
    /// # Errors
    /// Fails if a link, file, address or thread is not available; the message says what to do.
    pub fn run(self) -> Result<(), Failure> {
        let signals = Signals::take()?;
        self.start()?.run(signals, None)
    }

    /// Starts the threads of the stack, its control socket and its metrics.
    ///
    /// # Errors
    /// Fails if a link, file, address or thread is not available; the message says what to do.
    pub fn start(mut self) -> Result<Stack<M>, Failure> {
        let record = self.options.record.as_deref().map(RunRecord::create).transpose()?;
        let path = self.options.control_path();
        let control = ControlSocket::bind(&path)?;
        self.options.confinement.own(&path)?;
        let (reopened, steering) = (Arc::default(), self.options.flow_steering());
        let common =
            QueueCommon { reopened: &reopened, steering: &steering, record: record.as_ref() };
        let threads = match self.options.nic.clone() {
            Some(nic) => self.start_attached(&nic, common)?,
            None => self.start_queues(common)?,
        };
        let hosts = threads.senders().to_vec();
        let orders = self.make_order_handler.take().map(|make| make(hosts.clone()));
        let (options, probes) = (&self.options, threads.probes());
        let handlers = ControlHandlers { orders, take_over: None };
        let mut aside = AsideThreads::start(options, control, probes, self.is_alarm, handlers)?;
        // The device of another process moves no entries of the steering.
        if options.nic.is_none() {
            aside.balance = balance::start(options.queue_balance, steering, hosts)?;
        }
        let clock = threads.clock();
        Ok(Stack::new(clock, &self.options, threads, reopened, (aside, record)))
    }

    /// Opens the links, and starts the threads of all queues.
    fn start_queues(&mut self, common: QueueCommon<'_>) -> Result<Threads<M>, Failure> {
        let (clock, opened, clients) = match self.network.take() {
            Some(Network { clock, links, auto }) => (clock, Some(links), Some(auto)),
            None => (MonotonicClock::new(), None, None),
        };
        let links = match (opened, self.open_links.take()) {
            (Some(links), _) => links,
            (None, Some(open)) => open(&self.options, &clock)?,
            (None, None) => open_links(&self.options, &clock)?,
        };
        self.options.confinement.complete(self.options.opens_bpf_links())?;
        let queues = ring_mesh(links.len())?;
        let mut threads = Threads::new(clock, self.options.shares_thread());
        let mut addrs = AssignedAddrs::new(clients);
        for (link, queue) in links.into_iter().zip(queues) {
            self.start_queue(&mut threads, queue, (link, &mut addrs), common)?;
        }
        addrs.start_thread(threads.senders())?;
        Ok(threads)
    }

    /// Attaches all queues to a device in another process, and starts the hosts' threads.
    fn start_attached(
        &mut self,
        nic: &NicAddress,
        common: QueueCommon<'_>,
    ) -> Result<Threads<M>, Failure> {
        let queues = usize::from(self.options.queues);
        let devices = ProgramDevices::open(nic, queues)?;
        let mut addrs = AssignedAddrs::new(self.network.take().map(|network| network.auto));
        let attach = |index| self.attach_queue(index, (nic, &devices), addrs.may_change(), common);
        let attached = (0..queues).map(attach).collect::<Result<Vec<_>, Failure>>()?;
        self.options.confinement.complete(self.options.opens_bpf_links())?;
        // That of the device, for cookies of the device.
        let clock = MonotonicClock::since_boot();
        let mut threads = Threads::new(clock, false);
        for (index, (carrier, host_config, capabilities)) in attached.into_iter().enumerate() {
            let mut host = Host::new(host_config, &capabilities, clock::entropy());
            let addr_events = addrs.install(clock.now(), &mut host);
            let host = self.host_side(index, clock, host, addr_events, common)?;
            threads.start_host(carrier, host)?;
        }
        addrs.start_thread(threads.senders())?;
        Ok(threads)
    }

    /// Attaches a queue to a device in another process. Returns the carrier of its host, with the
    /// host's configuration and the device's capabilities.
    fn attach_queue(
        &self,
        index: usize,
        (nic, devices): (&NicAddress, &ProgramDevices),
        has_auto_addrs: bool,
        QueueCommon { steering, record, .. }: QueueCommon<'_>,
    ) -> Result<(ProgramCarrier, HostConfig, Capabilities), Failure> {
        let mut wanted = self.options.device_config(None);
        let own_queue = self.options.own_queue(index, steering);
        let mut host_config = self.options.host_config(own_queue);
        // The device passes requests about an address to one of the hosts, whichever that is.
        (host_config.answers, host_config.announces) = (true, index == 0);
        self.configure_queue(index, &mut wanted, &mut host_config);
        let root = self.root.filter(|_| wanted.file.is_some());
        let root = root.map(|root| self.options.root_identity(nic, root)).transpose()?;
        let quic = wanted.quic_steering;
        let mut claim = self.options.address_claim(&host_config.addrs, (index, quic));
        // The first queue runs the clients.
        claim.automatic = has_auto_addrs && index == 0;
        host_config.claim = has_auto_addrs.then(|| claim.clone());
        let request = AttachRequest { root, claim, outgoing: None };
        let recorder = RunRecorder(record.map(|record| record.source().recorder(index)));
        let (AttachGrant { capabilities, outgoing }, carrier) =
            ProgramCarrier::attach(devices, request, recorder)?;
        if has_auto_addrs && self.options.link_address != Some(capabilities.mac) {
            let line = "the device has another link address than the one that has leased the \
                        addresses; start again";
            return Err(Failure::Unavailable(line.to_owned()));
        }
        if let Some(PortRange { first, last }) = outgoing {
            // All of these ports lead to this queue.
            (host_config.ports, host_config.own_queue) = (first..=last, None);
        }
        Ok((carrier, host_config, attach::restrict_to(&wanted, capabilities)))
    }

    /// Starts the threads of a queue.
    fn start_queue(
        &mut self,
        threads: &mut Threads<M>,
        queue: QueueRings,
        (link, addrs): (Box<dyn Link>, &mut AssignedAddrs),
        common: QueueCommon<'_>,
    ) -> Result<(), Failure> {
        let QueueCommon { steering, record, .. } = common;
        let index = queue.device.index;
        let own_queue = self.options.own_queue(index, steering);
        let mut host_config = self.options.host_config(own_queue.clone());
        let device = create_device(&self.options, (index, own_queue), &*link, |config| {
            self.configure_queue(index, config, &mut host_config);
        })?;
        let mut host = Host::new(host_config, &device.capabilities(), clock::entropy());
        let addr_events = addrs.install(threads.clock().now(), &mut host);
        let host = self.host_side(index, threads.clock(), host, addr_events, common)?;
        let disk = self.open_disk()?;
        let (steering, recorder) =
            (Arc::clone(steering), record.map(|record| record.source().recorder(index)));
        threads.start(queue, DeviceSide { device, link, disk, steering, recorder }, host)
    }

    /// Changes the configurations of a queue's device and host as the program wants them.
    fn configure_queue(&self, index: usize, device: &mut DeviceConfig, host: &mut HostConfig) {
        if self.open_disk.is_some() {
            device.file = self.options.offload.file.then(nic::FileConfig::default);
        }
        if let Some(configure) = &self.configure {
            configure(index, device, host);
        }
    }

    /// Makes the application of a host, and opens its disk and its log.
    fn host_side(
        &mut self,
        index: usize,
        clock: MonotonicClock,
        mut host: Host,
        addr_events: Option<Sender<AutoAddrEvent>>,
        common: QueueCommon<'_>,
    ) -> Result<HostSide<A, M>, Failure> {
        let app = (self.make_application)(QueueSetup { index, clock, host: &mut host })?;
        let open_log = |path| open_access_log(path, index, common.reopened);
        let log = self.options.access_log.as_deref().map(open_log).transpose()?;
        let disk = self.open_disk()?;
        Ok(HostSide { host, app, disk, log, addr_events, hooks: self.hooks })
    }

    fn open_disk(&self) -> Result<Box<dyn Disk>, Failure> {
        self.open_disk.as_ref().map_or_else(|| Ok(NoDisk::boxed()), |open| open())
    }
}

/// Things that all queues have in common.
#[derive(Clone, Copy)]
struct QueueCommon<'a> {
    /// Number of requests to reopen the access logs.
    reopened: &'a Arc<AtomicUsize>,
    steering: &'a Arc<FlowSteering>,
    record: Option<&'a RunRecord>,
}
