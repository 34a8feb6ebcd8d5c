//! Active opens.
//!
//! Called by the application. The SYN leaves at the next [`Host::poll_op`].

use core::ops::RangeInclusive;

use base::{Duration, Instant, SeqNum};
use tcp_rules::paws::TsRecent;
use wire::{Endpoint, Tuple};

use super::{Host, Services};
use crate::api::{ConnectError, SocketId};
use crate::l5p::L5pConnection;
use crate::l5p::tls::{HostTlsSession, TlsClient};
use crate::stream::table::TupleOwner;
use crate::tcp::conn::{ConnParams, Negotiated, TcpEnv};

/// Time for which a tuple must have been in TIME-WAIT before an active open reuses it.
const TIME_WAIT_REUSE_MIN: Duration = Duration::from_secs(1);

impl Host {
    /// Returns the range of the local ports of connections that the application opens. Datagrams
    /// from other ports may not leave the device, or their answers not arrive.
    #[must_use]
    pub const fn active_ports(&self) -> &RangeInclusive<u16> {
        &self.services.ports
    }

    /// Begins an active open; a notice reports when the connection is established or has failed.
    ///
    /// # Errors
    /// [`ConnectError`]: no route, no free port, or no room in the table.
    pub fn connect(&mut self, now: Instant, remote: Endpoint) -> Result<SocketId, ConnectError> {
        let (mut cx, services) = self.context_and_services(now);
        services.connect(&mut cx, remote)
    }

    /// As [`Self::connect`], for TLS: the handshake begins once the connection is established, and
    /// the socket becomes writable when it is complete.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_tls(
        &mut self,
        now: Instant,
        remote: Endpoint,
        client: &TlsClient,
    ) -> Result<SocketId, ConnectError> {
        let id = self.connect(now, remote)?;
        let table = &mut self.services.streams.table;
        if let Some(slot) = table.slot_mut(id) {
            slot.attach(HostTlsSession::client(client));
        }
        if let Some(conn) = table.get_mut(id) {
            conn.modes.session_has_work = true;
        }
        Ok(id)
    }
}

impl Services {
    fn connect(&mut self, cx: &mut TcpEnv<'_>, remote: Endpoint) -> Result<SocketId, ConnectError> {
        let addr = cx.out.net.source_for(remote.addr).ok_or(ConnectError::NoRoute)?;
        if !self.accept.has_room(&self.streams) {
            return Err(ConnectError::TableFull);
        }
        let tuple = self.pick_port(cx.now, Endpoint { addr, port: 0 }, remote)?;
        let key = self.accept.key();
        let config = cx.config;
        let ts_offset = key.timestamp_offset(config, &tuple);
        let fresh = key.sequence(cx.now, config, &tuple);
        let iss = self.take_from_time_wait(cx, &tuple).unwrap_or(fresh);
        let id = self.streams.table.next_id();
        let begin = ConnParams {
            tuple,
            flow: id.into(),
            iss,
            irs: SeqNum(0),
            window: u32::from(config.first_window()),
            scale: config.window_scale(),
            peer_window: 0,
            options: Negotiated {
                timestamps: config.timestamps,
                sack: config.sack,
                ecn: config.ecn,
                peer_scale: 0,
                peer_mss: u16::MAX,
                ts_offset,
                ts_recent: TsRecent::default(),
            },
            mtu: cx.out.net.mtu,
        };
        let conn = L5pConnection::new(begin, config, cx.now);
        self.streams.table.insert(id, conn, None);
        cx.out.counters.tcp_active_opens += 1;
        self.streams.mark_dirty(id);
        Ok(id)
    }

    /// Returns a tuple with a free local port: ports in sequence, from a start that is a secret of
    /// each peer (RFC 6056 section 3.3.3). The sequence makes a port recur as late as possible: a
    /// peer that closed first keeps the tuple in TIME-WAIT, and a SYN with an older timestamp than
    /// it saw there costs a second. A tuple in TIME-WAIT on this host is free after a second if the
    /// old connection had timestamps, which distinguish the segments of both (RFC 6191; Linux's
    /// `tcp_tw_reuse`). With several queues the port leads to this host's queue, so that its device
    /// and no other receives the segments of the connection.
    fn pick_port(
        &mut self,
        now: Instant,
        local: Endpoint,
        remote: Endpoint,
    ) -> Result<Tuple, ConnectError> {
        let (first, last) = (*self.ports.start(), *self.ports.end());
        let span = u64::from(last.saturating_sub(first)) + 1;
        let portless = Tuple { local: Endpoint { port: 0, ..local }, remote };
        let secret = self.accept.key().first_port(&portless);
        let table = &self.streams.table;
        for _ in 0..span {
            let place = secret.wrapping_add(self.ports_tried) % span;
            self.ports_tried += 1;
            let Ok(offset) = u16::try_from(place) else { continue };
            let local = Endpoint { port: first.saturating_add(offset), ..local };
            let tuple = Tuple { local, remote };
            if self.own_queue.as_ref().is_some_and(|own| !own.owns(&tuple)) {
                continue;
            }
            match table.find(&tuple) {
                None if self.splices.relays_tuple(&tuple) => {}
                None => return Ok(tuple),
                Some(TupleOwner::TimeWait(slot)) => {
                    let remains = table.time_wait.get(slot);
                    if remains.is_some_and(|r| {
                        r.tcb.ts_recent.is_some() && r.since + TIME_WAIT_REUSE_MIN <= now
                    }) {
                        return Ok(tuple);
                    }
                }
                Some(_) => {}
            }
        }
        Err(ConnectError::NoPort)
    }

    /// Removes a tuple from TIME-WAIT, if it is there. Returns the initial sequence number for its
    /// reuse.
    fn take_from_time_wait(&mut self, cx: &mut TcpEnv<'_>, tuple: &Tuple) -> Option<SeqNum> {
        let table = &mut self.streams.table;
        let Some(TupleOwner::TimeWait(slot)) = table.find(tuple) else { return None };
        table.unroute(tuple, TupleOwner::TimeWait(slot));
        let remains = table.time_wait.remove(slot)?;
        cx.out.counters.tcp_time_wait_reused += 1;
        Some(remains.tcb.next_iss())
    }
}
