//! Random commands in random order, interleaved with disk operations, acknowledgments and ends of
//! connections.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum RandomTargetStep {
    Command { peer: usize, opcode: u8, cid: u16, slba: u64, count: u32, inline: bool, odd: u8 },
    Entry { peer: usize, entry: Vec<u8>, data: Vec<u8> },
    Data { peer: usize, digest_ok: bool },
    Disk(bool),
    Acknowledge(usize),
    Reconnect(usize),
    Abort { sqid: u16, cid: u16 },
    Disconnect(usize),
    Time,
}

fn step() -> impl Strategy<Value = RandomTargetStep> {
    let opcode = prop::sample::select(vec![
        io::READ,
        io::READ,
        io::WRITE,
        io::WRITE,
        io::WRITE,
        io::COMPARE,
        io::WRITE_ZEROES,
        io::FLUSH,
        io::DATASET_MANAGEMENT,
    ]);
    let command = (0..3_usize, opcode, 0..40_u16, 0..12_u64, 1..5_u32, any::<(bool, u8)>());
    let command = command.prop_map(|(peer, opcode, cid, slba, count, (inline, odd))| {
        RandomTargetStep::Command { peer, opcode, cid, slba, count, inline, odd }
    });
    let bytes = |len| prop::collection::vec(any::<u8>(), len);
    prop_oneof![
        8 => command,
        1 => (0..3_usize, bytes(64), bytes(48))
            .prop_map(|(peer, entry, data)| RandomTargetStep::Entry { peer, entry, data }),
        5 => (0..3_usize, prop::bool::weighted(0.9))
            .prop_map(|(peer, digest_ok)| RandomTargetStep::Data { peer, digest_ok }),
        5 => prop::bool::weighted(0.9).prop_map(RandomTargetStep::Disk),
        3 => (0..3_usize).prop_map(RandomTargetStep::Acknowledge),
        1 => (1..3_usize).prop_map(RandomTargetStep::Reconnect),
        2 => (0..3_u16, 0..40_u16).prop_map(|(sqid, cid)| RandomTargetStep::Abort { sqid, cid }),
        1 => (1..3_usize).prop_map(RandomTargetStep::Disconnect),
        1 => Just(RandomTargetStep::Time),
    ]
}

/// Connections of a run, and the R2Ts that were received on them.
struct RandomTargetRun {
    peers: Vec<ScriptedPeer>,
    /// Closed connections.
    gone: Vec<ScriptedPeer>,
    r2ts: Vec<Vec<(u16, u16, u32)>>,
}

impl RandomTargetRun {
    fn note(&mut self, rig: &FakeDiskRig) {
        for (peer, r2ts) in self.peers.iter().zip(&mut self.r2ts) {
            for sent in rig.sent(peer) {
                match sent {
                    Sent::R2t { cid, tag, len } => r2ts.push((cid, tag, len)),
                    Sent::End(_) => r2ts.clear(),
                    _ => {}
                }
            }
        }
    }
}

fn act(rig: &mut FakeDiskRig, asked: &mut RandomTargetRun, step: RandomTargetStep) {
    match step {
        RandomTargetStep::Command { peer, opcode, cid, slba, count, inline: capsule, odd } => {
            let len = count * BLOCK_LEN;
            let data = pattern(odd, count);
            let transport = blocks(opcode, cid, slba, count);
            let (command, data) = match opcode {
                io::DATASET_MANAGEMENT => {
                    let manage =
                        DatasetManagement { ranges: 1, deallocate: true, integral: (false, false) };
                    let sgl = Sgl::InCapsule { offset: 0, len: 16 };
                    let command =
                        manage.encode_into(NvmeCommand::new(opcode, cid, 1).with_data(sgl));
                    let range = DatasetRange { attributes: 0, count, slba };
                    (command, range.to_bytes().to_vec())
                }
                io::WRITE | io::COMPARE if capsule => {
                    (inline(opcode, cid, slba, count), data[..len as usize].to_vec())
                }
                _ => (transport, Vec::new()),
            };
            let nsid = if odd == 0 { 9 } else { 1 };
            let sqe = NvmeCommand { nsid, ..command }.to_bytes();
            let digest_ok = odd != 1;
            let data = data.into();
            rig.deliver(&asked.peers[peer], NvmeTransportEvent::Command { sqe, data, digest_ok });
        }
        RandomTargetStep::Entry { peer, entry, data } => {
            let sqe = entry.try_into().unwrap();
            let data = data.into();
            rig.deliver(
                &asked.peers[peer],
                NvmeTransportEvent::Command { sqe, data, digest_ok: true },
            );
        }
        RandomTargetStep::Data { peer, digest_ok } => {
            if let Some((cid, tag, len)) = asked.r2ts[peer].pop() {
                let bytes = vec![0x55; len as usize];
                rig.data(&asked.peers[peer], cid, tag, &bytes, digest_ok);
            }
        }
        RandomTargetStep::Disk(good) => {
            rig.disk.fault = (!good).then_some(FileFault::Io);
            rig.disk_step();
        }
        RandomTargetStep::Acknowledge(peer) => rig.acknowledge(&asked.peers[peer]),
        RandomTargetStep::Abort { sqid, cid } => {
            let sqe = AbortCommand { sqid, cid }
                .encode_into(NvmeCommand::new(admin::ABORT, 50, 0))
                .to_bytes();
            let data = Bytes::new();
            rig.deliver(
                &asked.peers[0],
                NvmeTransportEvent::Command { sqe, data, digest_ok: true },
            );
        }
        RandomTargetStep::Disconnect(peer) => {
            let sqe = FabricsCommand::Disconnect(0).to_command(51, Sgl::NONE).to_bytes();
            let data = Bytes::new();
            rig.deliver(
                &asked.peers[peer],
                NvmeTransportEvent::Command { sqe, data, digest_ok: true },
            );
            act(rig, asked, RandomTargetStep::Reconnect(peer));
        }
        RandomTargetStep::Reconnect(peer) => {
            rig.end(&asked.peers[peer]);
            let new = rig.accept();
            asked.gone.push(core::mem::replace(&mut asked.peers[peer], new));
            asked.r2ts[peer].clear();
            let ask = ConnectRequest {
                qid: u16::try_from(peer).unwrap(),
                cntlid: 1,
                ..ConnectRequest::default()
            };
            rig.connect(&asked.peers[peer], &ask);
        }
        RandomTargetStep::Time => rig.pass(Duration::from_millis(7)),
    }
    asked.note(rig);
}

fn pattern(byte: u8, count: u32) -> Vec<u8> {
    vec![byte; count as usize * BLOCK_BYTES]
}

proptest! {
    /// Checks that nothing panics, memory stays within its budget, and no resource is held at the
    /// end. `FakeDiskRig::acknowledge` checks that data in flight does not change.
    #[test]
    fn random_commands_release_everything(steps in prop::collection::vec(step(), 1..150)) {
        let bytes_max = 6 * BLOCK_BYTES;
        let mut rig =
            FakeDiskRig::with(|config| (config.mdts, config.buffer_bytes_max) = (2, bytes_max));
        let peers = rig.connect_controller(1, 2);
        let mut asked = RandomTargetRun { peers, gone: Vec::new(), r2ts: vec![Vec::new(); 3] };
        for step in steps {
            act(&mut rig, &mut asked, step);
            prop_assert!(rig.server.shared.buffers.used_bytes() <= bytes_max);
        }
        rig.disk.fault = None;
        asked.gone.iter().for_each(|peer| rig.acknowledge(peer));
        for _ in 0..300 {
            rig.disk_all();
            for peer in 0..3 {
                act(&mut rig, &mut asked, RandomTargetStep::Acknowledge(peer));
                act(&mut rig, &mut asked, RandomTargetStep::Data { peer, digest_ok: true });
            }
        }
        let shared = &rig.server.shared;
        let locks = &shared.namespaces[0].locks;
        prop_assert_eq!((locks.held(), locks.waiting(), shared.ops.len()), (0, 0, 0));
        prop_assert_eq!((shared.buffers.used_bytes(), shared.waiting_for_buffer.len()), (0, 0));
        let share = &shared.controllers.get(1).unwrap().quota;
        prop_assert_eq!(
            (share.charged_bytes, share.waiting.len(), shared.waiting_capsule_bytes),
            (0, 0, 0));
        rig.server.drain(rig.now, &mut rig.disk);
        prop_assert_eq!(rig.server.connections(), 0);
    }
}
