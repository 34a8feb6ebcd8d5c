//! Health checks: connections of the proxy to each backend, one at a time.
//!
//! [`super::server`] calls [`HealthChecks::handle_timeout`] when a check is due or has taken too
//! long, and [`HealthChecks::handle_socket`] when its socket's readiness changed. A check is a
//! connection or, if the pool has a path, a GET that must be answered with 2xx or 3xx. A backend
//! that is not checked and went down is tried again after [`HealthCheckConfig::DOWN_TIME`].

use base::{DeadlineHeap, Duration, Instant, Prng};
use bytes::Bytes;

use super::config::{HealthCheckConfig, ProxyPool};
use super::pool::BackendId;
use super::proxy_protocol;
use super::shared::{ProxyShared, SocketOwner};
use super::sockets::ProxySockets;

/// Number of bytes of a response that are read: `HTTP/1.1 200`.
const STATUS_BYTES: usize = 12;

/// A check in progress.
#[derive(Debug)]
struct HealthCheckProbe<I> {
    socket: I,
    deadline: Instant,
    /// The request was sent.
    request_sent: bool,
    /// The first bytes of the response.
    response: Vec<u8>,
}

/// The health checks of all backends.
#[derive(Debug)]
pub(crate) struct HealthChecks<I> {
    /// Checks in progress, by backend.
    probes: Vec<Option<HealthCheckProbe<I>>>,
    alarms: DeadlineHeap,
    prng: Prng,
}

/// State of a check.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HealthCheckOutcome {
    Wait,
    Good,
    Bad,
}

impl<I: Copy + Eq> HealthChecks<I> {
    pub(crate) fn new(seed: u64) -> Self {
        Self { probes: Vec::new(), alarms: DeadlineHeap::default(), prng: Prng::new(seed) }
    }

    /// Begins to check new backends. The first checks are spread over an interval, so that they do
    /// not coincide.
    pub(crate) fn watch(&mut self, now: Instant, shared: &mut ProxyShared<I>, added: &[BackendId]) {
        for id in added {
            let check = shared.backends.config_of(*id).map(|pool| pool.check.clone());
            let Some(interval) = check.map(|c| c.interval).filter(|i| *i > Duration::ZERO) else {
                continue;
            };
            let wait = Duration::from_micros(self.prng.below(interval.as_micros().max(1)));
            self.set_due(shared, *id, now + wait);
        }
    }

    fn set_due(&mut self, shared: &mut ProxyShared<I>, id: BackendId, at: Instant) {
        if let (Some(backend), Ok(slot)) = (shared.backends.get_mut(id), u32::try_from(id)) {
            backend.due = at;
            self.alarms.set(slot, at);
        }
    }

    /// Sets the alarm of a backend that went down. It matters for backends without checks.
    pub(crate) fn set_alarm(&mut self, shared: &ProxyShared<I>, id: BackendId) {
        let due = shared.backends.get(id).map(|backend| backend.due);
        if let (Some(due), Ok(slot)) = (due, u32::try_from(id)) {
            self.alarms.set(slot, due);
        }
    }

    /// Returns the time at which to call [`Self::handle_timeout`].
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.alarms.next()
    }

    /// Handles the alarms that have fired: begins checks, and ends those that have taken too long.
    pub(crate) fn handle_timeout<S: ProxySockets<Id = I>>(
        &mut self,
        now: Instant,
        host: &mut S,
        shared: &mut ProxyShared<I>,
    ) {
        while let Some(slot) = self.alarms.pop(now) {
            let id = slot as usize;
            let probe = self.probes.get(id).and_then(Option::as_ref);
            let at = probe.map(|p| p.deadline).or_else(|| shared.backends.get(id).map(|b| b.due));
            match at {
                Some(at) if at > now => self.alarms.set(slot, at),
                Some(_) if probe.is_some() => {
                    self.finish(now, host, shared, id, HealthCheckOutcome::Bad)
                }
                Some(_) => self.begin(now, host, shared, id),
                None => {}
            }
        }
    }

    fn begin<S: ProxySockets<Id = I>>(
        &mut self,
        now: Instant,
        host: &mut S,
        shared: &mut ProxyShared<I>,
        id: BackendId,
    ) {
        let Some(check) = shared.backends.config_of(id).map(|pool| pool.check.clone()) else {
            return; // The backend is draining.
        };
        if check.interval == Duration::ZERO {
            let change = shared.backends.try_again(id);
            shared.record_health_change(now, id, change);
            return;
        }
        let addr = shared.backends.get(id).map(|backend| backend.addr);
        let Some(socket) = addr.and_then(|addr| host.connect(now, addr).ok()) else {
            // A local failure says nothing about the backend.
            self.schedule(now, shared, id, check.interval);
            return;
        };
        shared.owners.set(S::index(socket), socket, SocketOwner::Check(id));
        if self.probes.len() <= id {
            self.probes.resize_with(id + 1, || None);
        }
        let deadline = now + check.timeout;
        if let Some(probe) = self.probes.get_mut(id) {
            *probe = Some(HealthCheckProbe {
                socket,
                deadline,
                request_sent: false,
                response: Vec::new(),
            });
        }
        if let Ok(slot) = u32::try_from(id) {
            self.alarms.set(slot, deadline);
        }
    }

    /// Schedules the next check, a tenth earlier or later, so that the checks of many proxies drift
    /// apart.
    fn schedule(
        &mut self,
        now: Instant,
        shared: &mut ProxyShared<I>,
        id: BackendId,
        interval: Duration,
    ) {
        let us = interval.as_micros();
        let wait = us - us / 10 + self.prng.below(us / 5 + 1);
        self.set_due(shared, id, now + Duration::from_micros(wait));
    }

    /// Handles a change of readiness of a check's socket.
    pub(crate) fn handle_socket<S: ProxySockets<Id = I>>(
        &mut self,
        now: Instant,
        host: &mut S,
        shared: &mut ProxyShared<I>,
        id: BackendId,
    ) {
        let Some(probe) = self.probes.get_mut(id).and_then(Option::as_mut) else { return };
        let verdict = match shared.backends.config_of(id) {
            Some(pool) => poll_probe(now, host, probe, pool, shared),
            None => HealthCheckOutcome::Bad,
        };
        if verdict != HealthCheckOutcome::Wait {
            self.finish(now, host, shared, id, verdict);
        }
    }

    fn finish<S: ProxySockets<Id = I>>(
        &mut self,
        now: Instant,
        host: &mut S,
        shared: &mut ProxyShared<I>,
        id: BackendId,
        verdict: HealthCheckOutcome,
    ) {
        let Some(probe) = self.probes.get_mut(id).and_then(Option::take) else { return };
        shared.owners.clear(S::index(probe.socket), probe.socket);
        // A reset leaves no TIME-WAIT behind.
        host.abort(now, probe.socket);
        host.close(now, probe.socket);
        let Some(check) = shared.backends.config_of(id).map(|pool| pool.check.clone()) else {
            return;
        };
        let change = if verdict == HealthCheckOutcome::Good {
            shared.counters.proxy_checks_good += 1;
            shared.backends.record_success(id, true)
        } else {
            shared.counters.proxy_checks_bad += 1;
            shared.backends.record_failure(id, now)
        };
        shared.record_health_change(now, id, change);
        if check.interval > Duration::ZERO {
            self.schedule(now, shared, id, check.interval);
        }
    }
}

fn poll_probe<S: ProxySockets>(
    now: Instant,
    host: &mut S,
    probe: &mut HealthCheckProbe<S::Id>,
    pool: &ProxyPool,
    shared: &ProxyShared<S::Id>,
) -> HealthCheckOutcome {
    let ready = host.readiness(probe.socket);
    if ready.error.is_some() {
        return HealthCheckOutcome::Bad;
    }
    if !probe.request_sent {
        if !ready.writable {
            return HealthCheckOutcome::Wait;
        }
        if pool.check.path.is_empty() {
            return HealthCheckOutcome::Good;
        }
        probe.request_sent = true;
        let addr = host.remote(probe.socket).map(|remote| remote.to_string()).unwrap_or_default();
        let request = request(pool, &addr, &shared.config.server_name);
        if host.send(now, probe.socket, request).is_err() {
            return HealthCheckOutcome::Bad;
        }
    }
    while probe.response.len() < STATUS_BYTES {
        let bytes = host.peek(probe.socket);
        if bytes.is_empty() {
            break;
        }
        let taken = bytes.len().min(STATUS_BYTES - probe.response.len());
        probe.response.extend(bytes.iter().take(taken));
        host.consume(probe.socket, taken);
    }
    match &probe.response[..] {
        // RFC 9112 section 4.
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', _, b' ', b'2' | b'3', _, _] => {
            HealthCheckOutcome::Good
        }
        heard if heard.len() < STATUS_BYTES && !ready.peer_closed => HealthCheckOutcome::Wait,
        _ => HealthCheckOutcome::Bad,
    }
}

fn request(pool: &ProxyPool, addr: &str, name: &str) -> Bytes {
    let HealthCheckConfig { path, host, .. } = &pool.check;
    let host = if host.is_empty() { addr } else { host };
    let mut bytes = Vec::new();
    if pool.proxy_protocol {
        proxy_protocol::write_local(&mut bytes);
    }
    let text = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {name}-check\r\n\
         Connection: close\r\n\r\n"
    );
    bytes.extend_from_slice(text.as_bytes());
    bytes.into()
}
