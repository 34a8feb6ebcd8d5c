//! Changes of the local addresses, and the clients that cause them (DHCP, SLAAC).
//!
//! With several hosts of a device, one of them runs the clients ([`Host::set_auto_addrs`]), and its
//! driver passes each change on to the others ([`Host::set_addrs`]).

use alloc::boxed::Box;
use alloc::vec::Vec;

use abi::{Checksum, Op};
use base::Instant;
use core::net::IpAddr;
use wire::frame::{IpPacket, protocol};

use super::{Host, Services};
use crate::api::{SocketError, SocketId};
use crate::net::arp;
use crate::net::autoconf::{AutoAddrEvent, AutoAddrs, NetworkAddrs, concerns_auto_addrs};
use crate::tcp::conn::TcpEnv;

impl Host {
    /// Sets the clients for automatic addresses, whose addresses are in effect from the next
    /// call of the host on.
    pub fn set_auto_addrs(&mut self, now: Instant, mut auto: AutoAddrs) {
        auto.stop_answering();
        let network = auto.network().clone();
        self.services.auto_addrs = Some(Box::new(auto));
        self.set_addrs(now, &network);
    }

    /// Returns the next event of automatic addresses. The host has applied a change already.
    pub fn poll_addr_event(&mut self) -> Option<AutoAddrEvent> {
        self.services.auto_addrs.as_mut()?.poll_event()
    }

    /// Replaces the local addresses, gateways and MTU. Connections of an address that is no longer
    /// ours are reset ([`SocketError::AddressLost`]). Open connections keep their segment size.
    pub fn set_addrs(&mut self, now: Instant, network: &NetworkAddrs) {
        let (mut cx, services) = self.context_and_services(now);
        services.set_addrs(&mut cx, network);
    }
}

impl Services {
    fn set_addrs(&mut self, cx: &mut TcpEnv<'_>, network: &NetworkAddrs) {
        if cx.out.net.uses(network) {
            return;
        }
        let lost = cx.out.net.lost_by(network);
        if !lost.is_empty() {
            // The resets need the old address and its route, so this comes first.
            self.reset_connections_of(cx, &lost);
        }
        let addrs = network.addrs.iter().map(|cidr| cidr.addr);
        if let Some(claim) = self.claim.as_ref().and_then(|claim| claim.with_addrs(addrs)) {
            cx.out.ops.push_back(Op::ExtendClaim(Box::new(claim.clone())));
            self.claim = Some(claim);
        }
        cx.out.net.replace(network);
        if cx.out.net.announces {
            arp::announce(cx.out);
        }
        self.streams.table.replace_addrs(network.addrs.iter().map(|cidr| cidr.addr));
        self.accept.handle_new_addrs(&mut self.streams, cx);
    }

    /// Resets the connections of addresses that are no longer ours.
    fn reset_connections_of(&mut self, cx: &mut TcpEnv<'_>, lost: &[IpAddr]) {
        self.splices.unsplice_of(cx.out, |tuple| lost.contains(&tuple.local.addr));
        let streams = &self.streams;
        let is_lost = |&socket: &SocketId| {
            let socket = streams.table.socket(socket);
            socket.is_some_and(|s| lost.contains(&streams.table.tuple_of(&s).local.addr))
        };
        let sockets: Vec<SocketId> = streams.ids().filter(is_lost).collect();
        for socket in sockets {
            if self.streams.reset(cx, socket, SocketError::AddressLost) {
                cx.out.counters.tcp_address_lost += 1;
            }
        }
    }

    /// Returns whether a packet is handled by the clients for automatic addresses, wherever they
    /// run: every host of the device receives it.
    pub(super) fn is_for_auto_addrs(&self, cx: &TcpEnv<'_>, frame: &[u8], ip: &IpPacket) -> bool {
        let here = self.auto_addrs.is_some();
        let elsewhere = !cx.out.net.answers_requests && ip.protocol == protocol::UDP;
        (here || elsewhere) && concerns_auto_addrs(frame, ip)
    }

    /// Passes a frame to the clients for automatic addresses.
    pub(super) fn offer_to_auto_addrs(
        &mut self,
        cx: &mut TcpEnv<'_>,
        frame: &[u8],
        checksum: Checksum,
    ) {
        if let Some(auto) = &mut self.auto_addrs {
            auto.handle_frame(cx.now, frame, checksum);
            self.settle_auto_addrs(cx);
        }
    }

    pub(super) fn auto_addrs_timeout(&mut self, cx: &mut TcpEnv<'_>) {
        let Some(auto) = &mut self.auto_addrs else { return };
        if auto.poll_timeout().is_some_and(|at| at <= cx.now) {
            auto.handle_timeout(cx.now);
            self.settle_auto_addrs(cx);
        }
    }

    /// Releases the lease at the end of the host.
    pub(super) fn release_auto_addrs(&mut self, cx: &mut TcpEnv<'_>) {
        if let Some(auto) = &mut self.auto_addrs {
            auto.release(cx.now);
            while let Some(frame) = auto.poll_frame() {
                cx.out.send_frame(frame.header, frame.body);
            }
        }
    }

    /// Applies the addresses of the clients, and then sends their frames, which may be from these
    /// addresses.
    fn settle_auto_addrs(&mut self, cx: &mut TcpEnv<'_>) {
        let Some(auto) = &self.auto_addrs else { return };
        if !cx.out.net.uses(auto.network()) {
            let network = auto.network().clone();
            self.set_addrs(cx, &network);
        }
        let Some(auto) = &mut self.auto_addrs else { return };
        while let Some(frame) = auto.poll_frame() {
            cx.out.send_frame(frame.header, frame.body);
        }
    }
}
