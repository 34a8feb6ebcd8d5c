//! Packet sockets of the Ethernet carrier: each receives the frames of one session.
//!
//! The sockets of an interface are opened at the start and kept ([`CarrierSockets`]), so that a
//! process that has given up its privileges still begins sessions: a socket without a session
//! accepts nothing, and begins one with another filter. [`crate::packet_socket`] opens them;
//! [`crate::vnet`] moves the frames. The format of the frames is the caller's, who names the bytes
//! by which the kernel selects them ([`FrameCondition`]).

use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use abi::PacketPool;
use abi::link::{LinkTxStatus, RxFrame, TxFrame};
use base::Instant;

use crate::interface::InterfaceControl;
use crate::link::Link;
use crate::open_error::{LinkKind, OpenLinkError};
use crate::packet_socket::{
    JUMP_IF_EQUAL, LOAD_BYTE, RETURN, attach_filter, instruction, open_socket,
};
use crate::vnet::{LinkOffloads, VnetLink};

/// Most stale frames that a socket may have when a session begins: more than its ring has.
const STALE_FRAMES_MAX: usize = 1 << 16;

/// Bytes by which the kernel selects frames.
#[derive(Clone, Debug)]
pub struct FrameCondition {
    /// Offset from the start of the Ethernet frame.
    pub offset: u32,
    /// The byte at the offset has one of these values, at least one and at most 100.
    pub one_of: Vec<u8>,
}

impl FrameCondition {
    /// Returns conditions for consecutive bytes from an offset on.
    pub fn bytes(offset: u32, bytes: &[u8]) -> impl Iterator<Item = Self> {
        (offset..).zip(bytes).map(|(offset, &byte)| Self { offset, one_of: vec![byte] })
    }
}

/// The sockets of an interface.
#[derive(Debug)]
pub struct CarrierSockets {
    interface: String,
    mac: [u8; 6],
    mtu: u16,
    free: Mutex<Vec<VnetLink>>,
}

impl CarrierSockets {
    /// Opens a number of sockets for frames of an EtherType to the address of an interface, which
    /// is set up.
    ///
    /// # Errors
    /// As [`OpenLinkError`] lists them.
    pub fn open(
        interface: &str,
        ether_type: u16,
        sockets: usize,
    ) -> Result<Arc<Self>, OpenLinkError> {
        let control = InterfaceControl::new(LinkKind::PacketSocket, interface)?;
        let (index, mac) = (control.index()?, control.ethernet_address()?);
        control.set_flags(libc::IFF_UP)?;
        let mtu = control.mtu()?;
        let offloads = LinkOffloads { tcp: false, udp: false };
        let open = |_| {
            let opened = open_socket(index, ether_type.into(), &nothing(), |_| Ok(()));
            let (socket, queues) = opened.map_err(control.error("receive from"))?;
            let link = VnetLink::new(socket, interface, mtu, offloads);
            Ok(link.with_packet_queues(queues))
        };
        let free = (0..sockets).map(open).collect::<Result<_, OpenLinkError>>()?;
        Ok(Arc::new(Self { interface: interface.to_owned(), mac, mtu, free: Mutex::new(free) }))
    }

    /// Returns the name of the interface.
    #[must_use]
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Returns the link address of the interface.
    #[must_use]
    pub const fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Returns the MTU of the interface when it was opened.
    #[must_use]
    pub const fn mtu(&self) -> u16 {
        self.mtu
    }

    /// Takes a socket for the frames that satisfy all conditions; `None` if all sockets are in use.
    ///
    /// # Errors
    /// If the kernel refuses the filter.
    pub fn take(
        self: &Arc<Self>,
        conditions: &[FrameCondition],
    ) -> std::io::Result<Option<CarrierSocket>> {
        let Some(mut link) = self.lock().pop() else { return Ok(None) };
        // Frames of a former session.
        let mut pool = PacketPool::new(1);
        for _ in 0..STALE_FRAMES_MAX {
            let Some(stale) = link.receive(Instant::ZERO, &mut pool) else { break };
            pool.put(stale.packet);
        }
        let attached = attach_filter(&link, &program(conditions));
        let socket = CarrierSocket { link: Some(link), sockets: Arc::clone(self) };
        attached.map(|()| Some(socket))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<VnetLink>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A socket of a session. Dropping it makes it available to another session.
#[derive(Debug)]
pub struct CarrierSocket {
    /// `None` only while it is dropped.
    link: Option<VnetLink>,
    sockets: Arc<CarrierSockets>,
}

impl CarrierSocket {
    /// Returns the descriptor that polls readable while frames wait.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.link.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Sends a frame; see [`Link::transmit`].
    pub fn transmit(&mut self, now: Instant, frame: &mut TxFrame) -> LinkTxStatus {
        let link = self.link.as_mut();
        link.map_or(LinkTxStatus::Failed, |link| link.transmit(now, frame))
    }

    /// See [`Link::flush`].
    pub fn flush(&mut self, now: Instant) -> bool {
        self.link.as_mut().is_none_or(|link| link.flush(now))
    }

    /// Returns the next received frame.
    pub fn receive(&mut self, now: Instant, pool: &mut PacketPool) -> Option<RxFrame> {
        self.link.as_mut()?.receive(now, pool)
    }
}

impl Drop for CarrierSocket {
    fn drop(&mut self) {
        let Some(mut link) = self.link.take() else { return };
        link.flush(Instant::ZERO);
        // If that fails, the next session discards more stale frames.
        let _ = attach_filter(&link, &nothing());
        self.sockets.lock().push(link);
    }
}

/// Returns a program that accepts no frame.
const fn nothing() -> [libc::sock_filter; 1] {
    [instruction(RETURN, 0, 0, 0)]
}

/// Returns a program that accepts the frames that satisfy all conditions.
fn program(conditions: &[FrameCondition]) -> Vec<libc::sock_filter> {
    let mut program = Vec::new();
    for FrameCondition { offset, one_of } in conditions {
        program.push(instruction(LOAD_BYTE, *offset, 0, 0));
        for (left, &value) in (0..one_of.len()).rev().zip(one_of) {
            // Past the remaining values and the refusal after them.
            let matched = u8::try_from(left + 1).unwrap_or(u8::MAX);
            program.push(instruction(JUMP_IF_EQUAL, value.into(), matched, 0));
        }
        program.push(instruction(RETURN, 0, 0, 0));
    }
    program.push(instruction(RETURN, u32::MAX, 0, 0));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program on a frame, as the kernel does.
    fn accepts(program: &[libc::sock_filter], frame: &[u8]) -> bool {
        let (mut at, mut loaded) = (0, 0);
        loop {
            let step = program[at];
            at += 1;
            match step.code {
                LOAD_BYTE => match frame.get(step.k as usize) {
                    Some(&byte) => loaded = u32::from(byte),
                    None => return false,
                },
                JUMP_IF_EQUAL if loaded == step.k => at += usize::from(step.jt),
                JUMP_IF_EQUAL => at += usize::from(step.jf),
                RETURN => return step.k > 0,
                code => panic!("{code}"),
            }
        }
    }

    #[test]
    fn frames_are_selected_by_their_bytes() {
        let mut conditions: Vec<_> = FrameCondition::bytes(2, &[7, 8]).collect();
        conditions.push(FrameCondition { offset: 5, one_of: vec![1, 3] });
        let program = program(&conditions);
        for (frame, expected) in [
            (&[0, 0, 7, 8, 0, 1][..], true),
            (&[9, 9, 7, 8, 9, 3, 9], true),
            (&[0, 0, 7, 8, 0, 2], false),
            (&[0, 0, 7, 9, 0, 1], false),
            (&[0, 0, 6, 8, 0, 1], false),
            (&[0, 0, 7, 8, 0], false),
        ] {
            assert_eq!(accepts(&program, frame), expected, "{frame:?}");
        }
        assert!(!accepts(&nothing(), &[1; 100]));
    }
}
