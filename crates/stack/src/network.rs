//! The wait for automatic addresses (DHCP, SLAAC) at the start of a program.
//!
//! A program calls [`StackOptions::wait_for_addrs`] before it reads its addresses: certificates,
//! listeners and messages name them. The clients run here on the bare link, or on an attachment to
//! the device that has the link, and continue in the host of the first queue
//! ([`crate::assigned_addrs`]). A client that has found no address yet when another has continues
//! there too.

use abi::link::{FramePayload, FramePayloads, TxFrame};
use abi::{Checksum, PacketPool};
use base::{Duration, Instant};
use cli::Failure;
use host::{AutoAddrConfig, AutoAddrEvent, AutoAddrFrame, AutoAddrs, Cidr, NetworkAddrs};
use io::clock::{self, MonotonicClock};
use io::link::Link;
use io::notify::Poller;
use signal_hook::consts::{SIGHUP, SIGUSR1};

use crate::attach::{AttachedAddrLink, NicAddress};
use crate::link::open_links;
use crate::options::{AddrSource, StackOptions};
use crate::signals::Signals;

/// Longest sleep, so that a signal ends the wait soon.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Buffers for received frames.
const BUFFERS: usize = 64;

/// Opened links, and the clients for their automatic addresses.
pub struct Network {
    pub(crate) clock: MonotonicClock,
    /// Empty if a device in another process has them.
    pub(crate) links: Vec<Box<dyn Link>>,
    pub(crate) auto: AutoAddrs,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network").field("auto", &self.auto).finish_non_exhaustive()
    }
}

impl StackOptions {
    /// Opens the link and waits for an address, if one is to be assigned automatically; the options
    /// then have the addresses and gateways that were assigned. Returns `None` if all addresses are
    /// configured by hand.
    ///
    /// # Errors
    /// Fails if the link cannot be opened, no address was assigned in time, or a signal arrived.
    pub fn wait_for_addrs(&mut self, signals: &Signals) -> Result<Option<Network>, Failure> {
        if !self.has_auto_addrs() {
            return Ok(None);
        }
        let machine = crate::machine::MachineKey::read();
        let mut fixed =
            NetworkAddrs { addrs: self.addrs(), gateways: self.gateway.clone(), mtu: 0 };
        let (clock, link) = match &self.nic {
            None => {
                self.link_address = Some(machine.link_address(&self.link.to_string()));
                let clock = MonotonicClock::new();
                let links = open_links(self, &clock)?;
                let mtu = links.iter().map(|link| link.capabilities().mtu).min();
                fixed.mtu = mtu.unwrap_or_default();
                (clock, AddrLink::Opened(links))
            }
            Some(_) if self.share_address => {
                let line =
                    "--share-address with --nic: name the addresses instead of dhcp or slaac";
                return Err(Failure::Usage(line.to_owned()));
            }
            Some(nic) => {
                let attached = AttachedAddrLink::attach(nic, &fixed)?;
                (self.link_address, fixed.mtu) = (Some(attached.mac), attached.mtu);
                (MonotonicClock::since_boot(), AddrLink::Attached(Box::new(attached)))
            }
        };
        let auto = AutoAddrs::new(AutoAddrConfig {
            dhcp: self.addr.contains(&AddrSource::Dhcp),
            slaac: self.addr.contains(&AddrSource::Slaac),
            mac: self.link_address(),
            fixed,
            secret: machine.secret(),
            seed: clock::entropy(),
        });
        eprintln!("outboard: waiting for an address on {}", self.link_name());
        let mut wait = AddrWait { clock, link, auto };
        wait.run(self, signals)?;
        let AddrWait { link, auto, .. } = wait;
        let found = auto.network();
        self.addr = found.addrs.iter().copied().map(AddrSource::Static).collect();
        self.gateway.clone_from(&found.gateways);
        let links = match link {
            AddrLink::Opened(links) => links,
            AddrLink::Attached(_) => Vec::new(),
        };
        Ok(Some(Network { clock, links, auto }))
    }

    /// Returns the name of the link, or the address of the device that has it.
    fn link_name(&self) -> String {
        self.nic.as_ref().map_or_else(|| self.link.to_string(), NicAddress::to_string)
    }
}

/// The link of the clients, or the attachment to the device that has it.
enum AddrLink {
    Opened(Vec<Box<dyn Link>>),
    Attached(Box<AttachedAddrLink>),
}

/// The wait for the first addresses.
struct AddrWait {
    clock: MonotonicClock,
    link: AddrLink,
    auto: AutoAddrs,
}

impl AddrWait {
    /// Runs the clients until all have an address, or the time is over and one has.
    fn run(&mut self, options: &StackOptions, signals: &Signals) -> Result<(), Failure> {
        let mut pool = PacketPool::new(BUFFERS);
        let mut poller = Poller::new();
        let limit = Duration::from_secs(options.addr_wait.into());
        let until = self.clock.now() + limit;
        loop {
            let now = self.clock.now();
            self.turn(now, &mut pool);
            while let Some(event) = self.auto.poll_event() {
                report(&event);
            }
            let found = (self.auto.has_lease(), self.auto.has_slaac_address());
            if found == (true, true) {
                return Ok(());
            }
            if now >= until {
                return missing(options, self.auto.network(), found);
            }
            if let Some(signal) = signals.next_within(Duration::ZERO) {
                if signal != SIGUSR1 && signal != SIGHUP {
                    return Err(Failure::Interrupted(signal));
                }
            }
            let due = self.auto.poll_timeout();
            let sleep = due.map_or(POLL_INTERVAL, |at| at.since(now)).min(POLL_INTERVAL);
            self.link.sleep(now, &mut poller, sleep);
        }
    }

    /// Passes received frames to the clients, and theirs to the link. A frame that the link does
    /// not take is lost, and sent again later.
    fn turn(&mut self, now: Instant, pool: &mut PacketPool) {
        let Self { link, auto, .. } = self;
        link.receive(now, pool, |frame, checksum| auto.handle_frame(now, frame, checksum));
        if auto.poll_timeout().is_some_and(|at| at <= now) {
            auto.handle_timeout(now);
        }
        if let AddrLink::Attached(attached) = link {
            attached.claim(auto.network());
        }
        while let Some(frame) = auto.poll_frame() {
            link.send(now, frame);
        }
        link.flush(now);
    }
}

impl AddrLink {
    fn receive(&mut self, now: Instant, pool: &mut PacketPool, mut f: impl FnMut(&[u8], Checksum)) {
        match self {
            Self::Opened(links) => {
                for link in links {
                    while let Some(frame) = link.receive(now, pool) {
                        f(frame.packet.as_slice(), frame.checksum);
                        pool.put(frame.packet);
                    }
                }
            }
            Self::Attached(attached) => attached.receive(f),
        }
    }

    fn send(&mut self, now: Instant, frame: AutoAddrFrame) {
        let link = match self {
            Self::Opened(links) => links.first_mut(),
            Self::Attached(attached) => return attached.send(frame),
        };
        let AutoAddrFrame { header, body } = frame;
        let mut payload = FramePayloads::new();
        if !body.is_empty() {
            payload.push(FramePayload::Host(body));
        }
        let mut frame = TxFrame { header, payload, segment_size: 0, checksum_partial: false };
        if let Some(link) = link {
            let _lost = link.transmit(now, &mut frame);
        }
    }

    fn flush(&mut self, now: Instant) {
        if let Self::Opened(links) = self {
            if let Some(link) = links.first_mut() {
                // Those that have to wait are sent in a later turn.
                let _all = link.flush(now);
            }
        }
    }

    /// Sleeps until a frame has arrived, at most for `limit`.
    fn sleep(&mut self, now: Instant, poller: &mut Poller, limit: Duration) {
        let links = match self {
            Self::Opened(links) => links,
            Self::Attached(attached) => return attached.sleep(poller, limit),
        };
        poller.clear();
        for link in links.iter() {
            link.pollable().map(|fd| poller.add(fd));
        }
        let due = links.iter().filter_map(|link| link.poll_timeout()).min();
        let limit = due.map_or(limit, |at| at.since(now).min(limit));
        // An error means that the kernel is out of memory: the loop continues without sleep.
        let _ = poller.wait(Some(limit));
    }
}

/// Prints an event. Changes are printed with their consequences, while the stack runs.
pub(crate) fn report(event: &AutoAddrEvent) {
    if !matches!(event, AutoAddrEvent::Changed(_)) {
        eprintln!("outboard: {event}");
    }
}

/// Returns the line about a change of the addresses while the stack runs.
pub(crate) fn describe_change(network: &NetworkAddrs) -> String {
    let addrs = &network.addrs;
    let now = if addrs.is_empty() { "none".to_owned() } else { list(addrs) };
    format!("addresses are now {now}; connections of former addresses are reset")
}

/// Returns the failure of an address that was not assigned in time. It is a warning only if there
/// is another one.
fn missing(
    options: &StackOptions,
    network: &NetworkAddrs,
    (has_lease, _): (bool, bool),
) -> Result<(), Failure> {
    let who = if has_lease { "IPv6 router" } else { "DHCP server" };
    let waited = options.addr_wait;
    let line = format!("no {who} answered on {} within {waited} s", options.link_name());
    if network.addrs.is_empty() {
        let line = format!("{line}; check the link, or set --addr ADDRESS/LENGTH");
        return Err(Failure::Unavailable(line));
    }
    eprintln!("outboard: warning: {line}; continuing with {}", list(&network.addrs));
    Ok(())
}

fn list(addrs: &[Cidr]) -> String {
    let all: Vec<_> = addrs.iter().map(|c| format!("{}/{}", c.addr, c.prefix_len)).collect();
    all.join(", ")
}
