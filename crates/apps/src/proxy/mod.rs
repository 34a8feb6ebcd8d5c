//! The proxy: reads the beginning of a connection, chooses a backend, and relays the rest, in the
//! device if it splices (AccelTCP section 6.1.2: "L7 LB").
//!
//! [`Proxy`] is a handler over [`host::Host`]'s sockets, like [`crate::content::ContentServer`]:
//! the driver passes it the notices of [`Host::poll_notice`], calls it at [`Proxy::poll_timeout`],
//! and runs the host afterwards. Files, names and signals are left to the driver, which passes a
//! new [`ProxyTable`] to [`Proxy::apply`] when one of them changes.
//!
//! Modules from the socket inward: `server` (pairs, deadlines), `pair` (one client and its
//! backend), `health_check` (health checks), `pool` (backends and load balancing), `maglev`;
//! without sockets: `head` and `sni` (the first bytes of a client), `route`, `proxy_protocol`. The
//! proxy terminates no TLS, parses of a response the status line only, and of a connection's
//! requests the first only.

mod config;
mod counters;
mod head;
mod health_check;
mod maglev;
mod pair;
mod pool;
mod proxy_protocol;
mod route;
mod server;
mod shared;
mod sni;
mod sockets;
mod termination;

use std::sync::Arc;

use base::Instant;
use host::{
    Application, Host, ListenConfig, ListenError, ListenerId, ListenerOption, Notice, SocketId,
    SocketOption,
};

pub use config::{
    ForwardingPolicy, HashBy, HealthCheckConfig, InsertedFields, ListenerError, LoadBalancing,
    ProxyBackend, ProxyConfig, ProxyLimits, ProxyListener, ProxyMode, ProxyOffloads, ProxyPool,
    ProxyRoute, ProxyTable, check_listeners,
};
pub use counters::ProxyCounters;

use crate::pattern_rules::PatternRules;
use server::ProxyServer;

/// The proxy.
pub struct Proxy {
    /// The listeners, in the order of the table.
    listeners: Vec<ListenerState>,
    /// True if no listener is opened any longer.
    draining: bool,
    server: ProxyServer<SocketId>,
}

/// State of a listener. Its index stays when it is closed, because its connections refer to it.
#[derive(Clone, Copy, Debug)]
struct ListenerState {
    /// Identifier when it was last open; `None` if it was never opened.
    id: Option<ListenerId>,
    open: bool,
}

impl Proxy {
    /// Creates a proxy and the listeners of `table`.
    ///
    /// # Errors
    /// The first listener that could not be created.
    pub fn new(
        now: Instant,
        config: ProxyConfig,
        table: ProxyTable,
        host: &mut Host,
    ) -> Result<Self, ListenError> {
        let backlog = config.backlog;
        let open = |l: &ProxyListener| {
            listen(host, l, backlog).map(|id| ListenerState { id: Some(id), open: true })
        };
        let ports = table.listeners.iter().map(open).collect::<Result<_, _>>()?;
        let mut server = ProxyServer::new(config);
        server.apply(now, table);
        Ok(Self { listeners: ports, draining: false, server })
    }

    /// Replaces the table, or refuses it as a whole. New listeners are opened, and listeners that
    /// are not in the table are closed. Connections stay; backends that are not in the table get no
    /// new ones.
    ///
    /// # Errors
    /// The first listener that cannot be opened. The previous table stays in use, and the log says
    /// so.
    pub fn apply(
        &mut self,
        now: Instant,
        host: &mut Host,
        mut table: ProxyTable,
    ) -> Result<(), ListenerError> {
        let shared = &mut self.server.shared;
        check_listeners(&table.listeners, |addr| host.is_ours(addr)).inspect_err(|why| {
            shared.remark(now, why);
            shared.counters.proxy_tables_refused += 1;
        })?;
        let options = |l: &ProxyListener| (l.mode, l.offloads);
        let before: Vec<_> = shared.table.listeners.iter().map(options).collect();
        let wanted = shared.table.replace_listeners(&mut table);
        self.listeners.resize(wanted.len(), ListenerState { id: None, open: false });
        // Listeners are closed first: a new one may use the same port.
        for (port, _) in
            self.listeners.iter_mut().zip(&wanted).filter(|(p, wanted)| p.open && !**wanted)
        {
            port.close(host);
            shared.counters.proxy_ports_closed += 1;
        }
        let listeners = wanted.into_iter().zip(&table.listeners).enumerate();
        for (port, (index, (is_wanted, listener))) in self.listeners.iter_mut().zip(listeners) {
            if port.open {
                let changed = before.get(index) != Some(&options(listener));
                let id = port.id.filter(|_| changed);
                id.into_iter().for_each(|id| set_options(host, id, listener));
            } else if is_wanted && !self.draining {
                // The addresses were checked, so this fails only if another application on the host
                // has the port.
                match listen(host, listener, shared.config.backlog) {
                    Ok(id) => {
                        *port = ListenerState { id: Some(id), open: true };
                        shared.counters.proxy_ports_opened += 1;
                    }
                    Err(error) => {
                        shared.remark(now, &error);
                        shared.counters.proxy_ports_refused += 1;
                    }
                }
            }
        }
        self.server.apply(now, table);
        Ok(())
    }

    /// Replaces the rules about patterns for connections that are accepted from now on. Without
    /// rules in the configuration, connections that are spliced already are not inspected.
    pub fn set_pattern_rules(&mut self, rules: Arc<PatternRules>) {
        self.server.shared.inspection.replace_rules(rules);
    }
}

impl Application for Proxy {
    /// Handles a notice from [`Host::poll_notice`]. Notices about other applications' listeners and
    /// sockets are ignored, so several applications can share a host.
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        match notice {
            Notice::Accepted(listener, socket) => {
                if let Some(index) = self.listeners.iter().position(|p| p.id == Some(listener)) {
                    // The sender has already cut its data into segments, so Nagle's algorithm could
                    // only delay them.
                    host.set_option(now, socket, SocketOption::NoDelay(true));
                    self.server.handle_accepted(now, host, socket, index);
                }
            }
            Notice::Socket(socket) => self.server.handle_socket(now, host, socket),
            Notice::Spliced(id) => self.server.handle_spliced(now, host, id),
            Notice::SpliceRefused(id, why) => {
                self.server.handle_splice_refused(now, host, id, why);
            }
            Notice::SpliceClosed(id) => self.server.handle_splice_closed(now, host, id),
            // The proxy opens no files, UDP sockets or QUIC endpoints.
            Notice::File(_)
            | Notice::Udp(_)
            | Notice::DiskDone(_)
            | Notice::UdpFault(..)
            | Notice::Quic(_)
            | Notice::DeviceReset => {}
        }
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.server.handle_timeout(now, host);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.server.poll_timeout()
    }

    /// Closes all listeners for good. Open connections stay.
    fn drain(&mut self, _: Instant, host: &mut Host) {
        self.draining = true;
        self.listeners.iter_mut().for_each(|port| port.close(host));
    }

    /// Logs every connection, because the host or the device is about to reset them all.
    fn end(&mut self, now: Instant, _: &mut Host) {
        self.draining = true;
        self.server.end(now);
    }

    /// Returns the next line of the access log, without its line end: a line for each client when
    /// it has ended, or a remark about a backend that begins with `#`.
    fn poll_log(&mut self) -> Option<String> {
        self.server.shared.log.poll()
    }

    /// Calls `f` with the name and value of each counter and of four gauges: clients, spliced
    /// pairs, backends, and backends that are up.
    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        let shared = &self.server.shared;
        shared.counters.visit(f);
        shared.inspection.visit(f);
        f("proxy_connections_open", self.server.connections() as u64);
        f("proxy_splices_open", shared.splices.len() as u64);
        let (backends, up) = shared.backends.count();
        f("proxy_backends", backends);
        f("proxy_backends_up", up);
    }
}

impl ListenerState {
    fn close(&mut self, host: &mut Host) {
        if core::mem::take(&mut self.open) {
            self.id.into_iter().for_each(|id| host.unlisten(id));
        }
    }
}

fn listen(host: &mut Host, l: &ProxyListener, backlog: usize) -> Result<ListenerId, ListenError> {
    let id = host.listen(ListenConfig { addr: l.addr, port: l.port, backlog })?;
    set_options(host, id, l);
    Ok(id)
}

fn set_options(host: &mut Host, id: ListenerId, l: &ProxyListener) {
    let ProxyOffloads { setup, teardown, .. } = l.offloads;
    // In TCP mode the protocol may be one in which the server sends first.
    let speaks_first = l.mode != ProxyMode::Tcp;
    host.set_listener_option(id, ListenerOption::TeardownOffload(teardown));
    host.set_listener_option(id, ListenerOption::DeferAccept(speaks_first));
    host.set_listener_option(id, ListenerOption::SetupOffload(speaks_first && setup));
}
