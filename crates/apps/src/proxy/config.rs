//! Configuration of a proxy: listeners, routes, pools of backends, limits.
//!
//! The program builds a [`ProxyTable`] from its command line or its file, with names resolved, and
//! passes the proxy a new one when either changes. The builder of a table must make sure that
//! indices of pools are valid in [`ProxyTable::pools`].

use core::net::IpAddr;
use std::sync::Arc;

use base::Duration;
use wire::Endpoint;

use crate::pattern_rules::PatternRules;

/// The part of a connection that is read before a backend is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyMode {
    /// Nothing: a backend is connected to at once.
    Tcp,
    /// The head of the first HTTP/1.1 request.
    Http,
    /// The ClientHello, for its server name; TLS is relayed unchanged.
    Tls,
}

/// Algorithm by which a backend is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadBalancing {
    /// In turn, in proportion to the weights.
    RoundRobin,
    /// The backend with the fewest connections in relation to its weight.
    Least,
    /// By a consistent hash: most clients keep their backend when another one is added or removed.
    Maglev(HashBy),
}

/// The input of the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashBy {
    /// The client's address, without its port.
    Source,
    /// The name that the client requests (Host, or the server name of TLS); its address if there is
    /// none.
    Host,
}

/// Parameters of health checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheckConfig {
    /// Path of a GET request that must be answered with 2xx or 3xx; empty if a connection suffices.
    pub path: String,
    /// Value of Host in that request; empty for the backend's address.
    pub host: String,
    /// Time between checks, plus or minus a tenth. Zero for no checks: a backend that is down is
    /// tried again after [`HealthCheckConfig::DOWN_TIME`].
    pub interval: Duration,
    /// Time limit of a check.
    pub timeout: Duration,
    /// Consecutive successful checks after which a backend is up.
    pub rise: u32,
    /// Consecutive failed checks, or failed connections, after which a backend is down.
    pub fall: u32,
}

impl HealthCheckConfig {
    /// Time for which a backend without checks stays down.
    pub const DOWN_TIME: Duration = Duration::from_secs(10);
}

impl Default for HealthCheckConfig {
    fn default() -> Self {
        Self {
            path: String::new(),
            host: String::new(),
            interval: Duration::from_secs(2),
            timeout: Duration::from_secs(2),
            rise: 2,
            fall: 3,
        }
    }
}

/// A backend, and its share of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProxyBackend {
    /// Address and port.
    pub addr: Endpoint,
    /// The available backends with the lowest value get all connections (RFC 2782).
    pub priority: u16,
    /// Share of the connections among backends of the same priority, at least 1.
    pub weight: u32,
}

impl ProxyBackend {
    /// Default weight.
    pub const WEIGHT: u32 = 64;
}

impl From<Endpoint> for ProxyBackend {
    fn from(addr: Endpoint) -> Self {
        Self { addr, priority: 0, weight: Self::WEIGHT }
    }
}

/// A group of equivalent backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyPool {
    /// Name of the pool: a pool of the same name in a later table is the same pool.
    pub name: String,
    /// Algorithm by which a backend is chosen.
    pub balance: LoadBalancing,
    /// The backends, in any order. A backend that a later table lacks gets no new connections, and
    /// keeps those that it has.
    pub backends: Vec<ProxyBackend>,
    /// Maximum number of connections of each backend.
    pub connections_max: u32,
    /// True to begin each connection with a header of the PROXY protocol, version 2.
    pub proxy_protocol: bool,
    /// Parameters of health checks.
    pub check: HealthCheckConfig,
}

impl Default for ProxyPool {
    fn default() -> Self {
        Self {
            name: String::new(),
            balance: LoadBalancing::RoundRobin,
            backends: Vec::new(),
            connections_max: 65_536,
            proxy_protocol: false,
            check: HealthCheckConfig::default(),
        }
    }
}

/// Connection offloads that a listener or a route permits; the device must provide them as well.
/// AccelTCP section 1: some flows need the host, such as those whose responses are inspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyOffloads {
    /// The device may accept connections. Of a route this has no meaning: it is found later.
    pub setup: bool,
    /// The device may close the connections to client and backend.
    pub teardown: bool,
    /// The device may relay between client and backend.
    pub splice: bool,
}

impl ProxyOffloads {
    /// All offloads.
    pub const ALL: Self = Self { setup: true, teardown: true, splice: true };

    /// Returns the offloads that both permit.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            setup: self.setup && other.setup,
            teardown: self.teardown && other.teardown,
            splice: self.splice && other.splice,
        }
    }
}

impl Default for ProxyOffloads {
    fn default() -> Self {
        Self::ALL
    }
}

/// Assignment of requests to a pool.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ProxyRoute {
    /// Host in lower case and without a port: `a.example`, or `*.example` for all names below it;
    /// empty for any host.
    pub host: String,
    /// Prefix of the path, which ends at a slash or at the end of the path; empty for any path.
    pub path: String,
    /// Index of the pool.
    pub pool: usize,
    /// Offloads of these connections, besides those that the listener excludes.
    pub offloads: ProxyOffloads,
}

/// Header fields that are added to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct InsertedFields {
    /// X-Forwarded-For: the client's address, in the most common format.
    pub x_forwarded_for: bool,
    /// X-Forwarded-Proto: `http`.
    pub x_forwarded_proto: bool,
    /// Forwarded (RFC 7239).
    pub forwarded: bool,
    /// Via (RFC 9110 section 7.6.3).
    pub via: bool,
}

/// Treatment of the fields in which clients say for whom they forward: Forwarded, X-Real-IP, and
/// all that begin with X-Forwarded-.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ForwardingPolicy {
    /// They are trusted: the proxy appends its values to them.
    #[default]
    Append,
    /// They are removed. For this the proxy must parse every request, so a connection carries only
    /// one.
    Replace,
}

/// A port on which the proxy accepts clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyListener {
    /// Local address; `None` for all addresses.
    pub addr: Option<IpAddr>,
    /// Local port; not 0.
    pub port: u16,
    /// The part of a connection that is read.
    pub mode: ProxyMode,
    /// Routes by requested host and path; the most specific one applies. Unused in
    /// [`ProxyMode::Tcp`].
    pub routes: Vec<ProxyRoute>,
    /// Index of the pool for requests that no route matches, and for all connections in
    /// [`ProxyMode::Tcp`].
    pub default: Option<usize>,
    /// Header fields to add; only in [`ProxyMode::Http`].
    pub insert: InsertedFields,
    /// Treatment of forwarding fields from clients; only in [`ProxyMode::Http`].
    pub policy: ForwardingPolicy,
    /// True if a connection may carry several requests. All of them go to the backend of the first,
    /// which is the only one that is parsed. If false, the backend is told to close.
    pub keep_alive: bool,
    /// Offloads of its connections.
    pub offloads: ProxyOffloads,
}

/// Reason for which a listener cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerError {
    /// Its address, if it has one.
    pub addr: Option<IpAddr>,
    /// Its port.
    pub port: u16,
    /// True if an earlier listener overlaps; else the address is not the host's, or the port is 0.
    pub overlaps: bool,
}

impl core::fmt::Display for ListenerError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("cannot listen on ")?;
        match self.addr {
            Some(addr) => write!(f, "{}", core::net::SocketAddr::new(addr, self.port))?,
            None => write!(f, ":{}", self.port)?,
        }
        let why = if self.overlaps {
            "another listener takes that port of the same address"
        } else {
            "that is not an address of ours"
        };
        write!(f, ": {why}")
    }
}

/// Checks that all listeners can be open at the same time.
///
/// # Errors
/// The first listener that cannot be opened.
pub fn check_listeners(
    listeners: &[ProxyListener],
    is_ours: impl Fn(IpAddr) -> bool,
) -> Result<(), ListenerError> {
    for (index, l) in listeners.iter().enumerate() {
        let unopenable = |overlaps| ListenerError { addr: l.addr, port: l.port, overlaps };
        if l.port == 0 || l.addr.is_some_and(|addr| !is_ours(addr)) {
            return Err(unopenable(false));
        }
        let same = |other: &ProxyListener| {
            let any = other.addr.is_none() || l.addr.is_none();
            other.port == l.port && (any || other.addr == l.addr)
        };
        if listeners.iter().take(index).any(same) {
            return Err(unopenable(true));
        }
    }
    Ok(())
}

/// Limits and timeouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyLimits {
    /// Concurrent clients; more are reset.
    pub connections_max: usize,
    /// Bytes of a request head or of the records of a ClientHello.
    pub head_bytes_max: usize,
    /// Bytes of a request line; 414 above.
    pub request_line_bytes_max: usize,
    /// Time limit for the whole head from the beginning of the connection.
    pub head_timeout: Duration,
    /// Time limit for each attempt to connect to a backend.
    pub connect_timeout: Duration,
    /// Time for which a connection may be idle in both directions.
    pub idle_timeout: Duration,
    /// Number of further backends to try if the first cannot be connected to.
    pub retries: u32,
}

impl Default for ProxyLimits {
    fn default() -> Self {
        Self {
            connections_max: 32_768,
            head_bytes_max: 16 * 1024,
            request_line_bytes_max: 8 * 1024,
            head_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(4),
            idle_timeout: Duration::from_secs(300),
            retries: 3,
        }
    }
}

/// The part of the configuration that can change while the proxy runs.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ProxyTable {
    /// The listeners.
    pub listeners: Vec<ProxyListener>,
    /// The pools.
    pub pools: Vec<ProxyPool>,
    /// Limits and timeouts.
    pub limits: ProxyLimits,
}

impl ProxyTable {
    /// Reorders the listeners of `next`: those of this table keep their indices, and new ones
    /// follow. A listener that `next` lacks is kept for its connections, with its pools found by
    /// name. Returns for each listener whether `next` had it.
    pub(crate) fn replace_listeners(&self, next: &mut Self) -> Vec<bool> {
        let name = |pool: usize| self.pools.get(pool).map(|pool| pool.name.as_str());
        let pools: Vec<Option<usize>> = (0..self.pools.len())
            .map(|pool| next.pools.iter().position(|p| Some(p.name.as_str()) == name(pool)))
            .collect();
        let place = |pool: usize| pools.get(pool).copied().flatten();
        let mut fresh = core::mem::take(&mut next.listeners);
        let mut wanted = Vec::new();
        for old in &self.listeners {
            let same = |new: &ProxyListener| (new.addr, new.port) == (old.addr, old.port);
            let new = fresh.iter().position(same).map(|at| fresh.remove(at));
            wanted.push(new.is_some());
            next.listeners.push(new.unwrap_or_else(|| ProxyListener {
                routes:
                    old.routes.iter().filter_map(|route| route.with_pool_index(place)).collect(),
                default: old.default.and_then(place),
                ..old.clone()
            }));
        }
        wanted.resize(wanted.len() + fresh.len(), true);
        next.listeners.append(&mut fresh);
        wanted
    }
}

impl ProxyRoute {
    fn with_pool_index(&self, place: impl Fn(usize) -> Option<usize>) -> Option<Self> {
        place(self.pool).map(|pool| Self { pool, ..self.clone() })
    }
}

/// The part of the configuration that does not change while the proxy runs.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// Length of each listener's accept queue.
    pub backlog: usize,
    /// Value of the Server field of the proxy's own responses, and name of the proxy in Via.
    pub server_name: String,
    /// Unix time at [`base::Instant::ZERO`], for the Date field and the log.
    pub unix_epoch: Duration,
    /// Seed of the random times between health checks.
    pub seed: u64,
    /// True to ask the device to splice.
    pub splice: bool,
    /// True to fill the access log that [`host::Application::poll_log`] returns.
    pub access_log: bool,
    /// Rules about patterns in the bytes of clients; with rules nothing is spliced. A match of a
    /// denying rule is answered with 403 if no response has begun, with an alert in place of a TLS
    /// handshake, and with a reset otherwise.
    pub pattern_rules: Option<Arc<PatternRules>>,
}

impl Default for ProxyConfig {
    fn default() -> Self {
        Self {
            backlog: 1024,
            server_name: String::from("outboard"),
            unix_epoch: Duration::ZERO,
            seed: 0,
            splice: true,
            access_log: false,
            pattern_rules: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(ports: &[u16], pools: &[&str], default: usize) -> ProxyTable {
        let listener = |&port: &u16| ProxyListener {
            addr: None,
            port,
            mode: ProxyMode::Http,
            routes: vec![ProxyRoute { pool: default, ..ProxyRoute::default() }],
            default: Some(default),
            insert: InsertedFields::default(),
            policy: ForwardingPolicy::Append,
            keep_alive: true,
            offloads: ProxyOffloads::ALL,
        };
        let pool = |&name: &&str| ProxyPool { name: name.to_owned(), ..ProxyPool::default() };
        ProxyTable {
            listeners: ports.iter().map(listener).collect(),
            pools: pools.iter().map(pool).collect(),
            ..ProxyTable::default()
        }
    }

    /// Listeners keep their indices in any order of the table, and closed listeners keep their
    /// pools.
    #[test]
    fn listeners_keep_their_places() {
        let first = table(&[80, 81, 82], &["a", "b"], 1);
        let mut next = table(&[90, 82, 80], &["b", "c"], 1);
        assert_eq!(first.replace_listeners(&mut next), [true, false, true, true]);
        let ports: Vec<_> = next.listeners.iter().map(|l| (l.port, l.default)).collect();
        assert_eq!(ports, [(80, Some(1)), (81, Some(0)), (82, Some(1)), (90, Some(1))]);
        assert_eq!(next.listeners[1].routes[0].pool, 0, "the pool b is the first now");
        // Listener 81 is opened again; the pool of 82, which is closed, is gone.
        let mut last = table(&[81, 80, 90], &["b"], 0);
        assert_eq!(next.replace_listeners(&mut last), [true, true, false, true]);
        let ports: Vec<_> = last.listeners.iter().map(|l| (l.port, l.default)).collect();
        assert_eq!(ports, [(80, Some(0)), (81, Some(0)), (82, None), (90, Some(0))]);
        assert_eq!(last.listeners[2].routes, []);
    }

    /// Either all listeners can be opened, or the error names the one that cannot.
    #[test]
    fn listeners_are_checked_together() {
        let ours = |addr: IpAddr| addr.to_string() == "10.77.0.2";
        let check = |listen: &[(Option<&str>, u16)]| {
            let listeners: Vec<ProxyListener> = listen
                .iter()
                .map(|(addr, port)| ProxyListener {
                    addr: addr.map(|addr| addr.parse().unwrap()),
                    ..table(&[*port], &["a"], 0).listeners.remove(0)
                })
                .collect();
            check_listeners(&listeners, ours).map_err(|why| why.to_string())
        };
        assert_eq!(check(&[(None, 80), (Some("10.77.0.2"), 81), (None, 82)]), Ok(()));
        let overlap = "another listener takes that port of the same address";
        for (listen, line) in [
            ([(None, 80), (Some("10.77.0.2"), 80)], format!("10.77.0.2:80: {overlap}")),
            ([(Some("10.77.0.2"), 80), (None, 80)], format!(":80: {overlap}")),
            (
                [(None, 80), (Some("10.77.0.3"), 81)],
                "10.77.0.3:81: that is not an address of ours".to_owned(),
            ),
        ] {
            assert_eq!(check(&listen), Err(format!("cannot listen on {line}")));
        }
    }
}
