//! The device's listener for sessions over Ethernet.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::io::{ErrorKind, Result as IoResult};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abi::PacketPool;
use abi::link::TxFrame;
use base::Instant;
use cli::Failure;
use io::carrier_socket::{CarrierSocket, CarrierSockets};
use node::ethernet::{CarrierFrameKind, SessionIdentity, SessionRole, UnknownFrame};

use super::ethernet_channel::{EthernetChannel, listener_conditions};
use crate::listener::KernelListener;

/// Ended sessions that are remembered, so that a frame that was delayed does not open one again.
const ENDED_MAX: usize = 64;

/// Link addresses of a program with the number of its session.
type SessionKey = ([u8; 6], u64);

/// Sessions of a device.
#[derive(Debug, Default)]
struct SessionTable {
    active: BTreeSet<SessionKey>,
    ended: VecDeque<SessionKey>,
}

/// The table, for all ends of sessions.
type SharedSessions = Arc<Mutex<SessionTable>>;

fn lock(sessions: &SharedSessions) -> MutexGuard<'_, SessionTable> {
    sessions.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An entry in the table of sessions, which ends with it.
#[derive(Debug)]
pub(super) struct SessionRegistration {
    sessions: SharedSessions,
    key: SessionKey,
}

impl SessionRegistration {
    /// Registers a session; `None` if it is known already.
    fn new(sessions: &SharedSessions, key: SessionKey) -> Option<Self> {
        let mut table = lock(sessions);
        if table.ended.contains(&key) || !table.active.insert(key) {
            return None;
        }
        Some(Self { sessions: Arc::clone(sessions), key })
    }
}

impl Drop for SessionRegistration {
    fn drop(&mut self) {
        let mut table = lock(&self.sessions);
        table.active.remove(&self.key);
        table.ended.truncate(ENDED_MAX - 1);
        table.ended.push_front(self.key);
    }
}

/// Accepts sessions on an interface.
pub(crate) struct EthernetListener {
    sockets: Arc<CarrierSockets>,
    socket: RefCell<CarrierSocket>,
    pool: RefCell<PacketPool>,
    sessions: SharedSessions,
}

impl EthernetListener {
    /// Opens an interface for up to this many programs at a time.
    ///
    /// # Errors
    /// If the interface cannot be opened; the message says what to do.
    pub(crate) fn open(interface: &str, programs_max: usize) -> Result<Self, Failure> {
        // One more for the listener, and one for a program that is about to be refused.
        let sockets = super::open_sockets(interface, programs_max + 2)?;
        let failed = |e| Failure::System(format!("cannot listen on {interface}: {e}"));
        let socket = sockets.take(&listener_conditions(sockets.mac())).map_err(failed)?;
        let Some(socket) = socket else { unreachable!("none of the sockets is in use") };
        let (socket, pool) = (RefCell::new(socket), RefCell::new(PacketPool::new(1)));
        Ok(Self { sockets, socket, pool, sessions: SharedSessions::default() })
    }

    /// Returns the link address that programs attach to.
    pub(crate) fn mac(&self) -> [u8; 6] {
        self.sockets.mac()
    }

    /// Opens the session of a frame, or answers it. Returns `None` if it opens none.
    fn handle(&self, bytes: &[u8]) -> Option<EthernetChannel> {
        let frame = UnknownFrame::parse(bytes)?;
        let SessionIdentity { peer, session, .. } = frame.identity;
        match frame.kind {
            CarrierFrameKind::Open => {
                let entry = SessionRegistration::new(&self.sessions, (peer, session))?;
                let (role, identity) = (SessionRole::Device, frame.identity);
                let opened = EthernetChannel::new(role, identity, &self.sockets, Some(entry));
                match opened {
                    Ok(mut channel) => {
                        channel.handle_frame(bytes);
                        return Some(channel);
                    }
                    Err(error) => {
                        eprintln!("outboard: refusing a program: {error}");
                        self.send(frame.refusal());
                    }
                }
            }
            CarrierFrameKind::Probe if !lock(&self.sessions).active.contains(&(peer, session)) => {
                // It is from the time before this process.
                self.send(frame.refusal());
            }
            _ => {}
        }
        None
    }

    fn send(&self, mut frame: TxFrame) {
        let mut socket = self.socket.borrow_mut();
        let _sent = socket.transmit(Instant::ZERO, &mut frame);
        socket.flush(Instant::ZERO);
    }
}

impl AsRawFd for EthernetListener {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.borrow().fd()
    }
}

impl KernelListener for EthernetListener {
    type ClientStream = EthernetChannel;

    fn set_nonblocking(&self) -> IoResult<()> {
        Ok(())
    }

    fn accept(&self) -> IoResult<EthernetChannel> {
        loop {
            let mut pool = self.pool.borrow_mut();
            let received = self.socket.borrow_mut().receive(Instant::ZERO, &mut pool);
            let Some(frame) = received else { return Err(ErrorKind::WouldBlock.into()) };
            let opened = self.handle(frame.packet.as_slice());
            pool.put(frame.packet);
            if let Some(channel) = opened {
                return Ok(channel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session is opened once, also by a frame that arrives after its end.
    #[test]
    fn a_session_is_registered_once() {
        let sessions = SharedSessions::default();
        let key = |session| ([2, 0, 0, 0, 0, 1], session);
        let entry = SessionRegistration::new(&sessions, key(1)).unwrap();
        assert!(SessionRegistration::new(&sessions, key(1)).is_none());
        drop(entry);
        assert!(SessionRegistration::new(&sessions, key(1)).is_none(), "it has ended");
        for session in 2..200 {
            assert!(SessionRegistration::new(&sessions, key(session)).is_some());
        }
        let table = lock(&sessions);
        assert_eq!((table.active.len(), table.ended.len()), (0, ENDED_MAX));
    }
}
