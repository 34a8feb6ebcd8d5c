//! The thread of a device process that accepts programs.
//!
//! It decides who is accepted, by [`ProgramTable`], and passes each program to the device's thread
//! with everything that takes time: its rings and its disk. The device's thread releases the
//! claims of programs that are gone.

use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abi::attach::{AddressClaim, AttachGrant, AttachRefusal, AttachRequest, PortRange};
use abi::region::SharedRegion;
use abi::{Capabilities, Refusal};
use cli::Failure;
use io::disk::Disk;
use io::notify::Notifier;
use nic::switch::{ClaimTable, FUNCTIONS_MAX, outgoing_ports};

use super::channel::AttachedChannel;
use super::ethernet_listener::EthernetListener;
use super::handshake::{ProgramConnection, ProgramOrigin, ProgramRequest};
use super::new_notifier;
use super::received_addresses::ReceivedAddresses;
use super::roots::ProgramRoots;
use super::waiting_programs::{
    ProgramService, WAITING_PROCESSES_MAX, WAITING_STATIONS_MAX, WaitingPrograms,
};
use crate::listener::ListenerThread;

/// Use of a function of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FunctionUse {
    /// It has no program.
    #[default]
    Free,
    /// It has a program.
    Taken,
    /// Its program is gone. The device still ends connections, which it abandons if no other
    /// function is free.
    Ending,
}

/// Programs and what they have claimed.
#[derive(Debug)]
struct ProgramTable {
    claims: ClaimTable,
    /// One for each program that may attach.
    functions: Vec<FunctionUse>,
}

impl ProgramTable {
    fn new(programs_max: usize) -> Self {
        let functions = vec![FunctionUse::Free; programs_max.clamp(1, FUNCTIONS_MAX)];
        Self { claims: ClaimTable::default(), functions }
    }

    /// Assigns a function to a program, which keeps the ports of outgoing connections that it had.
    ///
    /// # Errors
    /// The reason for the program.
    fn admit(
        &mut self,
        request: &AttachRequest,
    ) -> Result<(usize, Option<PortRange>), AttachRefusal> {
        self.claims.check(&request.claim)?;
        let free = |wanted| self.functions.iter().position(|function| *function == wanted);
        let function = match request.outgoing {
            None => {
                let free = free(FunctionUse::Free).or_else(|| free(FunctionUse::Ending));
                free.ok_or(AttachRefusal::Full)?
            }
            Some(ports) => {
                let former = (0..FUNCTIONS_MAX).find(|&n| outgoing_ports(n) == ports);
                let former = former.ok_or(AttachRefusal::BadRequest)?;
                let used = self.functions.get(former).ok_or(AttachRefusal::Full)?;
                if *used == FunctionUse::Taken {
                    return Err(AttachRefusal::Claimed);
                }
                former
            }
        };
        let outgoing = self.claims.insert(function, &request.claim)?;
        self.functions[function] = FunctionUse::Taken;
        Ok((function, outgoing))
    }

    /// Removes the claim of a function whose program is gone.
    fn release(&mut self, function: usize, after: FunctionUse) {
        self.claims.remove(function);
        self.functions[function] = after;
    }
}

/// State that the accepting thread and the device's thread share.
#[derive(Debug)]
struct AcceptorState {
    received: ReceivedAddresses,
    programs: Mutex<ProgramTable>,
    /// Number of programs that were not accepted.
    refused: AtomicU64,
}

impl AcceptorState {
    fn programs(&self) -> MutexGuard<'_, ProgramTable> {
        // A panic cannot leave the table half changed: a claim is checked before it is inserted.
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns a function to a program, whose frames the link receives then.
    ///
    /// # Errors
    /// The reason for the program.
    fn admit(&self, request: &AttachRequest) -> Result<(usize, Option<PortRange>), AttachRefusal> {
        self.received.check(&request.claim)?;
        let admitted = self.programs().admit(request)?;
        if let Err(reason) = self.received.redirect(&request.claim) {
            self.programs().release(admitted.0, FunctionUse::Ending);
            return Err(reason);
        }
        Ok(admitted)
    }

    /// Replaces the claim of a function's program by one that has more, whose frames the link
    /// receives then.
    ///
    /// # Errors
    /// The reason for the program, which has its former claim.
    fn extend_claim(&self, function: usize, claim: &AddressClaim) -> Result<(), AttachRefusal> {
        self.received.check(claim)?;
        let mut programs = self.programs();
        programs.claims.check_extension(function, claim)?;
        self.received.redirect(claim)?;
        programs.claims.extend(function, claim)
    }
}

/// The right of a function's program to add to its claim.
pub(crate) struct FunctionClaim {
    function: usize,
    shared: Arc<AcceptorState>,
}

impl FunctionClaim {
    /// Replaces the claim by one that has more. The switch is to be told afterwards.
    ///
    /// # Errors
    /// The reason for the program, which has its former claim.
    pub(crate) fn extend(&self, claim: &AddressClaim) -> Result<(), AttachRefusal> {
        self.shared.extend_claim(self.function, claim)
    }
}

/// A program that was accepted.
pub(crate) struct ProgramArrival {
    /// The function that serves it.
    pub(crate) function: usize,
    pub(crate) claim: AddressClaim,
    pub(crate) origin: ProgramOrigin,
    pub(crate) channel: AttachedChannel,
    /// Memory in which the device places data, if any.
    pub(crate) region: Option<Arc<dyn SharedRegion>>,
    pub(crate) disk: Box<dyn Disk>,
}

/// Programs that were accepted, for the device's thread.
pub(crate) struct ProgramArrivals {
    receiver: Receiver<ProgramArrival>,
    shared: Arc<AcceptorState>,
    notifier: Notifier,
}

impl ProgramArrivals {
    /// Returns the next program.
    pub(crate) fn next(&self) -> Option<ProgramArrival> {
        self.receiver.try_recv().ok()
    }

    /// Returns the right to add to the claim of a function's program.
    pub(crate) fn claim_of(&self, function: usize) -> FunctionClaim {
        FunctionClaim { function, shared: Arc::clone(&self.shared) }
    }

    /// Releases the claim of a program that is gone, while its function ends connections.
    pub(crate) fn end(&self, function: usize) {
        self.shared.programs().release(function, FunctionUse::Ending);
    }

    /// Releases a function whose program is gone, and whose connections have ended.
    pub(crate) fn free(&self, function: usize) {
        let mut programs = self.shared.programs();
        // It may have been given to another program meanwhile.
        if programs.functions[function] == FunctionUse::Ending {
            programs.release(function, FunctionUse::Free);
        }
    }

    /// Returns the number of programs that were not accepted.
    pub(crate) fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }

    /// Returns the notifier that the acceptor wakes the device's thread by.
    pub(crate) const fn notifier(&self) -> &Notifier {
        &self.notifier
    }
}

/// Listeners of a device process.
pub(crate) struct ProgramListeners {
    /// For processes of this machine.
    pub(crate) unix: Option<UnixListener>,
    /// For programs of other machines.
    pub(crate) ethernet: Option<EthernetListener>,
}

/// Starts the threads that accept up to `programs_max` programs for devices with these
/// capabilities, and addresses that their link receives. Returns them with the arrivals for the
/// device's thread.
///
/// # Errors
/// If no thread or file descriptor is left.
pub(crate) fn accept_programs(
    listeners: ProgramListeners,
    (capabilities, received): (Capabilities, ReceivedAddresses),
    roots: ProgramRoots,
    programs_max: usize,
) -> Result<(Vec<ListenerThread>, ProgramArrivals), Failure> {
    let (sender, receiver) = channel();
    let programs = Mutex::new(ProgramTable::new(programs_max));
    let shared = Arc::new(AcceptorState { received, programs, refused: AtomicU64::new(0) });
    let arrivals =
        ProgramArrivals { receiver, shared: Arc::clone(&shared), notifier: new_notifier()? };
    let acceptor = Arc::new(ProgramAcceptor {
        capabilities,
        roots,
        arrivals: sender,
        shared,
        notifier: arrivals.notifier.clone(),
    });
    let mut threads = Vec::new();
    if let Some(unix) = listeners.unix {
        let waiting = WaitingPrograms::new(acceptor.clone(), WAITING_PROCESSES_MAX);
        threads.push(ListenerThread::start_queue("programs", "programs", unix, waiting)?);
    }
    if let Some(ethernet) = listeners.ethernet {
        let waiting = WaitingPrograms::new(acceptor, WAITING_STATIONS_MAX);
        threads.push(ListenerThread::start_queue("stations", "programs", ethernet, waiting)?);
    }
    Ok((threads, arrivals))
}

/// Accepts programs, in threads of its own.
struct ProgramAcceptor {
    capabilities: Capabilities,
    roots: ProgramRoots,
    arrivals: Sender<ProgramArrival>,
    shared: Arc<AcceptorState>,
    notifier: Notifier,
}

impl ProgramService for ProgramAcceptor {
    fn serve(&self, program: ProgramConnection) -> Option<ProgramConnection> {
        let refused = self.accept_or_refuse(program).err()?;
        self.count_refused();
        refused
    }

    fn count_refused(&self) {
        self.shared.refused.fetch_add(1, Ordering::Relaxed);
    }
}

impl ProgramAcceptor {
    /// Accepts a program.
    ///
    /// # Errors
    /// If it is refused, the program, unless that has the answer or is gone.
    fn accept_or_refuse(
        &self,
        mut program: ProgramConnection,
    ) -> Result<(), Option<ProgramConnection>> {
        let request = match program.receive_request() {
            Ok(Ok(request)) => request,
            Ok(Err(fault)) => {
                eprintln!("outboard: refusing a program: {fault}");
                return Err(program.refuse(AttachRefusal::BadRequest));
            }
            // It is gone, or has sent a part of a message.
            Err(_) => return Err(None),
        };
        let disk = match self.roots.open(request.request.root.as_ref()) {
            Ok(disk) => disk,
            Err(reason) => return Err(program.refuse(reason)),
        };
        match self.shared.admit(&request.request) {
            Ok((function, outgoing)) => {
                let accepted = self.accept(program, request, (function, outgoing), disk);
                if !accepted {
                    self.shared.programs().release(function, FunctionUse::Ending);
                    return Err(None);
                }
                Ok(())
            }
            Err(reason) => Err(program.refuse(reason)),
        }
    }

    /// Passes a program to the device's thread; returns false if it is gone.
    fn accept(
        &self,
        program: ProgramConnection,
        request: ProgramRequest,
        (function, outgoing): (usize, Option<PortRange>),
        disk: Box<dyn Disk>,
    ) -> bool {
        let ProgramRequest { request, region } = request;
        let region_bytes = region.as_ref().map_or(0, |region| region.len() as u64);
        let mut capabilities = self.capabilities.clone().for_other_process(region_bytes);
        if request.root.is_none() {
            capabilities.file = Err(Refusal::Disabled);
        }
        let Ok(origin) = program.origin() else { return false };
        let channel = match program.accept(AttachGrant { capabilities, outgoing }) {
            Ok(channel) => channel,
            Err(error) => {
                eprintln!("outboard: cannot attach a program: {error}");
                return false;
            }
        };
        let claim = request.claim;
        let arrival = ProgramArrival { function, claim, origin, channel, region, disk };
        let passed = self.arrivals.send(arrival).is_ok();
        self.notifier.notify();
        passed
    }
}

#[cfg(test)]
mod tests {
    use abi::attach::PortClaim;

    use super::*;

    fn request(last: u8, ports: PortClaim, outgoing: Option<PortRange>) -> AttachRequest {
        let claim = AddressClaim::new([[10, 0, 0, last].into()].into(), ports);
        AttachRequest { root: None, claim, outgoing }
    }

    fn listed(port: u16) -> PortClaim {
        PortClaim::Listed([PortRange { first: port, last: port }].into())
    }

    #[test]
    fn programs_are_admitted_while_functions_are_free() {
        let mut table = ProgramTable::new(2);
        let all = |last| request(last, PortClaim::All, None);
        assert_eq!(table.admit(&all(1)), Ok((0, None)));
        assert_eq!(table.admit(&all(1)), Err(AttachRefusal::Claimed));
        assert_eq!(table.admit(&all(2)), Ok((1, None)));
        assert_eq!(table.admit(&all(3)), Err(AttachRefusal::Full));
        table.release(0, FunctionUse::Ending);
        table.release(1, FunctionUse::Free);
        assert_eq!(table.admit(&all(3)), Ok((1, None)), "before one that still ends");
        assert_eq!(table.admit(&all(1)), Ok((0, None)));
    }

    /// A program that is attached gets further ports, unless another one has them.
    #[test]
    fn claims_are_extended_beside_others() {
        let programs = Mutex::new(ProgramTable::new(2));
        let received = ReceivedAddresses::Any;
        let shared = Arc::new(AcceptorState { received, programs, refused: AtomicU64::new(0) });
        assert!(shared.admit(&request(1, listed(80), None)).is_ok());
        let second = FunctionClaim { function: 1, shared: Arc::clone(&shared) };
        assert!(shared.admit(&request(1, listed(81), None)).is_ok());
        let with = |port| {
            let ports = [81, port].map(PortRange::of_port).into();
            request(1, PortClaim::Listed(ports), None).claim
        };
        assert_eq!(second.extend(&with(80)), Err(AttachRefusal::Claimed));
        assert_eq!(second.extend(&with(82)), Ok(()));
        shared.programs().release(0, FunctionUse::Free);
        assert_eq!(shared.admit(&request(1, listed(82), None)), Err(AttachRefusal::Claimed));
        assert!(shared.admit(&request(1, listed(80), None)).is_ok());
    }

    /// A program keeps the ports of its connections on the next device.
    #[test]
    fn a_program_gets_its_ports_again() {
        let mut table = ProgramTable::new(3);
        let second = outgoing_ports(1);
        let again = request(1, listed(80), Some(second));
        assert_eq!(table.admit(&again), Ok((1, Some(second))));
        let taken = request(1, listed(81), Some(second));
        assert_eq!(table.admit(&taken), Err(AttachRefusal::Claimed));
        let new = request(1, listed(81), None);
        assert_eq!(table.admit(&new), Ok((0, Some(outgoing_ports(0)))));
        let unknown = request(2, listed(80), Some(PortRange { first: 1, last: 2 }));
        assert_eq!(table.admit(&unknown), Err(AttachRefusal::BadRequest));
        let beyond = request(2, listed(80), Some(outgoing_ports(3)));
        assert_eq!(table.admit(&beyond), Err(AttachRefusal::Full));
    }
}
