//! Machines with several queues: for each queue a device and a host with its own application, like
//! a stack with `--queues`.
//!
//! In some scenarios the machine to which clients connect has two or three queues. Each is a
//! [`crate::node::SimNode`]; the first has the machine's index, the others follow all machines. The
//! network delivers a frame to a queue that another hash than the devices' selects, as a TAP does,
//! so the devices hand most frames over. [`crate::run`] carries them. In half of these scenarios
//! entries of the steering's table move to other queues while connections are open.

use std::sync::Arc;

use abi::quic::QuicSteering;
use abi::steering::{FlowSteering, OwnQueue};
use base::Prng;
use host::HostConfig;
use nic::DeviceConfig;
use wire::frame::{ParsedFrame, parse};

use crate::trace::hash_bytes;

/// Salt of this module's generators.
const SALT: u64 = 0x00a0_e0e5;

/// A queue of a machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimQueue {
    pub(crate) index: usize,
    /// Number of queues of the machine.
    pub(crate) count: usize,
}

impl SimQueue {
    /// The queue of a machine with one.
    pub(crate) const ONLY: Self = Self { index: 0, count: 1 };

    /// Configures the device and the host of the queue. `steering` is that of all queues.
    pub(crate) fn configure(
        self,
        steering: &Arc<FlowSteering>,
        device: &mut DeviceConfig,
        host: &mut HostConfig,
    ) {
        if self.count == 1 {
            return;
        }
        let own = OwnQueue { steering: Arc::clone(steering), index: self.index };
        device.own_queue = Some(own.clone());
        host.answers = self.index == 0;
        host.own_queue = Some(own);
    }

    /// Returns the steering of QUIC datagrams to `port`, if there are several queues.
    pub(crate) fn quic_steering(self, seed: u64, port: u16) -> Option<QuicSteering> {
        let queues = u32::try_from(self.count).ok().filter(|&count| count > 1)?;
        let key = seed ^ (SALT << 8);
        Some(QuicSteering { port, id_bytes: quic::CID_BYTES, key, queues })
    }
}

/// Returns the steering of a machine with `count` queues, in the run of `seed`.
pub(crate) fn steering(seed: u64, count: usize) -> Arc<FlowSteering> {
    Arc::new(FlowSteering::new(Prng::new(seed ^ SALT).next_u64(), count))
}

/// Returns the generator of the moves in the run of `seed`.
pub(crate) fn moves_generator(seed: u64) -> Prng {
    Prng::new(seed ^ SALT ^ 4)
}

/// Draws the number of queues of the front machine, from a generator of its own.
pub(crate) fn draw(seed: u64) -> usize {
    draw_from(&mut Prng::new(seed ^ SALT ^ 1))
}

/// As [`draw`], if the machine is a target of NVMe/TCP.
pub(crate) fn draw_of_target(seed: u64) -> usize {
    draw_from(&mut Prng::new(seed ^ SALT ^ 2))
}

fn draw_from(r: &mut Prng) -> usize {
    if r.chance(0.25) { r.range(2, 3) as usize } else { 1 }
}

/// Returns the queue of `count` on which the network delivers a frame: the same for all frames of a
/// flow.
pub(crate) fn queue_of_link(frame: &[u8], count: usize) -> usize {
    let hash = match parse(frame) {
        Ok(ParsedFrame::Ip(ip)) => {
            let ports = frame.get(ip.l4..ip.l4 + 4).unwrap_or_default();
            hash_bytes(hash_bytes(7, ports), format!("{}", ip.source).as_bytes())
        }
        _ => hash_bytes(7, frame),
    };
    (hash % count as u64) as usize
}
