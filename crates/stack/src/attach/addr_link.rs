//! The attachment of a program that waits for automatic addresses, before it has a host.
//!
//! Used by [`crate::network`] instead of a link, and left for another one when the addresses are
//! known: the host's names a root, and has a queue. It claims each address before it passes frames
//! from there.

use abi::attach::{AddressClaim, AttachRequest, PortClaim};
use abi::{Checksum, Event, Op};
use base::Duration;
use cli::Failure;
use host::{AutoAddrFrame, NetworkAddrs};
use io::notify::Poller;

use super::NicAddress;
use super::program::ProgramCarrier;
use super::program_devices::ProgramDevices;
use crate::record::RunRecorder;
use crate::threads::{CarrierSleeper, HostCarrier, SleepingCarrier};

/// An attachment for the messages that assign addresses.
pub(crate) struct AttachedAddrLink {
    /// Link address of the device.
    pub(crate) mac: [u8; 6],
    /// Largest IP packet in bytes.
    pub(crate) mtu: u16,
    carrier: ProgramCarrier,
    claim: AddressClaim,
}

impl AttachedAddrLink {
    /// Attaches to a device, with the addresses that are known.
    ///
    /// # Errors
    /// If no device takes the program.
    pub(crate) fn attach(nic: &NicAddress, known: &NetworkAddrs) -> Result<Self, Failure> {
        let addrs = known.addrs.iter().map(|cidr| cidr.addr).collect();
        let claim = AddressClaim { automatic: true, ..AddressClaim::new(addrs, PortClaim::All) };
        let devices = ProgramDevices::open(nic, 1)?;
        let request = AttachRequest { root: None, claim: claim.clone(), outgoing: None };
        let (grant, carrier) = ProgramCarrier::attach(&devices, request, RunRecorder(None))?;
        Ok(Self { mac: grant.capabilities.mac, mtu: grant.capabilities.mtu, carrier, claim })
    }

    /// Calls `f` with each received frame.
    pub(crate) fn receive(&mut self, mut f: impl FnMut(&[u8], Checksum)) {
        self.carrier.follow_device();
        while let Some(event) = self.carrier.pop_event() {
            if let Event::Received(received) = event {
                f(received.packet.as_slice(), received.checksum);
                self.carrier.push_recycled(received.packet);
            }
        }
    }

    /// Claims the addresses in effect, from which the next frames may be.
    pub(crate) fn claim(&mut self, network: &NetworkAddrs) {
        let addrs = network.addrs.iter().map(|cidr| cidr.addr);
        let Some(claim) = self.claim.with_addrs(addrs) else { return };
        if self.carrier.has_op_room() {
            self.carrier.push_op(Op::ExtendClaim(Box::new(claim.clone())));
            self.claim = claim;
        }
    }

    /// Sends a frame. If there is no device, or no room, it is lost, and sent again later.
    pub(crate) fn send(&mut self, frame: AutoAddrFrame) {
        if self.carrier.has_op_room() {
            self.carrier.push_op(Op::Transmit(frame.into_transmit()));
        }
    }

    /// Sleeps until the device has something to receive, at most for `limit`.
    pub(crate) fn sleep(&mut self, poller: &mut Poller, limit: Duration) {
        self.carrier.wake_device();
        poller.clear();
        self.carrier.sleeper().register(poller);
        self.carrier.sleeper().prepare_sleep();
        let limit = self.carrier.sleep_limit().map_or(limit, |own| own.min(limit));
        // An error means that the kernel is out of memory: the loop continues without sleep.
        let woken = !self.carrier.has_work() && poller.wait(Some(limit)).is_ok();
        self.carrier.sleeper().finish_sleep(woken.then_some(&*poller));
    }
}
