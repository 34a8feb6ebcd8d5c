//! A running stack: messages from other threads, signals, and the end.
//!
//! It ends in two phases. A drain stops accepting connections and waits, for a bounded time, for
//! the open ones; then the threads end, and reset the remaining connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::Duration;
use cli::Failure;
use io::clock::MonotonicClock;
use io::xdp::ListenerPorts;
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGUSR1};

use crate::attach::{ClaimExtension, ClaimFailure};
use crate::balance::BalanceThread;
use crate::builder::Builder;
use crate::control::dashboard::DashboardThreads;
use crate::control::metrics::{IsAlarm, MetricsThread};
use crate::control::{self, ControlHandlers, ControlSocket, ControlThread, Probe};
use crate::options::StackOptions;
use crate::record::RunRecord;
use crate::signals::Signals;
use crate::supervisor::{self, WatchdogThread};
use crate::threads::{MessageSender, Threads};

/// Interval at which a drain reads the gauges.
const DRAIN_INTERVAL: Duration = Duration::from_millis(50);
/// The same in [`Stack::stop_when_closed`], which waits for about a round trip.
const SETTLE_INTERVAL: Duration = Duration::from_millis(1);
/// Longest time for a device's answer to a claim.
const CLAIM_TIME_MAX: Duration = Duration::from_secs(2);
/// Gauges of open connections: those of the host, those that the device splices or drains, those
/// that the device tears down, and those of QUIC.
const OPEN_CONNECTION_GAUGES: [&str; 5] = [
    "connections",
    "splice_live",
    "splice_draining",
    "connections_closing_on_device",
    "quic_connections_open",
];

/// A running stack, whose applications receive messages of type `M`. Dropping it ends the threads
/// and resets connections.
pub struct Stack<M = ()> {
    clock: MonotonicClock,
    drain_time: Duration,
    has_log_file: bool,
    listen_ports: ListenerPorts,
    /// Number of requests to reopen the access logs.
    log_reopen_requests: Arc<AtomicUsize>,
    threads: Threads<M>,
    aside: AsideThreads,
    record: Option<RunRecord>,
}

/// Threads beside those of the queues. They end when this is dropped.
pub(crate) struct AsideThreads {
    #[expect(dead_code, reason = "it ends when it is dropped")]
    pub(crate) control: ControlThread,
    pub(crate) metrics: Option<MetricsThread>,
    pub(crate) dashboard: Option<DashboardThreads>,
    pub(crate) balance: Option<BalanceThread>,
    #[expect(dead_code, reason = "it ends when it is dropped")]
    watchdog: Option<WatchdogThread>,
}

impl AsideThreads {
    /// Starts the threads that answer queries to `probes`, and the requests that have handlers.
    ///
    /// # Errors
    /// Fails if an address or thread is not available.
    pub(crate) fn start(
        options: &StackOptions,
        control: ControlSocket,
        probes: &[Probe],
        is_alarm: IsAlarm,
        handlers: ControlHandlers,
    ) -> Result<Self, Failure> {
        let metrics = |addr| control::metrics::start(addr, probes.to_vec(), is_alarm);
        let dashboard = |addr| control::dashboard::start(addr, probes.to_vec(), is_alarm);
        Ok(Self {
            metrics: options.metrics.map(metrics).transpose()?,
            dashboard: options.dashboard.map(dashboard).transpose()?,
            control: control.start(probes.to_vec(), handlers)?,
            balance: None,
            watchdog: WatchdogThread::start(probes)?,
        })
    }
}

impl Stack {
    /// Returns a builder with the default options.
    #[must_use]
    pub fn builder<'a>() -> Builder<'a> {
        Builder::new()
    }
}

impl<M> Stack<M> {
    pub(crate) fn new(
        clock: MonotonicClock,
        options: &StackOptions,
        threads: Threads<M>,
        reopened: Arc<AtomicUsize>,
        (aside, record): (AsideThreads, Option<RunRecord>),
    ) -> Self {
        Self {
            clock,
            drain_time: options.drain_time(),
            has_log_file: options.has_log_file(),
            listen_ports: options.listen_ports.clone(),
            log_reopen_requests: reopened,
            threads,
            aside,
            record,
        }
    }

    /// Returns the senders of messages to the application of each queue.
    #[must_use]
    pub fn senders(&self) -> &[MessageSender<M>] {
        self.threads.senders()
    }

    /// Returns the counters of all threads: `{"host": {"q0": {..}}, "nic": {"q0": {..}}}`.
    #[must_use]
    pub fn counters(&self) -> Value {
        control::counters(self.threads.probes())
    }

    /// Returns the address at which the metrics are served, `None` if they are not.
    #[must_use]
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.aside.metrics.as_ref().map(|metrics| metrics.addr)
    }

    /// Returns the address of the dashboard, `None` if there is none.
    #[must_use]
    pub fn dashboard_addr(&self) -> Option<SocketAddr> {
        self.aside.dashboard.as_ref().map(|dashboard| dashboard.addr)
    }

    /// Lets frames for further ports reach the stack, before its application listens there. With
    /// [`StackOptions::share_address`] the link, or the device in another process, passes only
    /// frames for the stack's own ports. None is removed, because connections on it may be open.
    ///
    /// # Errors
    /// If the kernel or the device refuses them, or the device does not answer. No application
    /// listens on the ports then, though frames for them may arrive.
    pub fn add_listen_ports(&self, ports: &[u16]) -> Result<(), Failure> {
        let ask = |host: &MessageSender<M>| {
            let (extension, answered) = ClaimExtension::new(ports);
            host.extend_claim(extension);
            answered
        };
        let limit = std::time::Duration::from_micros(CLAIM_TIME_MAX.as_micros());
        let asked: Vec<_> = self.threads.senders().iter().map(ask).collect();
        for answered in asked {
            let answer = answered.recv_timeout(limit).unwrap_or(Err(ClaimFailure::Unanswered));
            answer.map_err(|failure| Failure::Unavailable(failure.to_string()))?;
        }
        let extended = self.listen_ports.extend(ports.iter().copied());
        extended.map_err(|error| Failure::Unavailable(error.to_string()))
    }

    /// Makes the threads reopen their access logs, whose files may have been renamed.
    pub fn reopen_logs(&self) {
        self.log_reopen_requests.fetch_add(1, Ordering::Release);
        self.threads.probes().iter().for_each(Probe::wake);
    }

    /// Runs until a signal ends it, as [`Builder::run`] does. SIGHUP calls `reload` and reopens the
    /// access logs; without `reload` and log file it ends the stack, as it does if the terminal is
    /// closed.
    ///
    /// # Errors
    /// Fails if a thread has panicked.
    pub fn run(
        self,
        mut signals: Signals,
        mut reload: Option<&mut dyn FnMut(&Self)>,
    ) -> Result<(), Failure> {
        supervisor::notify_ready();
        for signal in &mut signals {
            match signal {
                SIGUSR1 => self.reopen_logs(),
                SIGHUP if self.has_log_file || reload.is_some() => {
                    self.reopen_logs();
                    reload.iter_mut().for_each(|reload| reload(&self));
                }
                _ => break,
            }
        }
        supervisor::notify_stopping();
        self.drain(&signals);
        self.stop()
    }

    /// Stops accepting connections, and waits until none is left, the drain time is over, or
    /// another signal arrives.
    fn drain(&self, signals: &Signals) {
        self.threads.senders().iter().for_each(MessageSender::drain);
        if self.drain_time == Duration::ZERO {
            return;
        }
        let until = self.clock.now() + self.drain_time;
        let mut open = self.open_connections();
        if open > 0 {
            eprintln!("outboard: draining {open} connections; send another signal to reset them");
        }
        while open > 0 {
            let left = until.since(self.clock.now()).min(DRAIN_INTERVAL);
            let signal = if left == Duration::ZERO { break } else { signals.next_within(left) };
            match signal {
                // Logs may be rotated during a long drain.
                Some(SIGHUP | SIGUSR1) => self.reopen_logs(),
                None => {}
                Some(_) => break,
            }
            open = self.open_connections();
        }
        if open > 0 {
            eprintln!("outboard: resetting {open} connections");
        }
    }

    /// Waits until the connections that the application has closed are gone, at most for `limit`,
    /// and ends the threads. For clients, so that their peers receive the close.
    ///
    /// # Errors
    /// Fails if a thread has panicked.
    pub fn stop_when_closed(self, limit: Duration) -> Result<(), Failure> {
        let until = self.clock.now() + limit;
        while self.open_connections() > 0 && self.clock.now() < until {
            io::clock::sleep(SETTLE_INTERVAL);
        }
        self.stop()
    }

    /// Ends the threads and resets connections, and writes the record, if there is one.
    ///
    /// # Errors
    /// Fails if a thread has panicked, or the record cannot be written.
    pub fn stop(mut self) -> Result<(), Failure> {
        self.threads.stop()?;
        self.record.take().map_or(Ok(()), RunRecord::write)
    }

    fn open_connections(&self) -> u64 {
        control::sum_host_counters(self.threads.probes(), &OPEN_CONNECTION_GAUGES)
    }
}
