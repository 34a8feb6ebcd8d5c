//! The plan of the operator: a [`ProxyTable`] whose backends may still be names.
//!
//! Created from the command line ([`super`]) or a file ([`super::file`]); [`super::names`] converts
//! it to tables.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use apps::proxy::{ProxyBackend, ProxyLimits, ProxyListener, ProxyPool, ProxyTable};
use wire::Endpoint;

/// A backend as configured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BackendSpec {
    /// An address.
    Addr(SocketAddr),
    /// All addresses of a DNS name, at this port.
    Name(String, u16),
    /// All targets of a DNS service, with their priorities and weights (RFC 2782).
    Service(String),
}

impl FromStr for BackendSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(addr) = text.parse::<SocketAddr>().ok().filter(|addr| addr.port() != 0) {
            return Ok(Self::Addr(addr));
        }
        if let Some(name) = text.strip_prefix("srv:") {
            return check_name(name).map(Self::Service);
        }
        let wrong = || {
            format!(
                "invalid backend `{text}`; expected ADDR:PORT, NAME:PORT or srv:NAME, for example \
                 srv:_http._tcp.example.com"
            )
        };
        let (name, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)?;
        Ok(Self::Name(check_name(name)?, port))
    }
}

/// Checks a DNS name, and returns it in lower case without its final dot.
fn check_name(name: &str) -> Result<String, String> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let fits = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    if name.len() <= 253 && name.split('.').all(fits) {
        Ok(name.to_ascii_lowercase())
    } else {
        Err(format!("invalid DNS name `{name}`"))
    }
}

/// Address and port to listen on; `None` for all addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListenArg {
    pub(crate) addr: Option<IpAddr>,
    pub(crate) port: u16,
}

impl FromStr for ListenArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "invalid listen address `{text}`; expected ADDR:PORT, or :PORT for all addresses"
            )
        };
        let (addr, port) = match text.strip_prefix(':') {
            Some(port) => (None, port.parse().map_err(|_| wrong())?),
            None => {
                let addr: SocketAddr = text.parse().map_err(|_| wrong())?;
                (Some(addr.ip()).filter(|ip| !ip.is_unspecified()), addr.port())
            }
        };
        if port == 0 { Err(wrong()) } else { Ok(Self { addr, port }) }
    }
}

/// A pool without addresses, and its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolPlan {
    pub(crate) pool: ProxyPool,
    pub(crate) members: Vec<BackendSpec>,
}

/// The whole configuration of a proxy.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct ProxyPlan {
    pub(crate) listeners: Vec<ProxyListener>,
    pub(crate) pools: Vec<PoolPlan>,
    pub(crate) limits: ProxyLimits,
}

impl ProxyPlan {
    /// Returns the table; `backends` resolves a member.
    pub(crate) fn table(&self, backends: impl Fn(&BackendSpec) -> Vec<ProxyBackend>) -> ProxyTable {
        let pools = self.pools.iter().map(|plan| {
            let mut backends: Vec<ProxyBackend> = plan.members.iter().flat_map(&backends).collect();
            // Two names may resolve to one address: the lowest priority value is kept.
            backends.sort_unstable();
            backends.dedup_by_key(|backend| backend.addr);
            ProxyPool { backends, ..plan.pool.clone() }
        });
        ProxyTable {
            listeners: self.listeners.clone(),
            pools: pools.collect(),
            limits: self.limits.clone(),
        }
    }

    /// Returns the members that must be resolved.
    pub(crate) fn names(&self) -> impl Iterator<Item = &BackendSpec> {
        let members = self.pools.iter().flat_map(|pool| &pool.members);
        members.filter(|member| !matches!(member, BackendSpec::Addr(_)))
    }
}

/// Returns the backend at an address, with default settings.
pub(super) fn backend(addr: SocketAddr) -> ProxyBackend {
    Endpoint { addr: addr.ip(), port: addr.port() }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members() {
        let name = |n: &str, port| Ok(BackendSpec::Name(n.to_owned(), port));
        assert_eq!("10.0.0.1:80".parse(), Ok(BackendSpec::Addr("10.0.0.1:80".parse().unwrap())));
        assert_eq!("[fd77::1]:80".parse(), Ok(BackendSpec::Addr("[fd77::1]:80".parse().unwrap())));
        assert_eq!("A.example.:80".parse(), name("a.example", 80));
        let service = BackendSpec::Service("_http._tcp.a".to_owned());
        assert_eq!("srv:_http._tcp.a".parse(), Ok(service));
        for bad in ["", "a", "a:", "a:99999", "a b:80", "a..b:80", ":80", "srv:", "fd77::1:x"] {
            assert!(bad.parse::<BackendSpec>().is_err(), "{bad}");
        }
    }

    #[test]
    fn listen() {
        let parse = |text: &str| text.parse::<ListenArg>().map(|l| (l.addr.is_some(), l.port));
        assert_eq!(parse("10.77.0.2:80"), Ok((true, 80)));
        assert_eq!(parse("0.0.0.0:80"), Ok((false, 80)));
        assert_eq!(parse(":80"), Ok((false, 80)));
        assert!(parse("80").is_err() && parse(":0").is_err() && parse("a:80").is_err());
    }
}
