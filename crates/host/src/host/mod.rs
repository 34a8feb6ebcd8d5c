//! One core's stack: the device's events come in, operations go out.
//!
//! A [`Host`] passes each event and each call to the service that handles it. All services write to
//! the same [`Outbox`]. Sending is lazy: events and calls mark connections *dirty*, and
//! [`Host::poll_op`] lets each of them send once, so that a response's head and body, and the
//! acknowledgment of its request, leave together.
//!
//! | service | what it owns |
//! |---|---|
//! | [`Streams`] | connections, their TLS sessions, listeners, tear-down offload |
//! | [`Accept`] | passive opens: SYN cookies, set-up offload |
//! | [`Splices`] | pairs of connections that the device relays between |
//! | [`UdpSockets`] | UDP sockets |
//! | [`Files`] | file handles, reads and writes of the host's own disk |
//! | [`Extents`] | users of that disk other than the send streams |
//! | [`Decompression`] | jobs of these users that the device decompresses |
//! | [`AutoAddrs`] | addresses that the network assigns |
//!
//! `receive` dispatches received packets; `addresses` changes the local addresses; `connect`,
//! `sockets`, `storage`, `udp`, `splice` and `nvme` are the application's calls; `shutdown` is the
//! shutdown.

mod addresses;
mod connect;
mod moved_connections;
mod moved_entries;
mod nvme;
mod receive;
mod shutdown;
mod sockets;
mod splice;
mod storage;
mod udp;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::ops::RangeInclusive;

use abi::attach::AddressClaim;
use abi::disk::{DiskCompletion, DiskRequest};
use abi::steering::{FlowOwners, OwnQueue};
use abi::{Capabilities, Event, FileFault, FileId, Op, PacketBuf, TransmitDone, TransmitOutcome};
use base::{Duration, Instant, Prng};

use crate::accept::Accept;
use crate::api::{Notice, SocketId};
use crate::config::{HostConfig, TcpConfig};
use crate::counters::HostCounters;
use crate::hash::KeyedHashBuilder;
use crate::net::arp;
use crate::net::autoconf::AutoAddrs;
use crate::net::outbox::Outbox;
use crate::net::reassembly::Reassembly;
use crate::splice::Splices;
use crate::storage::decompress::Decompression;
use crate::storage::extents::Extents;
use crate::storage::files::{DiskOwner, FileCompletion, Files};
use crate::stream::Streams;
use crate::stream::table::SocketTable;
use crate::stream::teardown_offload::TeardownOffloadState;
use crate::tcp::conn::TcpEnv;
use crate::udp::UdpSockets;

use moved_connections::MovedAway;
use moved_entries::MovedEntries;
use shutdown::ShutdownStage;

/// A host stack.
///
/// Order of calls: `handle_*` for every event; then the application for every
/// [`Self::poll_notice`]; then [`Self::poll_op`], [`Self::poll_disk`] and [`Self::poll_recycle`]
/// until they return `None`; then wait until [`Self::poll_timeout`] or the next event. No method
/// blocks or reads a clock.
///
/// A host learns from the capabilities of its device which operations it may use. Above a device
/// without engines an active open is one transmit at first, a question for the peer's address:
///
/// ```
/// use abi::{Capabilities, Op, Refusal};
/// use base::Instant;
/// use outboard_host::{Cidr, Host, HostConfig};
/// use wire::Endpoint;
///
/// let (mac, reason) = ([2, 0, 0, 0, 0, 1], Refusal::NotSupported);
/// let capabilities = Capabilities::without_engines(mac, 1500, 1448, reason);
/// let addrs = vec![Cidr { addr: [10, 0, 0, 1].into(), prefix_len: 24 }];
/// let config = HostConfig { addrs, ..HostConfig::default() };
/// let mut host = Host::new(config, &capabilities, 1);
/// let server = Endpoint { addr: [10, 0, 0, 2].into(), port: 80 };
/// let socket = host.connect(Instant::ZERO, server).expect("a local port");
/// let Some(Op::Transmit(transmit)) = host.poll_op(Instant::ZERO) else { panic!("no transmit") };
/// assert_eq!(transmit.header.as_slice()[12..14], [0x08, 0x06], "the EtherType of ARP");
/// assert!(host.poll_op(Instant::ZERO).is_none() && !host.readiness(socket).writable);
/// ```
#[derive(Debug)]
pub struct Host {
    config: TcpConfig,
    pub(crate) out: Outbox,
    files: Files,
    services: Services,
}

/// The services of a host, except the files, which work on a connection may need as well.
#[derive(Debug)]
pub(crate) struct Services {
    pub(crate) streams: Streams,
    accept: Accept,
    splices: Splices,
    udp: UdpSockets,
    extents: Extents,
    decompression: Decompression,
    /// `None` if all addresses are configured by hand, or another host of the device has them.
    auto_addrs: Option<Box<AutoAddrs>>,
    /// What the program has claimed of a device in another process, if its addresses may change.
    claim: Option<AddressClaim>,
    reassembly: Reassembly,
    ending: ShutdownStage,
    /// The queue that active opens must lead to.
    own_queue: Option<OwnQueue>,
    moved_entries: MovedEntries,
    moved_away: MovedAway,
    /// Local ports of active opens.
    ports: RangeInclusive<u16>,
    /// Local ports tried for active opens, over all peers.
    ports_tried: u64,
}

/// Capacity, in operations, up to which an empty queue is kept. It grows beyond that only if the
/// ring was full for a while.
const OPS_KEPT: usize = 1024;

impl Host {
    /// Creates a stack above a device with these capabilities. `seed` must come from the operating
    /// system, or peers could predict sequence numbers and cookies.
    #[must_use]
    pub fn new(config: HostConfig, capabilities: &Capabilities, seed: u64) -> Self {
        let mut prng = Prng::new(seed);
        let offload = match (config.file_offload, capabilities.file) {
            (Err(why), _) | (Ok(()), Err(why)) => Err(why),
            (Ok(()), Ok(_)) => Ok(()),
        };
        let files = Files::new(
            config.files_max,
            config.content,
            offload,
            KeyedHashBuilder::random(&mut prng),
        );
        let mut out = Outbox::new(&config, capabilities);
        if config.announces {
            arp::announce(&mut out);
        }
        let addrs = config.addrs.iter().map(|cidr| cidr.addr).collect();
        let table = SocketTable::new(&mut prng, addrs);
        Self {
            out,
            files,
            services: Services {
                streams: Streams::new(table, TeardownOffloadState::new(&config, capabilities)),
                accept: Accept::new(&config, capabilities, &mut prng),
                splices: Splices::new(config.splice_offload.and(capabilities.splice)),
                udp: UdpSockets::new(&config, capabilities),
                extents: Extents::default(),
                decompression: Decompression::new(&config, capabilities),
                auto_addrs: None,
                claim: config.claim,
                reassembly: Reassembly::default(),
                ending: ShutdownStage::default(),
                own_queue: config.own_queue,
                moved_entries: MovedEntries::default(),
                moved_away: MovedAway::default(),
                ports: config.ports,
                ports_tried: 0,
            },
            config: config.tcp,
        }
    }

    /// Returns the services and their context.
    pub(crate) fn context_and_services(&mut self, now: Instant) -> (TcpEnv<'_>, &mut Services) {
        let cx = TcpEnv { now, config: &self.config, out: &mut self.out, files: &mut self.files };
        (cx, &mut self.services)
    }

    /// Looks for entries of the flow steering that were moved away from this host's queue and have
    /// no connections of it left, and asks the device to release them ([`abi::steering`]). To be
    /// called about ten times a second while entries are moved; each call does a bounded part of
    /// the work.
    pub fn release_moved_entries(&mut self, now: Instant) {
        let Services { own_queue, streams, splices, moved_entries, .. } = &mut self.services;
        let Some(own) = own_queue else { return };
        self.out.ops.extend(moved_entries.look(now, own, &streams.table, splices));
    }

    /// Handles an event of the device.
    pub fn handle_event(&mut self, now: Instant, event: Event) {
        let (mut cx, services) = self.context_and_services(now);
        services.handle_event(&mut cx, event);
        services.splices.settle(&mut services.streams, &mut cx);
    }

    /// Handles a completion of the host's own disk.
    pub fn handle_disk(&mut self, now: Instant, completion: DiskCompletion) {
        let (mut cx, services) = self.context_and_services(now);
        if let Some(work) = cx.files.handle_disk(cx.out, completion) {
            services.handle_file_work(&mut cx, work);
        }
        services.splices.settle(&mut services.streams, &mut cx);
    }

    /// Handles expired timers.
    pub fn handle_timeout(&mut self, now: Instant) {
        let (mut cx, services) = self.context_and_services(now);
        let streams = &mut services.streams;
        streams.handle_timeout(&mut cx);
        for dropped in cx.out.net.neighbors.handle_timeout(now) {
            cx.out.drop_transmit(&dropped);
        }
        Accept::handle_timeout(streams, &mut cx);
        services.auto_addrs_timeout(&mut cx);
        services.reassembly.handle_timeout(cx.out, now);
        let streams = &mut services.streams;
        services.splices.settle(streams, &mut cx);
    }

    /// Returns the time at which to call [`Self::handle_timeout`] if nothing happens before. Valid
    /// once [`Self::poll_op`] has returned `None`.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let Services { streams, splices, auto_addrs, reassembly, .. } = &self.services;
        Instant::earliest([
            reassembly.poll_timeout(),
            auto_addrs.as_ref().and_then(|auto| auto.poll_timeout()),
            streams.poll_timeout(),
            self.out.net.neighbors.poll_timeout(),
            streams.table.syn_cache.poll_timeout(),
            splices.poll_timeout(),
        ])
    }

    /// Returns whether operations for the device are queued.
    #[must_use]
    pub fn has_ops(&self) -> bool {
        !self.out.ops.is_empty()
    }

    /// Returns whether [`Self::poll_op`] has an operation. If there is none, lets each dirty
    /// connection send first.
    #[inline]
    pub fn prepare_op(&mut self, now: Instant) -> bool {
        if self.out.ops.is_empty() {
            self.produce_ops(now);
        }
        !self.out.ops.is_empty()
    }

    /// Returns the next operation for the device, as [`Self::prepare_op`] does.
    #[inline]
    pub fn poll_op(&mut self, now: Instant) -> Option<Op> {
        if self.prepare_op(now) { self.out.ops.pop_front() } else { None }
    }

    /// Lets each dirty connection send.
    fn produce_ops(&mut self, now: Instant) {
        let (mut cx, services) = self.context_and_services(now);
        services.produce_ops(&mut cx);
        let out = &mut self.out;
        arp::solicit(out);
        if out.ops.is_empty() && out.ops.capacity() > OPS_KEPT {
            out.ops = VecDeque::new();
        }
    }

    /// Returns the next buffer to give back to the device.
    pub fn poll_recycle(&mut self) -> Option<PacketBuf> {
        self.out.recycle.pop_front()
    }

    /// Returns the next request for the host's own disk.
    pub fn poll_disk(&mut self) -> Option<DiskRequest> {
        self.out.disk.pop_front()
    }

    /// Calls `f` with the name and value of each counter and gauge.
    pub fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        let Services { streams, splices, udp, decompression, .. } = &self.services;
        self.out.counters.visit(f);
        f("connections", streams.table.len() as u64);
        f("connections_quasi", streams.table.lazy_tcb_count() as u64);
        f("connections_closing_on_device", u64::from(streams.teardown.closing()));
        f("connections_half_open", streams.table.syn_cache.len() as u64);
        f("connections_time_wait", streams.table.time_wait.len() as u64);
        f("udp_receive_queue", udp.queued() as u64);
        f("decompress_jobs_on_device", decompression.in_device() as u64);
        splices.visit(f);
        self.services.auto_addrs.iter().for_each(|auto| auto.visit(f));
        self.services.own_queue.iter().for_each(|own| visit_steering(own, f));
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> &HostCounters {
        &self.out.counters
    }
}

/// Passes on the numbers of steering entries of a queue: those of its new connections, and those
/// that were moved away while connections of it are left.
fn visit_steering(own: &OwnQueue, f: &mut dyn FnMut(&'static str, u64)) {
    let count = |is_counted: &dyn Fn(FlowOwners) -> bool| {
        let owners = (0..own.steering.entries()).map(|n| own.steering.owners_of_entry(n));
        owners.filter(|&owners| is_counted(owners)).count() as u64
    };
    f("steering_entries", count(&|owners| owners.current == own.index));
    f("steering_entries_moved_away", count(&|owners| owners.former == Some(own.index)));
}

impl Services {
    // Inlined here and below: an event is large, and each call by value may copy it.
    #[inline]
    fn handle_event(&mut self, cx: &mut TcpEnv<'_>, event: Event) {
        let streams = &mut self.streams;
        match event {
            Event::Received(received) => self.handle_received(cx, received),
            Event::TransmitDone(done) => self.handle_transmit_done(cx, &done),
            Event::FileOpened(opened) => {
                if cx.files.handle_opened(cx.out, &opened) {
                    cx.out.notices.push_back(Notice::File(opened.file));
                }
            }
            Event::FileChanged(file) => {
                if cx.files.handle_changed(cx.out, file) {
                    cx.out.notices.push_back(Notice::File(file));
                }
            }
            Event::L5oResyncRxReq { context, flow, request } => {
                if !streams.nvme_resync(cx, flow, context, request) {
                    streams.session_resync(cx, flow, context, request);
                }
            }
            Event::L5oRefused(refused) => {
                if !streams.nvme_refused(cx, &refused) && !streams.inspection_refused(cx, &refused)
                {
                    streams.session_refused(cx, &refused);
                }
            }
            Event::DdpTeardownDone(done) => streams.nvme_buffer_returned(cx, *done),
            Event::ListenRefused { listener, reason: why } => {
                Accept::handle_refused(streams, cx, listener, why);
            }
            Event::TeardownDone(done) => {
                streams.teardown.handle_done(&mut cx.out.counters, done);
            }
            Event::TeardownRefused(refused) => streams.handle_teardown_refused(cx, refused),
            Event::Spliced { id, result } => {
                self.splices.handle_spliced(streams, cx, id, result);
            }
            Event::SpliceClosed(closed) => self.splices.handle_closed(cx.out, &closed),
            Event::QuicStatus(status) => cx.out.notices.push_back(Notice::Quic(status)),
            // The host counts its flows itself.
            Event::FlowCounted { .. } => {}
            Event::Decompressed(done) => {
                self.decompression.handle_answer(&mut self.extents, cx.out, *done);
            }
            // The carrier has asked, and has seen the answer.
            Event::ClaimExtended { .. } => {}
            Event::Load(load) => streams.teardown.handle_load(&mut cx.out.counters, load),
            Event::LinkChanged { mtu } => self.handle_link_change(cx, mtu),
            Event::Quiesced => self.handle_quiesced(),
            Event::Reset => self.handle_device_reset(cx),
        }
    }

    fn handle_transmit_done(&mut self, cx: &mut TcpEnv<'_>, done: &TransmitDone) {
        if !UdpSockets::handle_transmit_done(cx.out, done) {
            self.streams.handle_transmit_done(cx, done);
        }
    }

    /// Handles a link that is up again, perhaps with other neighbors, or has another MTU.
    fn handle_link_change(&mut self, cx: &mut TcpEnv<'_>, mtu: u16) {
        cx.out.net.neighbors.expire(cx.now);
        if mtu != cx.out.net.mtu {
            cx.out.net.mtu = mtu;
            self.accept.handle_mtu_change(&mut self.streams, cx);
            self.streams.limit_mtu(cx, mtu);
        }
    }

    /// Handles a reset of the device: nothing is lost, and the host continues in software
    /// (docs/properties.md, property 5).
    fn handle_device_reset(&mut self, cx: &mut TcpEnv<'_>) {
        let streams = &mut self.streams;
        cx.out.counters.device_resets += 1;
        if cx.out.net.announces {
            arp::announce(cx.out);
        }
        cx.files.handle_reset(cx.out);
        streams.teardown.handle_device_reset(&mut cx.out.counters);
        self.accept.handle_device_reset(streams, cx);
        self.splices.handle_device_reset(streams, cx);
        self.ending.handle_device_reset();
        streams.handle_device_reset(cx);
        cx.out.notices.push_back(Notice::DeviceReset);
    }

    fn handle_file_work(&mut self, cx: &mut TcpEnv<'_>, work: FileCompletion) {
        match work {
            FileCompletion::Opened(file) => {
                cx.out.notices.push_back(Notice::File(file));
                self.extents.resume(cx.files, cx.out, file, None);
            }
            FileCompletion::Read { owner: DiskOwner::User(token), result } => {
                self.extents.finish_read(cx.out, token, result);
            }
            FileCompletion::Read { owner: DiskOwner::Stream { flow, position }, result } => {
                let id = SocketId::of_flow(flow);
                self.streams.with(cx, id, |conn, cx| match result {
                    Ok(bytes) => conn.handle_file_bytes(cx, position, bytes),
                    Err(fault) => conn.fail_file(cx, fault),
                });
            }
            FileCompletion::Changed(token, done) => {
                self.extents.finish_change(cx.out, token, done);
            }
            FileCompletion::Reopened { file, fault } => self.handle_reopened(cx, file, fault),
        }
    }

    /// Handles the reopening on the host's own disk of a file that the device had open: connections
    /// that send it continue, or are reset if it failed.
    fn handle_reopened(&mut self, cx: &mut TcpEnv<'_>, file: FileId, fault: Option<FileFault>) {
        self.extents.resume(cx.files, cx.out, file, fault);
        if fault.is_some() {
            // An application that keeps the handle for the next request must open the file again.
            cx.out.notices.push_back(Notice::File(file));
        }
        self.streams.handle_reopened(cx, file, fault);
    }

    /// Lets connections send until there is an operation, or nothing to send.
    #[inline]
    fn produce_ops(&mut self, cx: &mut TcpEnv<'_>) {
        self.streams.promote_or_route_touched(cx);
        while let Some((flow, tag)) = cx.out.lost_echoes.pop() {
            let (delay, outcome) = (Duration::ZERO, TransmitOutcome::Sent);
            self.handle_transmit_done(cx, &TransmitDone { flow, tag, delay, outcome });
        }
        self.splices.settle(&mut self.streams, cx);
        // One connection at a time, so that the queue stays as short as the output of one
        // connection.
        while cx.out.ops.is_empty() {
            let sent = self.streams.send_next(cx);
            self.splices.settle(&mut self.streams, cx);
            if sent {
                continue;
            }
            self.splices.advance(&mut self.streams, cx);
            let idle = cx.out.ops.is_empty() && !self.streams.is_dirty();
            if idle && !self.advance_shutdown(cx) {
                break;
            }
        }
    }
}
