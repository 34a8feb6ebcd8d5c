//! XDP programs with one verdict for all frames.
//!
//! Called by benchmarks, to compare a link with the least that the kernel does for the same frames.

use super::attach::{self, XdpMode};
use super::program::{self, XDP_DROP, XDP_TX};
use crate::bpf::BpfAttachment;
use crate::interface::InterfaceControl;
use crate::open_error::{LinkKind, OpenLinkError};

/// Verdict on all frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FixedVerdict {
    /// Drop.
    Drop,
    /// Transmit on the interface that has received the frame.
    Transmit,
}

/// An attached program. It ends when this is dropped.
#[derive(Debug)]
pub struct FixedProgram {
    _attachment: BpfAttachment,
}

impl FixedProgram {
    /// Attaches a program to an interface, in its driver.
    ///
    /// # Errors
    /// As [`OpenLinkError`] lists them.
    pub fn attach(interface: &str, verdict: FixedVerdict) -> Result<Self, OpenLinkError> {
        let control = InterfaceControl::new(LinkKind::Xdp, interface)?;
        let action = match verdict {
            FixedVerdict::Drop => XDP_DROP,
            FixedVerdict::Transmit => XDP_TX,
        };
        let (program, _) = attach::load(&program::assemble_fixed(action), false);
        let program = program.map_err(control.error("load a program for"))?;
        let attachment = attach::attach(&program, control.index()?, XdpMode::Native)
            .map_err(control.error("attach an XDP program to"))?;
        Ok(Self { _attachment: attachment })
    }
}
