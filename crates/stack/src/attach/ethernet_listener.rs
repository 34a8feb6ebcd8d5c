//! The device's listener for sessions over Ethernet.

use std::cell::RefCell;
use std::io::{ErrorKind, Result as IoResult};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use abi::PacketPool;
use abi::link::TxFrame;
use base::Instant;
use cli::Failure;
use io::carrier_socket::{CarrierSocket, CarrierSockets};
use node::ethernet::{CarrierFrameKind, SessionIdentity, SessionRole, UnknownFrame};

use super::ethernet_channel::{EthernetChannel, listener_conditions};
use super::ethernet_sessions::{SessionRegistration, SharedSessions, is_active};
use super::waiting_programs::WAITING_STATIONS_MAX;
use crate::listener::KernelListener;

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
        // For the listener, and for a program that takes the place of one that waits.
        let others = 1 + WAITING_STATIONS_MAX + 1;
        let sockets = super::open_sockets(interface, programs_max + others)?;
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
            CarrierFrameKind::Probe if !is_active(&self.sessions, (peer, session)) => {
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
