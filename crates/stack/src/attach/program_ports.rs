//! The program and the disk of a function of a device process.

use abi::attach::{AddressClaim, AttachRefusal};
use abi::disk::{DiskCompletion, DiskRequest};
use abi::{Event, Op, PacketBuf, PacketPool};
use base::Instant;
use io::disk::Disk;
use node::remote::RemoteDeviceEnd;
use node::{DiskPort, FunctionPorts};

use super::acceptor::FunctionClaim;
use super::attachment::AttachedEnd;
use super::channel::AttachedChannel;
use crate::record::RunRecorder;

/// A program that is attached to a function, and the disk of its root.
pub(crate) struct ProgramPorts {
    pub(crate) attached: AttachedEnd<RemoteDeviceEnd<AttachedChannel>>,
    pub(crate) claim: FunctionClaim,
    pub(crate) disk: Box<dyn Disk>,
    /// Start of the turn, which is the time of its entries in the record.
    pub(crate) turn_at: Instant,
    pub(crate) recorder: RunRecorder,
}

impl DiskPort for ProgramPorts {
    fn submit(&mut self, _: Instant, request: DiskRequest) -> Result<(), DiskRequest> {
        self.disk.submit(request)
    }

    fn flush(&mut self) {
        self.disk.flush();
    }

    fn poll(&mut self, _: Instant) -> Option<DiskCompletion> {
        self.disk.poll()
    }
}

impl FunctionPorts for ProgramPorts {
    fn pop_op(&mut self, pool: &mut PacketPool) -> Option<Op> {
        self.recorder.record_op(self.turn_at, self.attached.end().pop_op(pool))
    }

    fn pop_recycled(&mut self) -> Option<PacketBuf> {
        self.attached.end().pop_recycled()
    }

    fn push_event(&mut self, event: Event) -> Result<(), Event> {
        let item = self.recorder.describe_event(&event);
        self.attached.end().push_event(event)?;
        self.recorder.record_event(self.turn_at, item);
        Ok(())
    }

    fn wake_host(&mut self) {
        self.attached.end().publish();
    }

    fn extend_claim(&mut self, claim: &AddressClaim) -> Result<(), AttachRefusal> {
        self.claim.extend(claim)
    }
}
