//! Decompression of received content for users of the disk: by the device if it can, else here,
//! with the same decoder and the same result.
//!
//! Called by the application through [`crate::Host::decompress`]. A job carries the state of its
//! stream, so each one may be run on either side: one that the device refuses, for whatever reason,
//! is run here, and the next one is offered to the device again.
//!
//! Invariant: a job is in the device, or completed for its user.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use abi::decompress::{
    DecodeFault, DecompressId, DecompressJob, DecompressLimits, DecompressOutcome,
    DecompressRequest, Decompressed,
};
use abi::{Capabilities, Op, Refusal};

use super::extents::Extents;
use crate::api::DiskToken;
use crate::config::HostConfig;
use crate::net::outbox::Outbox;

/// Jobs of the users.
#[derive(Debug)]
pub(crate) struct Decompression {
    offload: Result<DecompressLimits, Refusal>,
    next: u64,
    /// Users of the jobs that the device has.
    in_device: BTreeMap<DecompressId, DiskToken>,
}

impl Decompression {
    pub(crate) const fn new(config: &HostConfig, capabilities: &Capabilities) -> Self {
        let offload = match (config.decompress_offload, capabilities.decompress) {
            (Err(why), _) | (Ok(()), Err(why)) => Err(why),
            (Ok(()), Ok(limits)) => Ok(limits),
        };
        Self { offload, next: 0, in_device: BTreeMap::new() }
    }

    /// Returns the number of jobs that the device has.
    pub(crate) fn in_device(&self) -> usize {
        self.in_device.len()
    }

    /// Begins a job.
    pub(crate) fn begin(
        &mut self,
        extents: &mut Extents,
        out: &mut Outbox,
        token: DiskToken,
        job: DecompressJob,
    ) {
        let longest = job.input.len().max(job.output.len());
        if self.offload.is_ok_and(|limits| longest <= limits.buffer_bytes_max as usize) {
            self.next += 1;
            let id = DecompressId(self.next);
            self.in_device.insert(id, token);
            out.ops.push_back(Op::Decompress(Box::new(DecompressRequest { id, job })));
        } else {
            run(extents, out, token, job);
        }
    }

    /// Handles the device's answer.
    pub(crate) fn handle_answer(
        &mut self,
        extents: &mut Extents,
        out: &mut Outbox,
        Decompressed { id, job, outcome }: Decompressed,
    ) {
        let Some(token) = self.in_device.remove(&id) else {
            out.counters.events_ignored += 1;
            return;
        };
        let result = match outcome {
            DecompressOutcome::Refused(_) => {
                out.counters.decompress_device_refused += 1;
                return run(extents, out, token, job);
            }
            DecompressOutcome::Failed(fault) => Err(fault),
            DecompressOutcome::Done(progress)
                if progress.consumed > job.input_len() || progress.produced > job.output_room() =>
            {
                out.counters.decompress_device_wrong += 1;
                Err(DecodeFault::Malformed)
            }
            DecompressOutcome::Done(progress) => Ok(progress),
        };
        extents.finish_decompression(out, token, job, result);
    }
}

/// Runs a job in software.
fn run(extents: &mut Extents, out: &mut Outbox, token: DiskToken, mut job: DecompressJob) {
    let result = job.run();
    out.counters.decompress_sw_jobs += 1;
    let produced = result.as_ref().map_or(0, |progress| progress.produced as u64);
    out.counters.decompress_sw_bytes += produced;
    extents.finish_decompression(out, token, job, result);
}

#[cfg(test)]
mod tests {
    use abi::Event;
    use abi::aligned::AlignedBuf;
    use abi::decompress::{DecodeProgress, Decoder};
    use base::Instant;

    use super::*;
    use crate::api::DiskUser;
    use crate::{DecompressDone, Host};

    /// Copies.
    #[derive(Debug)]
    struct Copier;

    impl Decoder for Copier {
        fn decode(
            &mut self,
            input: &[u8],
            output: &mut [u8],
        ) -> Result<DecodeProgress, DecodeFault> {
            let len = input.len().min(output.len());
            output[..len].copy_from_slice(&input[..len]);
            Ok(DecodeProgress { consumed: len, produced: len, is_complete: true })
        }
    }

    fn job(pages: usize) -> DecompressJob {
        let (input, output) = (AlignedBuf::new(pages), AlignedBuf::new(1));
        DecompressJob {
            decoder: Box::new(Copier),
            input,
            input_range: 0..100,
            output,
            output_start: 0,
        }
    }

    fn host(decompress: Result<DecompressLimits, Refusal>) -> (Host, DiskUser) {
        let none = Refusal::NotSupported;
        let none = Capabilities::without_engines([2, 0, 0, 0, 0, 1], 1500, 1448, none);
        let capabilities = Capabilities { decompress, ..none };
        let mut host = Host::new(HostConfig::default(), &capabilities, 1);
        let user = host.new_disk_user();
        (host, user)
    }

    /// Begins a job. Returns the device's request, if it is asked.
    fn begin(host: &mut Host, user: DiskUser, pages: usize) -> Option<Box<DecompressRequest>> {
        host.decompress(DiskToken { user, number: 7 }, job(pages));
        match host.poll_op(Instant::ZERO) {
            Some(Op::Decompress(request)) => Some(request),
            _ => None,
        }
    }

    fn answer(host: &mut Host, id: DecompressId, outcome: DecompressOutcome) {
        let done = Decompressed { id, job: job(1), outcome };
        host.handle_event(Instant::ZERO, Event::Decompressed(Box::new(done)));
    }

    const COPIED: DecodeProgress =
        DecodeProgress { consumed: 100, produced: 100, is_complete: true };

    #[test]
    fn without_a_device_that_can_the_host_decompresses() {
        let limits = DecompressLimits { buffer_bytes_max: 4096 };
        for (decompress, pages) in [(Err(Refusal::Disabled), 1), (Ok(limits), 2)] {
            let (mut host, user) = host(decompress);
            assert!(begin(&mut host, user, pages).is_none(), "the device is not asked");
            let done = host.poll_decompressed(user).expect("it is done");
            assert_eq!((done.number, done.result), (7, Ok(COPIED)));
            assert_eq!(host.counters().decompress_sw_bytes, 100);
        }
    }

    #[test]
    fn answers_are_checked_and_refused_jobs_run_here() {
        let limits = DecompressLimits { buffer_bytes_max: 4096 };
        let (mut host, user) = host(Ok(limits));
        let longer = DecodeProgress { consumed: 101, ..COPIED };
        let more = DecodeProgress { produced: 4097, ..COPIED };
        for (outcome, expected) in [
            (DecompressOutcome::Done(COPIED), Ok(COPIED)),
            (DecompressOutcome::Refused(Refusal::DeviceReset), Ok(COPIED)),
            (DecompressOutcome::Done(longer), Err(DecodeFault::Malformed)),
            (DecompressOutcome::Done(more), Err(DecodeFault::Malformed)),
        ] {
            let id = begin(&mut host, user, 1).expect("the device is asked").id;
            assert!(host.poll_decompressed(user).is_none());
            answer(&mut host, DecompressId(id.0 + 1), outcome);
            assert!(host.poll_decompressed(user).is_none(), "an answer to no request");
            answer(&mut host, id, outcome);
            answer(&mut host, id, outcome);
            let done: Option<DecompressDone> = host.poll_decompressed(user);
            assert_eq!(done.map(|done| done.result), Some(expected));
            assert!(host.poll_decompressed(user).is_none(), "once");
        }
        let counters = host.counters();
        assert_eq!((counters.decompress_sw_jobs, counters.decompress_device_refused), (1, 1));
        assert_eq!((counters.decompress_device_wrong, counters.events_ignored), (2, 8));
    }
}
