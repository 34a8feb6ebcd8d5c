//! Converts plans to tables: resolves names, and again when their TTL has expired.
//!
//! Runs in its own thread, because it waits for DNS servers. The main thread passes it a plan at
//! startup and on each SIGHUP; it passes tables to the host thread. If a name cannot be resolved,
//! its old addresses are kept.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError};

use apps::dns::{DnsAnswer, DnsRecord, RecordType};
use apps::proxy::{ProxyBackend, ProxyTable};
use base::{Duration, Instant};
use io::clock::MonotonicClock;

use super::plan::{BackendSpec, ProxyPlan, backend};
use super::resolver;

/// Bounds of the TTL of an answer.
const TTL_MIN: Duration = Duration::from_secs(1);
const TTL_MAX: Duration = Duration::from_secs(300);
/// Delay after a name could not be resolved.
const RETRY: Duration = Duration::from_secs(5);
/// Maximum number of addresses of a service.
const ADDRS_MAX: usize = 1024;

/// A member's addresses, with the end of their TTL.
#[derive(Clone, Debug, Default)]
struct ResolvedBackends {
    backends: Vec<ProxyBackend>,
    expires_at: Instant,
    /// True if the failure to resolve it was printed.
    failure_printed: bool,
}

/// State of the thread.
pub(super) struct BackendResolver {
    server: Option<SocketAddr>,
    clock: MonotonicClock,
    plan: ProxyPlan,
    known: BTreeMap<BackendSpec, ResolvedBackends>,
}

impl BackendResolver {
    /// Resolves names with `server`, or with the system's.
    pub(super) fn new(server: Option<SocketAddr>, plan: ProxyPlan) -> Self {
        Self { server, clock: MonotonicClock::new(), plan, known: BTreeMap::new() }
    }

    /// Resolves names that are due, and returns the table.
    pub(super) fn table(&mut self) -> ProxyTable {
        let now = self.clock.now();
        let names: Vec<BackendSpec> = self.plan.names().cloned().collect();
        self.known.retain(|member, _| names.contains(member));
        for member in names {
            if self.known.get(&member).is_none_or(|known| known.expires_at <= now) {
                self.look_up(now, member);
            }
        }
        let known = &self.known;
        self.plan.table(|member| match member {
            BackendSpec::Addr(addr) => vec![backend(*addr)],
            name => known.get(name).map(|known| known.backends.clone()).unwrap_or_default(),
        })
    }

    /// Calls `give` with each new table, until no more plans can arrive.
    pub(super) fn run(
        mut self,
        plans: &Receiver<ProxyPlan>,
        mut last: ProxyTable,
        give: impl Fn(ProxyTable),
    ) {
        loop {
            let now = self.clock.now();
            let due = self.known.values().map(|known| known.expires_at).min();
            let wait = due.map_or(TTL_MAX, |due| due.since(now));
            match plans.recv_timeout(std::time::Duration::from_micros(wait.as_micros())) {
                Ok(plan) => self.plan = plan,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let table = self.table();
            if table != last {
                last = table.clone();
                give(table);
            }
        }
    }

    fn look_up(&mut self, now: Instant, member: BackendSpec) {
        let server = self.server.map_or_else(resolver::system_server, Ok);
        let found = server.and_then(|server| match &member {
            BackendSpec::Addr(addr) => Ok((vec![backend(*addr)], u32::MAX)),
            BackendSpec::Name(name, port) => {
                let found = resolve_addresses(server, name, *port);
                found.map(|(addrs, ttl_s)| (addrs.into_iter().map(backend).collect(), ttl_s))
            }
            BackendSpec::Service(name) => resolve_service(server, name),
        });
        let known = self.known.entry(member).or_default();
        match found {
            Ok((mut backends, ttl_s)) => {
                backends.sort_unstable();
                known.backends = backends;
                let ttl = Duration::from_secs(ttl_s.into());
                known.expires_at =
                    now + if ttl_s == 0 { RETRY } else { ttl.clamp(TTL_MIN, TTL_MAX) };
                known.failure_printed = false;
            }
            Err(why) => {
                if !known.failure_printed {
                    eprintln!("outboard: cannot resolve {why}; retrying");
                }
                known.failure_printed = true;
                known.expires_at = now + RETRY;
            }
        }
    }
}

/// Resolves addresses of both families. A failure of one family is ignored.
fn resolve_addresses(
    server: SocketAddr,
    name: &str,
    port: u16,
) -> Result<(Vec<SocketAddr>, u32), String> {
    let (four, six) = (
        resolver::query_server(server, name, RecordType::A),
        resolver::query_server(server, name, RecordType::Aaaa),
    );
    let answers: Vec<DnsAnswer> = match (four, six) {
        (Err(error), Err(_)) => return Err(error),
        (four, six) => [four, six].into_iter().flatten().collect(),
    };
    let records = answers.iter().flat_map(|answer| &answer.records);
    let addrs = records.filter_map(|record| match record {
        DnsRecord::Addr(addr) => Some(SocketAddr::new(*addr, port)),
        DnsRecord::Service { .. } => None,
    });
    let ttls = answers.iter().filter(|answer| !answer.records.is_empty()).map(|a| a.ttl_s);
    Ok((addrs.collect(), ttls.min().unwrap_or(0)))
}

/// Resolves all targets of a service, with their priorities and weights (RFC 2782).
fn resolve_service(server: SocketAddr, name: &str) -> Result<(Vec<ProxyBackend>, u32), String> {
    let answer = resolver::query_server(server, name, RecordType::Srv)?;
    let (mut backends, mut ttl_s) = (Vec::new(), answer.ttl_s);
    for record in &answer.records {
        let DnsRecord::Service { priority, weight, target, port } = record else { continue };
        // A target of "." means that there is no such service (RFC 2782).
        if target.is_empty() {
            continue;
        }
        let (addrs, ttl) = resolve_addresses(server, target, *port)?;
        let weight = weight_share(*weight, addrs.len());
        let of_target = addrs.into_iter().map(backend);
        backends.extend(of_target.map(|one| ProxyBackend { priority: *priority, weight, ..one }));
        ttl_s = ttl_s.min(ttl);
    }
    backends.sort_unstable_by_key(|backend| (backend.priority, backend.addr));
    backends.truncate(ADDRS_MAX);
    Ok((backends, ttl_s))
}

/// Returns the weight of each of a target's addresses. A weight of zero becomes 1: a very small
/// share beside other targets (RFC 2782), and all traffic if there are none.
fn weight_share(weight: u16, addrs: usize) -> u32 {
    let addrs = u32::try_from(addrs).unwrap_or(u32::MAX).max(1);
    (u32::from(weight) * ProxyBackend::WEIGHT / addrs).max(1)
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::*;
    use apps::proxy::ProxyLimits;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU8, Ordering};
    use std::sync::mpsc::channel;

    fn plan(server: &str) -> ProxyPlan {
        let text = format!(
            "[[listener]]\nlisten = ':80'\nmode = 'tcp'\ndefault = 'a'\n[[backend]]\nname = 'a'\n\
             servers = ['10.0.0.200:80', '{server}']\n"
        );
        file::parse(&text, &ProxyLimits::default()).unwrap()
    }

    fn last_bytes(table: &ProxyTable) -> Vec<u8> {
        let addrs = table.pools[0].backends.iter();
        addrs
            .map(|b| b.addr.addr.to_string().rsplit('.').next().unwrap().parse().unwrap())
            .collect()
    }

    #[test]
    fn tables_follow_names_and_plans() {
        let last = Arc::new(AtomicU8::new(1));
        let now = Arc::clone(&last);
        let server = resolver::tests::server_of(move || (vec![now.load(Ordering::SeqCst), 9], 1));
        let mut names = BackendResolver::new(Some(server), plan("app.example:80"));
        let first = names.table();
        assert_eq!(last_bytes(&first), [1, 9, 200]);
        let (plans, plans_end) = channel();
        let (tables, tables_end) = channel();
        let thread = std::thread::spawn(move || {
            names.run(&plans_end, first, |table| tables.send(table).unwrap());
        });
        last.store(2, Ordering::SeqCst);
        assert_eq!(last_bytes(&tables_end.recv().unwrap()), [2, 9, 200], "after the TTL");
        plans.send(plan("other.example:80")).unwrap();
        assert_eq!(last_bytes(&tables_end.recv().unwrap()), [200], "no such name");
        plans.send(plan("app.example:81")).unwrap();
        assert_eq!(last_bytes(&tables_end.recv().unwrap()), [2, 9, 200]);
        drop(plans);
        thread.join().unwrap();
    }

    #[test]
    fn a_server_that_is_silent_changes_nothing() {
        let closed = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let addr = closed.local_addr().unwrap();
        drop(closed);
        let mut names = BackendResolver::new(Some(addr), plan("app.example:80"));
        let member = BackendSpec::Name("app.example".to_owned(), 80);
        let backends = vec![backend("10.0.0.3:80".parse().unwrap())];
        names.known.insert(
            member,
            ResolvedBackends { backends, expires_at: Instant::ZERO, failure_printed: true },
        );
        assert_eq!(last_bytes(&names.table()), [3, 200]);
    }

    /// RFC 2782: priorities and weights reach the table. A target's addresses share its weight.
    #[test]
    fn services_have_weights_and_priorities() {
        let server = resolver::tests::services_of(&[(10, 60, 1), (10, 20, 2), (20, 0, 3)]);
        let text = "[[listener]]\nlisten = ':80'\nmode = 'tcp'\ndefault = 'a'\n[[backend]]\n\
                    name = 'a'\nservers = ['srv:_http._tcp.app.example']\n";
        let mut names =
            BackendResolver::new(Some(server), file::parse(text, &ProxyLimits::default()).unwrap());
        let table = names.table();
        assert_eq!(last_bytes(&table), [1, 2, 3]);
        let backends = table.pools[0].backends.iter();
        let numbers: Vec<_> = backends.map(|b| (b.priority, b.weight, b.addr.port)).collect();
        assert_eq!(numbers, [(10, 60 * 64, 8080), (10, 20 * 64, 8080), (20, 1, 8080)]);
        assert_eq!(
            [weight_share(10, 2), weight_share(10, 1), weight_share(0, 3), weight_share(1, 1000)],
            [320, 640, 1, 1]
        );
    }
}
