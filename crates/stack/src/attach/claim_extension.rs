//! Addition to a program's claim while it is attached, from the program's side.
//!
//! Another thread of the program asks for ports ([`crate::Stack::add_listen_ports`]), and waits for
//! the answer. The host thread's carrier ([`super::program`]) sends [`Op::ExtendClaim`] when there
//! is room, and answers when [`abi::Event::ClaimExtended`] arrives, or the device is lost: the next
//! one gets the claim that was granted last.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};

use abi::Op;
use abi::attach::{AddressClaim, AttachRefusal, PortClaim, PortRange};

/// Reason for which a claim is not extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ClaimFailure {
    /// The device refuses.
    #[error("the device refuses: {0}")]
    Refused(AttachRefusal),
    /// A claim has fewer ranges than these ports.
    #[error(
        "--share-address with {0} listening ports; at most {max} are possible",
        max = AddressClaim::RANGES_MAX
    )]
    TooManyPorts(usize),
    /// There is no device, or it was lost before it had answered.
    #[error("the device is gone")]
    NoDevice,
    /// The device has not answered in time, or not yet the request before.
    #[error("the device does not answer")]
    Unanswered,
}

/// Answer to the thread that asks for ports.
type ClaimAnswer = Result<(), ClaimFailure>;

/// Ports that a thread asks for.
#[derive(Debug)]
pub(crate) struct ClaimExtension {
    ports: Box<[u16]>,
    answer: Sender<ClaimAnswer>,
}

impl ClaimExtension {
    /// Creates a request, and the receiver of its answer.
    pub(crate) fn new(ports: &[u16]) -> (Self, Receiver<ClaimAnswer>) {
        let (answer, answered) = channel();
        (Self { ports: ports.into(), answer }, answered)
    }

    /// Answers the thread that has asked.
    pub(crate) fn finish(self, result: ClaimAnswer) {
        // The thread may have stopped waiting.
        let _ = self.answer.send(result);
    }
}

/// The claim of a program, and its extension.
#[derive(Debug)]
pub(super) struct ProgramClaim {
    granted: AddressClaim,
    extension: ExtensionState,
    /// Claims that the host has sent itself, for addresses that the network assigned, and that are
    /// not answered yet. Only programs with all ports have such addresses, and they ask for no
    /// ports.
    of_host: VecDeque<AddressClaim>,
}

/// Result of an answer about a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimAnswered {
    /// It is granted, or the thread that asked for ports knows that it is not.
    Settled,
    /// The host has addresses that the device refuses.
    HostRefused(AttachRefusal),
    /// The device was not asked.
    Unasked,
}

/// State of an extension.
#[derive(Debug)]
enum ExtensionState {
    /// There is none.
    Idle,
    /// The claim waits for room in the ring.
    Waiting(AddressClaim, ClaimExtension),
    /// The device was asked for the claim.
    Asked(AddressClaim, ClaimExtension),
}

impl ProgramClaim {
    pub(super) fn new(granted: AddressClaim) -> Self {
        Self { granted, extension: ExtensionState::Idle, of_host: VecDeque::new() }
    }

    /// Returns the claim that a device has granted last.
    pub(super) const fn granted(&self) -> &AddressClaim {
        &self.granted
    }

    /// Begins an extension, unless the program has its ports, or one is not answered yet.
    pub(super) fn begin(&mut self, extension: ClaimExtension) {
        match (&self.extension, with_ports(&self.granted, &extension.ports)) {
            (ExtensionState::Idle, Ok(None)) => extension.finish(Ok(())),
            (ExtensionState::Idle, Ok(Some(claim))) => {
                self.extension = ExtensionState::Waiting(claim, extension);
            }
            (ExtensionState::Idle, Err(failure)) => extension.finish(Err(failure)),
            (ExtensionState::Waiting(..) | ExtensionState::Asked(..), _) => {
                extension.finish(Err(ClaimFailure::Unanswered));
            }
        }
    }

    /// Returns whether [`Self::poll`] has an operation.
    pub(super) const fn is_waiting(&self) -> bool {
        matches!(self.extension, ExtensionState::Waiting(..))
    }

    /// Returns the operation for the device, which has room for it.
    pub(super) fn poll(&mut self) -> Option<Op> {
        match std::mem::replace(&mut self.extension, ExtensionState::Idle) {
            ExtensionState::Waiting(claim, extension) => {
                let op = Op::ExtendClaim(Box::new(claim.clone()));
                self.extension = ExtensionState::Asked(claim, extension);
                Some(op)
            }
            other => {
                self.extension = other;
                None
            }
        }
    }

    /// Notes a claim that the host sends itself.
    pub(super) fn note_claim_of_host(&mut self, claim: &AddressClaim) {
        self.of_host.push_back(claim.clone());
    }

    /// Handles the answer of the device.
    pub(super) fn handle_answer(&mut self, result: Result<(), AttachRefusal>) -> ClaimAnswered {
        if let Some(claim) = self.of_host.pop_front() {
            return match result {
                Ok(()) => {
                    self.granted = claim;
                    ClaimAnswered::Settled
                }
                Err(reason) => ClaimAnswered::HostRefused(reason),
            };
        }
        match std::mem::replace(&mut self.extension, ExtensionState::Idle) {
            ExtensionState::Asked(claim, extension) => {
                if result.is_ok() {
                    self.granted = claim;
                }
                extension.finish(result.map_err(ClaimFailure::Refused));
                ClaimAnswered::Settled
            }
            other => {
                self.extension = other;
                ClaimAnswered::Unasked
            }
        }
    }

    /// Handles the loss of the device. The host uses the addresses that it has claimed: the next
    /// device gets that claim.
    pub(super) fn handle_loss(&mut self) {
        if let Some(claim) = self.of_host.drain(..).next_back() {
            self.granted = claim;
        }
        match std::mem::replace(&mut self.extension, ExtensionState::Idle) {
            ExtensionState::Idle => {}
            ExtensionState::Waiting(_, extension) | ExtensionState::Asked(_, extension) => {
                extension.finish(Err(ClaimFailure::NoDevice));
            }
        }
    }
}

/// Returns a claim with further ports; `None` if it has them.
///
/// # Errors
/// If there are too many.
fn with_ports(claim: &AddressClaim, ports: &[u16]) -> Result<Option<AddressClaim>, ClaimFailure> {
    let (PortClaim::Listed(listed) | PortClaim::Shared(listed)) = &claim.ports else {
        return Ok(None);
    };
    let mut ranges = listed.to_vec();
    for &port in ports {
        if !ranges.iter().any(|range| range.contains(port)) {
            ranges.push(PortRange::of_port(port));
        }
    }
    if ranges.len() == listed.len() {
        return Ok(None);
    }
    if ranges.len() > AddressClaim::RANGES_MAX {
        return Err(ClaimFailure::TooManyPorts(ranges.len()));
    }
    let ports = match &claim.ports {
        PortClaim::Shared(_) => PortClaim::Shared(ranges.into()),
        PortClaim::All | PortClaim::Listed(_) => PortClaim::Listed(ranges.into()),
    };
    Ok(Some(AddressClaim { ports, ..claim.clone() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(ports: &[u16]) -> AddressClaim {
        let ranges = ports.iter().copied().map(PortRange::of_port).collect();
        AddressClaim::new([[10, 0, 0, 1].into()].into(), PortClaim::Listed(ranges))
    }

    #[test]
    fn the_device_answers() {
        let mut program = ProgramClaim::new(claim(&[80]));
        let unasked = program.handle_answer(Ok(()));
        assert_eq!(unasked, ClaimAnswered::Unasked, "an answer without a question");
        assert_eq!(program.granted(), &claim(&[80]));
        for (result, granted) in
            [(Err(AttachRefusal::Claimed), claim(&[80])), (Ok(()), claim(&[80, 81]))]
        {
            let (extension, answered) = ClaimExtension::new(&[80, 81, 81]);
            program.begin(extension);
            let unasked = program.handle_answer(Ok(()));
            assert_eq!(unasked, ClaimAnswered::Unasked, "the device was not asked yet");
            assert!(program.is_waiting());
            let Some(Op::ExtendClaim(asked)) = program.poll() else { panic!() };
            assert_eq!(*asked, claim(&[80, 81]));
            assert!(program.poll().is_none() && !program.is_waiting());
            let (early, refused) = ClaimExtension::new(&[82]);
            program.begin(early);
            assert_eq!(refused.recv(), Ok(Err(ClaimFailure::Unanswered)));
            assert_eq!(program.handle_answer(result), ClaimAnswered::Settled);
            assert_eq!(answered.recv(), Ok(result.map_err(ClaimFailure::Refused)));
            assert_eq!(program.granted(), &granted);
        }
    }

    #[test]
    fn a_lost_device_grants_nothing() {
        let mut program = ProgramClaim::new(claim(&[80]));
        program.handle_loss();
        for is_asked in [false, true] {
            let (extension, answered) = ClaimExtension::new(&[81]);
            program.begin(extension);
            assert!(!is_asked || program.poll().is_some());
            program.handle_loss();
            assert_eq!(answered.recv(), Ok(Err(ClaimFailure::NoDevice)));
            assert!(program.poll().is_none());
            assert_eq!(program.granted(), &claim(&[80]));
        }
    }

    /// Addresses that the network assigns are claimed by the host, which uses them at once.
    #[test]
    fn claims_of_the_host_are_kept_for_the_next_device() {
        let all = |last: &[u8]| {
            let addrs = last.iter().map(|&last| [10, 0, 0, last].into()).collect();
            AddressClaim { automatic: true, ..AddressClaim::new(addrs, PortClaim::All) }
        };
        let mut program = ProgramClaim::new(all(&[]));
        program.note_claim_of_host(&all(&[1]));
        assert_eq!(program.handle_answer(Ok(())), ClaimAnswered::Settled);
        assert_eq!(program.granted(), &all(&[1]));
        program.note_claim_of_host(&all(&[1, 2]));
        program.note_claim_of_host(&all(&[1, 2, 3]));
        let refused = program.handle_answer(Err(AttachRefusal::Claimed));
        assert_eq!(refused, ClaimAnswered::HostRefused(AttachRefusal::Claimed));
        assert_eq!(program.granted(), &all(&[1]));
        program.handle_loss();
        assert_eq!(program.granted(), &all(&[1, 2, 3]));
        assert_eq!(program.handle_answer(Ok(())), ClaimAnswered::Unasked);
    }

    #[test]
    fn the_device_is_not_asked_for_ports_that_the_program_has() {
        let all = AddressClaim { ports: PortClaim::All, ..claim(&[]) };
        for granted in [all, claim(&[80, 443])] {
            let mut program = ProgramClaim::new(granted);
            let (extension, answered) = ClaimExtension::new(&[443, 80]);
            program.begin(extension);
            assert_eq!(answered.recv(), Ok(Ok(())));
            assert!(!program.is_waiting());
        }
        let shared = AddressClaim { ports: PortClaim::Shared([].into()), ..claim(&[]) };
        let wanted = with_ports(&shared, &[80]).unwrap().unwrap().ports;
        assert_eq!(wanted, PortClaim::Shared([PortRange::of_port(80)].into()));
    }

    #[test]
    fn the_device_is_not_asked_for_more_ports_than_a_claim_has() {
        let mut program = ProgramClaim::new(claim(&[80]));
        let ports: Vec<_> = (1000..1064).collect();
        let (extension, answered) = ClaimExtension::new(&ports);
        program.begin(extension);
        assert_eq!(answered.recv(), Ok(Err(ClaimFailure::TooManyPorts(65))));
        let (extension, _) = ClaimExtension::new(&ports[1..]);
        program.begin(extension);
        assert!(program.is_waiting());
    }
}
