//! `outboard get`: fetches URLs over HTTP/1.1, HTTPS or HTTP/3 on a stack of its own.
//!
//! The stack's host threads receive ([`session`]); the main thread looks names up, writes files
//! ([`part_file`]) and reports how much it has written, which bounds the memory. Options and exit
//! codes are those of curl, if curl has them.

pub(crate) mod args;
mod part_file;
mod session;
mod transfer;

use std::collections::VecDeque;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};

use apps::get::{GetError, GetEvent, GetOrder, GetTransport, GetUrl};
use base::Duration;
use io::clock::MonotonicClock;
use serde_json::{Value, json};
use stack::Signals;

use self::args::GetArgs;
use crate::interrupt::Interrupt;
use crate::progress::ProgressLine;
use crate::tls::{self, ServerTrust, TrustedRoots};
use cli::Failure;
use session::{GetMessage, GetSenders};
use transfer::{GetOutput, RESOLVE_ERROR, TIMEOUT, TOO_MANY_REDIRECTS, Transfer};

/// Maximum number of redirects that are followed.
const REDIRECTS_MAX: u8 = 20;
/// Longest time at the end for the connections to close.
const END_WAIT: Duration = Duration::from_secs(3);
/// Interval at which the states of stalled transfers are saved.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit if the user has set none: longer than any transfer.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Runs `outboard get`.
///
/// # Errors
/// Returns the failure of the first URL that failed, with curl's exit code, or that of the stack.
pub(crate) fn run(args: &GetArgs) -> Result<(), Failure> {
    // Before anything is opened, so that no signal is lost.
    let signals = Signals::take()?;
    let transfers = transfers(args)?;
    let trust = match transfers.iter().any(|t| t.url.is_https) || args.location {
        true => Some(ServerTrust::new(match &args.cacert {
            _ if args.insecure => TrustedRoots::Any,
            Some(file) => TrustedRoots::File(file),
            None => TrustedRoots::System,
        })?),
        false => None,
    };
    let mut args = args.clone();
    let network = args.stack.wait_for_addrs(&signals)?;
    let args = &args;
    let (stack, senders, events) = session::start(args, network)?;
    let interrupt = Interrupt::default();
    interrupt.watch(signals, senders.all(), || GetMessage::Stop)?;
    let clock = MonotonicClock::new();
    let progress = match args.silent {
        true => ProgressLine::hidden(),
        false => ProgressLine::new(None, "bytes"),
    };
    let mut run = GetRun {
        args,
        clock,
        trust,
        senders,
        transfers,
        waiting: VecDeque::new(),
        open: 0,
        progress,
        failure: None,
    };
    let all = run.receive(&events).map_err(|failure| interrupt.or(failure));
    if let Err(failure) = &all {
        run.end_all(failure);
    }
    let counters = stack.counters();
    run.senders.stop();
    let stopped = stack.stop_when_closed(END_WAIT);
    if args.json {
        println!("{:#}", report(&run.transfers, counters));
    }
    drop(run.progress);
    all?;
    stopped?;
    run.failure.map_or(Ok(()), Err)
}

/// Returns the transfers of the command line.
fn transfers(args: &GetArgs) -> Result<Vec<Transfer>, Failure> {
    let usage = |line: &str| Err(Failure::Usage(line.to_owned()));
    let to_stdout = args.output.is_empty() && !args.remote_name;
    if !args.output.is_empty() && args.output.len() != args.urls.len() {
        return usage("specify one --output for each URL");
    }
    if args.sha256.is_some() && args.urls.len() != 1 {
        return usage("--sha256 can be used with one URL only");
    }
    if to_stdout && args.json {
        return usage(
            "--json cannot be used with content on standard output; specify a file with --output",
        );
    }
    if to_stdout && args.continues() {
        return usage("--continue needs a file; specify it with --output or --remote-name");
    }
    if args.http3_only && !args.urls.iter().all(|url| url.is_https) {
        return usage("--http3-only needs URLs of https");
    }
    let mut files = Vec::new();
    let mut all = Vec::new();
    for (at, url) in args.urls.iter().enumerate() {
        let file = match args.output.get(at) {
            Some(file) if file.as_os_str() == "-" => None,
            Some(file) => Some(file.clone()),
            None if args.remote_name => {
                let name = url.file_name().map(PathBuf::from);
                Some(name.ok_or_else(|| {
                    Failure::Usage(format!("{url}: no file name in the URL; use --output"))
                })?)
            }
            None => None,
        };
        if file.is_some() && files.contains(&file) {
            return usage("two URLs have the same output file");
        }
        files.push(file.clone());
        all.push(Transfer::new(url.clone(), file));
    }
    Ok(all)
}

/// The main thread's state.
struct GetRun<'a> {
    args: &'a GetArgs,
    clock: MonotonicClock,
    trust: Option<Arc<ServerTrust>>,
    senders: GetSenders,
    transfers: Vec<Transfer>,
    /// Transfers that were not begun.
    waiting: VecDeque<usize>,
    /// Number of transfers in progress.
    open: usize,
    progress: ProgressLine,
    /// The first failure.
    failure: Option<Failure>,
}

impl GetRun<'_> {
    /// Fetches all URLs.
    ///
    /// # Errors
    /// Fails if the time is over, or a signal or a panic has ended the host thread. Failures of
    /// single URLs are kept.
    fn receive(&mut self, events: &Receiver<GetEvent>) -> Result<(), Failure> {
        let limit = self.args.max_time.map_or(FOREVER, |s| Duration::from_secs(s.into()));
        let end = self.clock.now() + limit;
        self.waiting = (0..self.transfers.len()).collect();
        loop {
            while self.open < self.transfers_max() {
                let Some(at) = self.waiting.pop_front() else { break };
                self.start(at);
            }
            if self.open == 0 {
                return Ok(());
            }
            let left = end.since(self.clock.now());
            let wait = std::time::Duration::from_micros(left.min(SAVE_INTERVAL).as_micros());
            match events.recv_timeout(wait) {
                Ok(event) if left > Duration::ZERO => self.handle_event(event),
                Err(RecvTimeoutError::Timeout) if left > Duration::ZERO => self.save(),
                Ok(_) => return Err(self.give_up(RecvTimeoutError::Timeout)),
                Err(error) => return Err(self.give_up(error)),
            }
        }
    }

    /// Saves the states of files whose transfers have stalled.
    fn save(&mut self) {
        let now = self.clock.now();
        for at in 0..self.transfers.len() {
            let saved = self.transfers.get_mut(at).map(|transfer| transfer.save(now));
            if let Some(Err(failure)) = saved {
                let id = u32::try_from(at).unwrap_or(u32::MAX);
                self.senders.send(id, GetMessage::Cancel(id));
                self.end(at, Err(failure));
            }
        }
    }

    /// Keeps the files of incomplete transfers; returns the failure.
    fn give_up(&mut self, error: RecvTimeoutError) -> Failure {
        self.transfers.iter_mut().for_each(|transfer| transfer.abandon(true));
        match error {
            RecvTimeoutError::Timeout => {
                let limit = self.args.max_time.unwrap_or_default();
                Failure::Transfer(TIMEOUT, format!("not complete after {limit} s"))
            }
            // After a signal, which is the failure that is reported.
            RecvTimeoutError::Disconnected => {
                Failure::System("host thread ended unexpectedly".to_owned())
            }
        }
    }

    /// Notes the failure that has ended all transfers in progress, and those that were not begun.
    fn end_all(&mut self, failure: &Failure) {
        let now = self.clock.now();
        for transfer in self.transfers.iter_mut().filter(|transfer| !transfer.has_ended()) {
            transfer.end(now, Some(failure));
        }
    }

    /// Returns the number of URLs that are fetched at a time. Content for standard output must stay
    /// in order.
    fn transfers_max(&self) -> usize {
        let has_stream = self.transfers.iter().any(|transfer| transfer.file.is_none());
        if has_stream { 1 } else { usize::from(self.args.parallel).min(self.transfers.len()) }
    }

    /// Starts a transfer, or notes that it failed.
    fn start(&mut self, at: usize) {
        self.open += 1;
        let started = self.begin(at);
        if let Err(failure) = started {
            self.end(at, Err(failure));
        } else if self.is_complete(at) {
            let result = self.complete(at);
            self.end(at, result);
        }
    }

    /// Opens the file of a transfer, looks its host up and sends the order for it.
    fn begin(&mut self, at: usize) -> Result<(), Failure> {
        let (now, continues) = (self.clock.now(), self.args.continues());
        let parts_max = usize::from(self.args.parallel) / self.transfers_max();
        let Some(transfer) = self.transfers.get_mut(at) else { return Ok(()) };
        if transfer.output.is_none() {
            transfer.begun = now;
            let file = transfer.file.as_deref();
            transfer.output = Some(GetOutput::open(file, &transfer.asked, continues)?);
        }
        let resume = match &transfer.output {
            Some(GetOutput::File(file)) => file.resume_point(),
            _ => None,
        };
        if resume.as_ref().is_some_and(|resume| resume.missing.is_empty()) {
            return Ok(());
        }
        let url = transfer.url.clone();
        transfer.trust = self.trust.as_ref().filter(|_| url.is_https).map(|trust| trust.another());
        let transport = match &transfer.trust {
            None => GetTransport::Plain,
            Some(trust) if self.args.http3_only => {
                GetTransport::Http3(tls::http_client(trust, &url.host, true)?)
            }
            Some(trust) => GetTransport::Tls(tls::http_client(trust, &url.host, false)?),
        };
        let parts_max = match transfer.output {
            Some(GetOutput::File(_)) => parts_max.max(1),
            _ => 1,
        };
        let addrs = self.resolve(&url)?;
        let id = u32::try_from(at).unwrap_or(u32::MAX);
        let order = GetOrder { id, url, addrs, transport, parts_max, resume };
        self.senders.send(id, GetMessage::Start(Box::new(order)));
        Ok(())
    }

    /// Returns whether an earlier run has received everything.
    fn is_complete(&self, at: usize) -> bool {
        match self.transfers.get(at).and_then(|transfer| transfer.output.as_ref()) {
            Some(GetOutput::File(file)) => {
                file.resume_point().is_some_and(|resume| resume.missing.is_empty())
            }
            _ => false,
        }
    }

    /// Returns the addresses of a URL's host that our addresses can reach.
    fn resolve(&self, url: &GetUrl) -> Result<Vec<IpAddr>, Failure> {
        let set = self.args.resolve.iter().filter(|r| r.host == url.host && r.port == url.port);
        let mut addrs: Vec<IpAddr> = set.map(|r| r.addr).collect();
        if addrs.is_empty() {
            let found = (url.host.as_str(), url.port).to_socket_addrs().map_err(|e| {
                let line = format!("cannot resolve host {}: {e}", url.host);
                Failure::Transfer(RESOLVE_ERROR, line)
            })?;
            addrs = found.map(|addr| addr.ip()).collect();
        }
        let ours = self.args.stack.addrs();
        addrs.retain(|addr| ours.iter().any(|our| our.addr.is_ipv4() == addr.is_ipv4()));
        if addrs.is_empty() {
            let line = format!("cannot resolve host {}: no address of our families", url.host);
            return Err(Failure::Transfer(RESOLVE_ERROR, line));
        }
        Ok(addrs)
    }

    fn handle_event(&mut self, event: GetEvent) {
        let now = self.clock.now();
        let (GetEvent::Begun { id, .. }
        | GetEvent::Content { id, .. }
        | GetEvent::Ended { id, .. }) = event;
        let at = usize::try_from(id).unwrap_or(usize::MAX);
        // Events of a transfer that has failed here may still arrive.
        let Some(transfer) = self.transfers.get_mut(at).filter(|t| !t.has_ended()) else { return };
        let result = match event {
            GetEvent::Begun { length, validator, resumed, .. } => {
                let begun = transfer.begin(length, validator, resumed);
                self.count_length();
                begun
            }
            GetEvent::Content { offset, bytes, .. } => {
                let written = transfer.write(now, offset, &bytes);
                self.senders.send(id, GetMessage::Written(id, bytes.len()));
                let done = self.transfers.iter().map(|t| t.received + t.resumed).sum();
                self.progress.show(done);
                written
            }
            GetEvent::Ended { result, .. } => {
                self.handle_end(at, result);
                return;
            }
        };
        if let Err(failure) = result {
            self.senders.send(id, GetMessage::Cancel(id));
            self.end(at, Err(failure));
        }
    }

    /// Sets the expected number of bytes, if all lengths are known.
    fn count_length(&mut self) {
        let lengths = self.transfers.iter().map(|transfer| transfer.length);
        self.progress.set_all(lengths.sum());
    }

    /// Completes a transfer, follows a redirect, or notes the failure.
    fn handle_end(&mut self, at: usize, result: Result<(), GetError>) {
        let Some(transfer) = self.transfers.get_mut(at) else { return };
        match result {
            Ok(()) => {
                let result = self.complete(at);
                self.end(at, result);
            }
            Err(GetError::Redirected { location: Some(to) }) if self.args.location => {
                transfer.redirects += 1;
                let result = match transfer.url.join(&to) {
                    _ if transfer.redirects > REDIRECTS_MAX => {
                        let line = format!("{}: too many redirects", transfer.asked);
                        Err(Failure::Transfer(TOO_MANY_REDIRECTS, line))
                    }
                    Ok(url) if self.args.http3_only && !url.is_https => {
                        let line = format!("{}: redirected to {url}, not https", transfer.url);
                        Err(Failure::Transfer(1, line))
                    }
                    Ok(url) => {
                        transfer.url = url;
                        self.begin(at)
                    }
                    Err(why) => {
                        let line = format!("{}: redirected to an URL: {why}", transfer.url);
                        Err(Failure::Transfer(3, line))
                    }
                };
                if let Err(failure) = result {
                    self.end(at, Err(failure));
                }
            }
            Err(error) => {
                let mut failure = transfer.failure(&error);
                if let (GetError::Redirected { location: Some(_) }, Failure::Transfer(_, line)) =
                    (&error, &mut failure)
                {
                    line.push_str("; follow with --location");
                }
                transfer.abandon(error.keeps_content());
                self.end(at, Err(failure));
            }
        }
    }

    fn complete(&mut self, at: usize) -> Result<(), Failure> {
        let sha256 = self.args.sha256;
        self.transfers.get_mut(at).map_or(Ok(()), |transfer| transfer.complete(sha256))
    }

    /// Notes the end of a transfer. The first failure is returned at the end, others are printed.
    fn end(&mut self, at: usize, result: Result<(), Failure>) {
        let now = self.clock.now();
        self.open -= 1;
        let Some(transfer) = self.transfers.get_mut(at) else { return };
        if result.is_err() {
            transfer.abandon(true);
        }
        transfer.end(now, result.as_ref().err());
        match (result, &self.failure) {
            (Err(failure), None) => self.failure = Some(failure),
            (Err(failure), Some(_)) => eprintln!("outboard: {failure}"),
            (Ok(()), _) => {}
        }
    }
}

/// Returns the report of `--json`: the transfers, the work that the device did, and all counters.
fn report(transfers: &[Transfer], counters: Value) -> Value {
    let sum = |name: &str| {
        let parts = counters.as_object().into_iter().flat_map(|parts| parts.values());
        let queues = parts.filter_map(Value::as_object).flat_map(|queues| queues.values());
        queues.filter_map(|queue| queue.get(name)?.as_u64()).sum::<u64>()
    };
    json!({
        "transfers": transfers.iter().map(Transfer::report).collect::<Vec<_>>(),
        "offload": {
            "tls_records": sum("tls_rx_records"),
            "tls_records_decrypted_by_device": sum("tls_rx_records_full"),
            "quic_datagrams": sum("quic_in_datagrams"),
            "quic_datagrams_decrypted_by_device": sum("quic_in_opened"),
        },
        "counters": counters,
    })
}
