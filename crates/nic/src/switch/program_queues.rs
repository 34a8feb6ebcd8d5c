//! Queues of programs that have several: the function that a flow leads to.
//!
//! Each queue has a function of its own, and all have claimed the same addresses and ports
//! ([`abi::attach::ClaimedQueue`]). A flow leads to a queue as in a device with several queues, by
//! a hash whose seed the program has chosen. So it leads to the same one on each device that the
//! program attaches to, and whichever queue attaches first: the switch need not know the flow, and
//! no host gets a segment of another one's connection.
//!
//! Used by [`super::claims`]. Entries of the steering are not moved between queues.

use abi::attach::ClaimedQueue;
use abi::steering::FlowSteering;
use alloc::sync::Arc;
use alloc::vec::Vec;
use wire::UDP_BYTES;

use super::flow_key::FlowKey;
use super::function_set::FunctionSet;

/// The queues of one program that are attached.
#[derive(Clone, Debug)]
struct ProgramQueues {
    /// The claim of one of them.
    claimed: ClaimedQueue,
    steering: Arc<FlowSteering>,
    /// The function of each queue, by its index.
    functions: [Option<usize>; ClaimedQueue::QUEUES_MAX as usize],
}

impl ProgramQueues {
    fn functions(&self) -> FunctionSet {
        let mut set = FunctionSet::NONE;
        self.functions.iter().flatten().for_each(|&function| set.insert(function));
        set
    }
}

/// The queues of all programs that have several.
#[derive(Clone, Debug, Default)]
pub(super) struct QueueTable {
    programs: Vec<ProgramQueues>,
}

impl QueueTable {
    /// Adds the function of a queue, which has none.
    pub(super) fn insert(&mut self, function: usize, queue: ClaimedQueue) {
        let program = self.programs.iter_mut().find(|it| it.claimed.is_of_program_of(queue));
        let program = match program {
            Some(program) => program,
            None => {
                let steering = FlowSteering::new(queue.seed, queue.queues.into());
                let (steering, functions) = (Arc::new(steering), Default::default());
                self.programs.push(ProgramQueues { claimed: queue, steering, functions });
                let Some(program) = self.programs.last_mut() else { unreachable!("just added") };
                program
            }
        };
        program.functions[usize::from(queue.index)] = Some(function);
    }

    /// Removes a function, if it is that of a queue.
    pub(super) fn remove(&mut self, function: usize) {
        for program in &mut self.programs {
            for slot in program.functions.iter_mut().filter(|slot| **slot == Some(function)) {
                *slot = None;
            }
        }
        self.programs.retain(|program| program.functions.iter().any(Option::is_some));
    }

    /// Returns the queue of a function; `None` if its program has one only.
    pub(super) fn queue_of(&self, function: usize) -> Option<ClaimedQueue> {
        let program = self.program_of(function)?;
        let index = program.functions.iter().position(|slot| *slot == Some(function))?;
        Some(ClaimedQueue { index: u8::try_from(index).ok()?, ..program.claimed })
    }

    /// Returns the functions of all attached queues of the program that a queue belongs to.
    pub(super) fn functions_of(&self, queue: ClaimedQueue) -> FunctionSet {
        let program = self.programs.iter().find(|it| it.claimed.is_of_program_of(queue));
        program.map_or(FunctionSet::NONE, ProgramQueues::functions)
    }

    /// Returns the function of a queue, if it is attached.
    pub(super) fn function_of(&self, queue: ClaimedQueue) -> Option<usize> {
        let program = self.programs.iter().find(|it| it.claimed.is_of_program_of(queue))?;
        program.functions[usize::from(queue.index)]
    }

    /// Returns whether the program of a function has several queues.
    #[inline]
    pub(super) fn has(&self, function: usize) -> bool {
        self.program_of(function).is_some()
    }

    #[inline]
    fn program_of(&self, function: usize) -> Option<&ProgramQueues> {
        self.programs.iter().find(|it| it.functions.contains(&Some(function)))
    }

    /// Returns the functions that a packet of a flow is for, of the program that one of them
    /// belongs to: none if the queue is not attached. `l4` is the offset of the packet's transport
    /// header; `None` if an ICMP error quotes the packet. An error about a datagram of QUIC is for
    /// all queues: its source has no connection ID of ours.
    pub(super) fn select(
        &self,
        function: usize,
        flow: &FlowKey,
        frame: &[u8],
        l4: Option<usize>,
    ) -> FunctionSet {
        let Some(program) = self.program_of(function) else { return FunctionSet::NONE };
        let quic =
            program.claimed.quic.filter(|it| flow.is_udp && it.port == flow.tuple.local.port);
        let by_id = match (quic, l4) {
            (Some(_), None) => return program.functions(),
            (Some(quic), Some(l4)) => {
                frame.get(l4 + UDP_BYTES..).and_then(|datagram| quic.hash_of_datagram(datagram))
            }
            (None, _) => None,
        };
        let hash = by_id.unwrap_or_else(|| program.steering.hash(&flow.tuple));
        let mut selected = FunctionSet::NONE;
        let function = program.functions[program.steering.fixed_queue(hash)];
        function.into_iter().for_each(|function| selected.insert(function));
        selected
    }
}
