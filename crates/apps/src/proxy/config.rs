//! What a proxy does for whom: listeners, routes, pools of backends, limits.
//!
//! The program makes a [`Table`] out of its command line or its file, with names resolved, and
//! gives the proxy another one when either changes. A table is checked by whoever makes it: indices
//! of pools are those of [`Table::pools`].

use core::net::IpAddr;

use base::Duration;
use wire::Endpoint;

/// How much a proxy looks at before it chooses a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing: a backend is connected to at once.
    Tcp,
    /// The head of the first HTTP/1.1 request.
    Http,
    /// The ClientHello, for the server's name in it; TLS goes through untouched.
    Tls,
}

/// How a backend is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    /// One after the other, each as often as its weight says.
    RoundRobin,
    /// The one with the fewest connections for its weight.
    Least,
    /// By a hash, such that others keep theirs when a backend comes or goes.
    Maglev(HashBy),
}

/// What is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashBy {
    /// The client's address, without its port.
    Source,
    /// The name that the client asks for (Host, or the server's name of TLS); its address where it
    /// asks for none.
    Host,
}

/// How a backend's health is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// A path to ask for, which has to be answered with 2xx or 3xx; empty: a connection will do.
    pub path: String,
    /// Value of Host in that request; empty: the backend's address.
    pub host: String,
    /// Time between checks, a tenth more or less; zero: none are made, and a backend that is down
    /// is tried again after [`Check::DOWN_TIME`].
    pub interval: Duration,
    /// How long a check may take.
    pub timeout: Duration,
    /// Good checks in a row that bring a backend up.
    pub rise: u32,
    /// Bad checks, or failed connections, in a row that take it down.
    pub fall: u32,
}

impl Check {
    /// How long a backend stays down that is not checked.
    pub const DOWN_TIME: Duration = Duration::from_secs(10);
}

impl Default for Check {
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

/// A backend, and how much of the work it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Backend {
    /// Where it is.
    pub addr: Endpoint,
    /// Those with the least number that can be had get all connections (RFC 2782).
    pub priority: u16,
    /// Its share among those, at least 1.
    pub weight: u32,
}

impl Backend {
    /// The weight of a backend of which nothing else is said.
    pub const WEIGHT: u32 = 64;
}

impl From<Endpoint> for Backend {
    fn from(addr: Endpoint) -> Self {
        Self { addr, priority: 0, weight: Self::WEIGHT }
    }
}

/// Backends that stand for each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its name: a pool of the same name in a later table is the same pool.
    pub name: String,
    /// How one is chosen.
    pub balance: Balance,
    /// The backends, in any order. One that is in the table before and not in this one gets no new
    /// connection and keeps those that it has.
    pub backends: Vec<Backend>,
    /// Connections that one of them may have.
    pub connections_max: u32,
    /// Begin each connection with a header of the PROXY protocol, version 2.
    pub proxy_protocol: bool,
    /// How their health is looked at.
    pub check: Check,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            name: String::new(),
            balance: Balance::RoundRobin,
            backends: Vec::new(),
            connections_max: 65_536,
            proxy_protocol: false,
            check: Check::default(),
        }
    }
}

/// Which requests go to which pool.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Route {
    /// Host, in lower case and without a port: `a.example`, `*.example` for all names below it, or
    /// nothing for any.
    pub host: String,
    /// Beginning of the path, up to a slash or whole; nothing for any.
    pub path: String,
    /// Index of the pool.
    pub pool: usize,
}

/// Header fields that are added to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Insert {
    /// X-Forwarded-For: the client's address, as everybody understands it.
    pub x_forwarded_for: bool,
    /// X-Forwarded-Proto: http.
    pub x_forwarded_proto: bool,
    /// Forwarded: RFC 7239.
    pub forwarded: bool,
    /// Via: RFC 9110 section 7.6.3.
    pub via: bool,
}

/// The treatment of fields in which a client says for whom it forwards: Forwarded, X-Real-IP, and
/// all that begin with X-Forwarded-.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HeaderPolicy {
    /// They are believed: what the proxy adds goes behind them.
    #[default]
    Append,
    /// They are removed. The proxy has to see every request for that, so a connection carries one.
    Replace,
}

/// A port of the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Only on this address, or on all of ours.
    pub addr: Option<IpAddr>,
    /// Port.
    pub port: u16,
    /// What is looked at.
    pub mode: Mode,
    /// Where to, by what was asked for; the most specific one counts. Not for [`Mode::Tcp`].
    pub routes: Vec<Route>,
    /// Index of the pool for what no route fits.
    pub default: Option<usize>,
    /// Fields to add; only for [`Mode::Http`].
    pub insert: Insert,
    /// The treatment of such fields that clients send; only for [`Mode::Http`].
    pub policy: HeaderPolicy,
    /// Whether a connection may carry more than one request. All of them go to the backend of the
    /// first, and none but the first is looked at; without, the backend is told to close.
    pub keep_alive: bool,
}

/// The reason for which a listener cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unopenable {
    /// The address that it has, if it has one.
    pub addr: Option<IpAddr>,
    /// Its port.
    pub port: u16,
    /// Another listener takes the address too; otherwise the address is not one of ours.
    pub overlaps: bool,
}

impl core::fmt::Display for Unopenable {
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
/// The first that cannot.
pub fn check_listeners(
    listeners: &[Listener],
    is_ours: impl Fn(IpAddr) -> bool,
) -> Result<(), Unopenable> {
    for (index, l) in listeners.iter().enumerate() {
        let unopenable = |overlaps| Unopenable { addr: l.addr, port: l.port, overlaps };
        if l.port == 0 || l.addr.is_some_and(|addr| !is_ours(addr)) {
            return Err(unopenable(false));
        }
        let same = |other: &Listener| {
            let any = other.addr.is_none() || l.addr.is_none();
            other.port == l.port && (any || other.addr == l.addr)
        };
        if listeners.iter().take(index).any(same) {
            return Err(unopenable(true));
        }
    }
    Ok(())
}

/// Bounds and times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Clients at one time; more are reset.
    pub connections_max: usize,
    /// Bytes of a request's head or of a ClientHello's records.
    pub head_bytes_max: usize,
    /// Bytes of a request line; more is 414.
    pub request_line_bytes_max: usize,
    /// Time for the whole head from the beginning of the connection.
    pub head_timeout: Duration,
    /// Time for a connection to a backend to be made, for each attempt.
    pub connect_timeout: Duration,
    /// How long a connection may be idle in both directions.
    pub idle_timeout: Duration,
    /// Other backends that are tried where the first cannot be connected to.
    pub retries: u32,
}

impl Default for Limits {
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

/// All that a proxy does.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Table {
    /// Its ports.
    pub listeners: Vec<Listener>,
    /// Its pools.
    pub pools: Vec<Pool>,
    /// Bounds and times.
    pub limits: Limits,
}

impl Table {
    /// Gives `next` the listeners that this table has, at their places, and new ones behind them;
    /// says which of them `next` wanted. What connections of the others still need, their pools by
    /// name, is kept.
    pub(crate) fn replace_listeners(&self, next: &mut Self) -> Vec<bool> {
        let name = |pool: usize| self.pools.get(pool).map(|pool| pool.name.as_str());
        let pools: Vec<Option<usize>> = (0..self.pools.len())
            .map(|pool| next.pools.iter().position(|p| Some(p.name.as_str()) == name(pool)))
            .collect();
        let place = |pool: usize| pools.get(pool).copied().flatten();
        let mut fresh = core::mem::take(&mut next.listeners);
        let mut wanted = Vec::new();
        for old in &self.listeners {
            let same = |new: &Listener| (new.addr, new.port) == (old.addr, old.port);
            let new = fresh.iter().position(same).map(|at| fresh.remove(at));
            wanted.push(new.is_some());
            next.listeners.push(new.unwrap_or_else(|| Listener {
                routes: old.routes.iter().filter_map(|route| route.moved(place)).collect(),
                default: old.default.and_then(place),
                ..old.clone()
            }));
        }
        wanted.resize(wanted.len() + fresh.len(), true);
        next.listeners.append(&mut fresh);
        wanted
    }
}

impl Route {
    fn moved(&self, place: impl Fn(usize) -> Option<usize>) -> Option<Self> {
        place(self.pool).map(|pool| Self { pool, ..self.clone() })
    }
}

/// What does not change while a proxy runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// Connections that wait to be accepted, for each port.
    pub backlog: usize,
    /// Value of the Server field of responses that are the proxy's own, and its name in Via.
    pub server_name: String,
    /// Unix time at [`base::Instant::ZERO`], for Date and the log.
    pub unix_epoch: Duration,
    /// Spreads health checks.
    pub seed: u64,
    /// Ask the device to relay.
    pub splice: bool,
    /// Whether [`super::Proxy::poll_log`] gives lines.
    pub access_log: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            backlog: 1024,
            server_name: String::from("outboard"),
            unix_epoch: Duration::ZERO,
            seed: 0,
            splice: true,
            access_log: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(ports: &[u16], pools: &[&str], default: usize) -> Table {
        let listener = |&port: &u16| Listener {
            addr: None,
            port,
            mode: Mode::Http,
            routes: vec![Route { pool: default, ..Route::default() }],
            default: Some(default),
            insert: Insert::default(),
            policy: HeaderPolicy::Append,
            keep_alive: true,
        };
        let pool = |&name: &&str| Pool { name: name.to_owned(), ..Pool::default() };
        Table {
            listeners: ports.iter().map(listener).collect(),
            pools: pools.iter().map(pool).collect(),
            ..Table::default()
        }
    }

    /// Listeners keep their places, whatever the order, and those that are closed their pools.
    #[test]
    fn listeners_keep_their_places() {
        let first = table(&[80, 81, 82], &["a", "b"], 1);
        let mut next = table(&[90, 82, 80], &["b", "c"], 1);
        assert_eq!(first.replace_listeners(&mut next), [true, false, true, true]);
        let ports: Vec<_> = next.listeners.iter().map(|l| (l.port, l.default)).collect();
        assert_eq!(ports, [(80, Some(1)), (81, Some(0)), (82, Some(1)), (90, Some(1))]);
        assert_eq!(next.listeners[1].routes[0].pool, 0, "the pool b is the first now");
        // It comes back; of the one that is closed now, the pool is gone.
        let mut last = table(&[81, 80, 90], &["b"], 0);
        assert_eq!(next.replace_listeners(&mut last), [true, true, false, true]);
        let ports: Vec<_> = last.listeners.iter().map(|l| (l.port, l.default)).collect();
        assert_eq!(ports, [(80, Some(0)), (81, Some(0)), (82, None), (90, Some(0))]);
        assert_eq!(last.listeners[2].routes, []);
    }

    /// All of them, or a line that names the one that cannot be opened.
    #[test]
    fn listeners_are_checked_together() {
        let ours = |addr: IpAddr| addr.to_string() == "10.77.0.2";
        let check = |listen: &[(Option<&str>, u16)]| {
            let listeners: Vec<Listener> = listen
                .iter()
                .map(|(addr, port)| Listener {
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
