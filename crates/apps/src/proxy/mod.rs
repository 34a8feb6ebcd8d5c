//! The proxy: looks at the beginning of a connection, chooses a backend, and has the rest relayed
//! (AccelTCP section 6.1.2 calls it an L7 LB; by the device where it splices).
//!
//! [`Proxy`] is a handler over [`host::Host`]'s sockets, as [`crate::content::ContentServer`] is:
//! the driver gives it what [`Host::poll_notice`] says, calls it at [`Proxy::poll_timeout`], and
//! runs the host afterwards. Files, names and signals are the driver's business; it gives a new
//! [`Table`] when one of them changes ([`Proxy::apply`]).
//!
//! From the outside in: `server` (pairs, deadlines), `pair` (one client and its backend), `check`
//! (health), `pool` (backends and the choice), `maglev`; and without sockets: `head` and `hello`
//! (what a client asks for), `route`, `proxy_protocol`. It terminates no TLS, reads no response,
//! and looks at no request but the first of a connection.

mod check;
mod config;
mod counters;
mod head;
mod hello;
mod maglev;
mod pair;
mod pool;
mod proxy_protocol;
mod route;
mod server;
mod shared;
mod sockets;
mod termination;

use base::Instant;
use host::{
    Application, Host, Listen, ListenError, ListenerId, ListenerOption, Notice, SocketId,
    SocketOption,
};

pub use config::{
    Backend, Balance, Check, Config, HashBy, HeaderPolicy, Insert, Limits, Listener, Mode, Pool,
    Route, Table, Unopenable, check_listeners,
};
pub use counters::Counters;

use server::Server;

/// The proxy.
pub struct Proxy {
    /// For each listener of the table that the server has.
    ports: Vec<Port>,
    /// No port is opened any more.
    draining: bool,
    server: Server<SocketId>,
}

/// A port. Its place stays when it is closed: connections that came in there know it.
#[derive(Clone, Copy, Debug)]
struct Port {
    /// Its name when it was last open; none where it could not be opened.
    id: Option<ListenerId>,
    open: bool,
}

impl Proxy {
    /// A proxy that listens where `table` says.
    ///
    /// # Errors
    /// The first port that cannot be listened on, and why.
    pub fn new(
        now: Instant,
        config: Config,
        table: Table,
        host: &mut Host,
    ) -> Result<Self, ListenError> {
        let backlog = config.backlog;
        let open =
            |l: &Listener| listen(host, l, backlog).map(|id| Port { id: Some(id), open: true });
        let ports = table.listeners.iter().map(open).collect::<Result<_, _>>()?;
        let mut server = Server::new(config);
        server.apply(now, table);
        Ok(Self { ports, draining: false, server })
    }

    /// Takes over another table, or nothing of it: ports that are new in it are opened, and those
    /// that are not in it closed. Connections stay as they are; backends that are gone get no new
    /// ones.
    ///
    /// # Errors
    /// The first listener that cannot be opened; the table from before stays, and the log says so.
    pub fn apply(
        &mut self,
        now: Instant,
        host: &mut Host,
        mut table: Table,
    ) -> Result<(), Unopenable> {
        let shared = &mut self.server.shared;
        check_listeners(&table.listeners, |addr| host.is_ours(addr)).inspect_err(|why| {
            shared.remark(now, why);
            shared.counters.proxy_tables_refused += 1;
        })?;
        let modes: Vec<Mode> = shared.table.listeners.iter().map(|l| l.mode).collect();
        let wanted = shared.table.replace_listeners(&mut table);
        self.ports.resize(wanted.len(), Port { id: None, open: false });
        // First what closes: what opens may take its place.
        for (port, _) in
            self.ports.iter_mut().zip(&wanted).filter(|(p, wanted)| p.open && !**wanted)
        {
            port.close(host);
            shared.counters.proxy_ports_closed += 1;
        }
        let listeners = wanted.into_iter().zip(&table.listeners).enumerate();
        for (port, (index, (is_wanted, listener))) in self.ports.iter_mut().zip(listeners) {
            if port.open {
                let changed = modes.get(index) != Some(&listener.mode);
                let id = port.id.filter(|_| changed);
                id.into_iter().for_each(|id| set_options(host, id, listener.mode));
            } else if is_wanted && !self.draining {
                // It was checked; only another application over the same host could have the port.
                match listen(host, listener, shared.config.backlog) {
                    Ok(id) => {
                        *port = Port { id: Some(id), open: true };
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
}

impl Application for Proxy {
    /// Takes what [`Host::poll_notice`] gave. Notices about listeners and sockets of others are
    /// passed over, so several applications can share a host.
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        match notice {
            Notice::Accepted(listener, socket) => {
                if let Some(index) = self.ports.iter().position(|p| p.id == Some(listener)) {
                    // What is relayed was cut by its sender.
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
            // It opens none.
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

    /// Stops accepting connections, whatever tables come. Open connections stay.
    fn drain(&mut self, _: Instant, host: &mut Host) {
        self.draining = true;
        self.ports.iter_mut().for_each(|port| port.close(host));
    }

    /// Every connection is about to be reset, by host or device: the log says so of each.
    fn end(&mut self, now: Instant, _: &mut Host) {
        self.draining = true;
        self.server.end(now);
    }

    /// The next line of the access log, without its line end: one for each client when it has
    /// ended, and remarks about backends that begin with `#`.
    fn poll_log(&mut self) -> Option<String> {
        self.server.shared.log.poll()
    }

    /// Calls `f` with the name and value of each counter, and of four gauges: clients, those that
    /// the device relays, backends, and backends that are up.
    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        let shared = &self.server.shared;
        shared.counters.visit(f);
        f("proxy_connections_open", self.server.connections() as u64);
        f("proxy_splices_open", shared.splices.len() as u64);
        let (backends, up) = shared.backends.count();
        f("proxy_backends", backends);
        f("proxy_backends_up", up);
    }
}

impl Port {
    fn close(&mut self, host: &mut Host) {
        if core::mem::take(&mut self.open) {
            self.id.into_iter().for_each(|id| host.unlisten(id));
        }
    }
}

fn listen(host: &mut Host, l: &Listener, backlog: usize) -> Result<ListenerId, ListenError> {
    let id = host.listen(Listen { addr: l.addr, port: l.port, backlog })?;
    host.set_listener_option(id, ListenerOption::TeardownOffload(true));
    set_options(host, id, l.mode);
    Ok(id)
}

fn set_options(host: &mut Host, id: ListenerId, mode: Mode) {
    // What is relayed blindly may be a protocol in which the server speaks first.
    let speaks_first = mode != Mode::Tcp;
    host.set_listener_option(id, ListenerOption::DeferAccept(speaks_first));
    host.set_listener_option(id, ListenerOption::SetupOffload(speaks_first));
}
