//! Programs that have connected to a device process, and are not attached yet.
//!
//! Used by the threads that accept programs (`acceptor.rs`). A program is served when its
//! request has arrived, so that one that says nothing delays no other one. A program that was
//! refused over Ethernet stays until it has the answer, because frames get lost.
//!
//! Invariants: the number of waiting programs is bounded (the oldest one gives way), and none waits
//! longer than [`WAITING_TIME_MAX`].

use std::sync::Arc;

use base::{Duration, Instant};
use io::clock::MonotonicClock;
use io::notify::Poller;

use super::handshake::ProgramConnection;
use crate::listener::ClientQueue;

/// Processes that may wait for their attachment. A request arrives with the connection, so only
/// those wait that are stopped or hostile.
pub(super) const WAITING_PROCESSES_MAX: usize = 16;
/// Programs of other machines that may wait, each with a packet socket.
pub(super) const WAITING_STATIONS_MAX: usize = 4;
/// Longest time from the connection to the request, and from a refusal to the end.
const WAITING_TIME_MAX: Duration = Duration::from_secs(2);

/// Accepts or refuses programs.
pub(super) trait ProgramService: Send + Sync {
    /// Accepts or refuses a program whose request has arrived. Returns it if it was refused and
    /// does not have the answer yet.
    fn serve(&self, program: ProgramConnection) -> Option<ProgramConnection>;

    /// Counts a program that was not accepted.
    fn count_refused(&self);
}

/// Reason for which a program waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitingFor {
    /// Its request has not arrived.
    Request,
    /// It was refused, and has not ended the session.
    End,
}

struct WaitingProgram {
    program: ProgramConnection,
    waiting_for: WaitingFor,
    until: Instant,
}

/// The programs that wait at one listener.
pub(super) struct WaitingPrograms {
    service: Arc<dyn ProgramService>,
    clock: MonotonicClock,
    waiting: Vec<WaitingProgram>,
    waiting_max: usize,
}

impl WaitingPrograms {
    /// Returns an empty queue for up to `waiting_max` programs.
    pub(super) fn new(service: Arc<dyn ProgramService>, waiting_max: usize) -> Self {
        Self { service, clock: MonotonicClock::new(), waiting: Vec::new(), waiting_max }
    }

    fn push(&mut self, program: ProgramConnection, waiting_for: WaitingFor) {
        if self.waiting.len() >= self.waiting_max {
            self.remove(0);
        }
        let until = self.clock.now() + WAITING_TIME_MAX;
        self.waiting.push(WaitingProgram { program, waiting_for, until });
    }

    /// Removes a program that is not served, and counts it unless it was refused before.
    fn remove(&mut self, index: usize) {
        if self.waiting.remove(index).waiting_for == WaitingFor::Request {
            self.service.count_refused();
        }
    }
}

impl<C: Into<ProgramConnection>> ClientQueue<C> for WaitingPrograms {
    fn add(&mut self, program: C) {
        self.push(program.into(), WaitingFor::Request);
    }

    fn advance(&mut self) {
        let mut index = 0;
        while let Some(WaitingProgram { program, waiting_for, until }) = self.waiting.get_mut(index)
        {
            match (program.has_message(), *waiting_for) {
                (Err(_), _) => self.remove(index),
                (Ok(true), WaitingFor::Request) => {
                    let program = self.waiting.remove(index).program;
                    if let Some(refused) = self.service.serve(program) {
                        self.push(refused, WaitingFor::End);
                    }
                }
                (Ok(_), _) if self.clock.now() >= *until => self.remove(index),
                (Ok(_), _) => index += 1,
            }
        }
    }

    fn register(&self, poller: &mut Poller) {
        for waiting in &self.waiting {
            poller.add(waiting.program.fd());
        }
    }

    fn sleep_limit(&self) -> Option<Duration> {
        let now = self.clock.now();
        let limits = self.waiting.iter().map(|waiting| {
            let left = waiting.until.since(now);
            waiting.program.sleep_limit().map_or(left, |limit| limit.min(left))
        });
        limits.min()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::{UnixListener, UnixStream};

    use abi::attach::{AddressClaim, AttachRequest, PortClaim};
    use abi::{Capabilities, Refusal};
    use io::notify::Poller;

    use super::super::acceptor::{ProgramListeners, accept_programs};
    use super::super::handshake::attach_at_path;
    use super::super::received_addresses::ReceivedAddresses;
    use super::super::roots::ProgramRoots;
    use super::WAITING_PROCESSES_MAX;

    /// Programs that say nothing, or send a part of a request, delay no other one. If there are too
    /// many, the oldest ones are left.
    #[test]
    fn silent_programs_delay_no_other_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nic");
        let unix = Some(UnixListener::bind(&path).unwrap());
        let capabilities =
            Capabilities::without_engines([2, 0, 0, 0, 0, 1], 1500, 65_416, Refusal::Disabled);
        let roots = ProgramRoots::new(&[], Box::new(|_| unreachable!("no roots"))).unwrap();
        let listeners = ProgramListeners { unix, ethernet: None };
        let offers = (capabilities, ReceivedAddresses::Any);
        let (_threads, arrivals) = accept_programs(listeners, offers, roots, 2).unwrap();
        let connect = || UnixStream::connect(&path).unwrap();
        let mut silent: Vec<_> = (0..WAITING_PROCESSES_MAX).map(|_| connect()).collect();
        let claim = AddressClaim::new([[10, 0, 0, 1].into()].into(), PortClaim::All);
        let request = AttachRequest { root: None, claim, outgoing: None };
        assert!(attach_at_path(&path, &request, None).is_ok());
        // The program has its answer before the device's thread is notified.
        let mut poller = Poller::default();
        poller.add(arrivals.notifier().as_raw_fd());
        poller.wait(None).unwrap();
        assert!(arrivals.next().is_some());
        assert_eq!(arrivals.refused(), 1, "the oldest one gave way, and no other was waited for");
        assert_eq!(silent[0].read(&mut [0]).unwrap(), 0, "it was left");
        // A request that is not sent as a whole.
        silent[1].write_all(&[1, 0]).unwrap();
        assert_eq!(silent[1].read(&mut [0]).unwrap(), 0);
    }
}
