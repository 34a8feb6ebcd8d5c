//! `outboard nvme fio`: random reads and writes with verification, and their rates and latencies.
//!
//! Each written block begins with its position and the number of the write, from which its other
//! bytes are derived. So a read can verify that it returns the complete last write. There is one
//! request at a time for each position, so the last write is always known. At the end every written
//! position is read once more, which does not count in the rates.

use abi::aligned::AlignedBuf;
use apps::nvme::initiator::NvmeRequest;
use base::{Duration, Instant, Prng};
use bytes::Bytes;
use io::clock::{self, MonotonicClock};
use serde_json::json;

use super::args::FioArgs;
use super::pipe::{NvmeRequestPipe, buffer};
use super::session::InitiatorSession;
use crate::progress::ProgressLine;
use cli::Failure;

/// Maximum number of positions, each of request size.
const POSITIONS_MAX: u64 = 1 << 24;

/// A position in the namespace, of request size.
#[derive(Clone, Copy, Default)]
struct FioPosition {
    /// Number of the last write; 0 if there was none.
    version: u32,
    busy: bool,
}

/// A request in flight.
#[derive(Clone, Copy)]
struct FioRequest {
    position: usize,
    begun: Instant,
    writes: bool,
}

/// State and results of a run.
struct FioRun {
    pipe: NvmeRequestPipe,
    positions: Vec<FioPosition>,
    open: Vec<Option<FioRequest>>,
    rng: Prng,
    clock: MonotonicClock,
    bs: usize,
    block: usize,
    shift: u8,
    writes: u8,
    /// Latencies of reads and of writes, in microseconds.
    latencies: [Vec<u32>; 2],
    verified: u64,
}

/// Runs `outboard nvme fio`.
///
/// # Errors
/// Fails if the target cannot be connected, a request fails, or a read returns wrong data.
pub(super) fn run(args: &FioArgs) -> Result<(), Failure> {
    let clock = MonotonicClock::new();
    let session = InitiatorSession::connect(&args.subsystem)?;
    let namespace = session.namespace(args.nsid)?;
    let (block, all) = (1_u64 << namespace.shift, namespace.blocks << namespace.shift);
    let bs = u64::from(args.bs);
    if bs == 0 || bs % block != 0 || bs > session.data_bytes_max {
        let most = session.data_bytes_max;
        let line = format!(
            "--bs must be a multiple of the block size, {block} bytes, and at most {most} bytes"
        );
        return Err(Failure::Usage(line));
    }
    let size = args.size.unwrap_or(all).min(all);
    let places = usize::try_from((size / bs).min(POSITIONS_MAX)).unwrap_or(0);
    if places < usize::from(args.iodepth) {
        return Err(Failure::Usage(
            "--size is too small: fewer than --iodepth requests of --bs bytes fit".to_owned(),
        ));
    }
    let mut run = FioRun {
        pipe: NvmeRequestPipe::new(&session, args.nsid),
        positions: vec![FioPosition::default(); places],
        open: vec![None; args.iodepth.into()],
        rng: Prng::new(clock::entropy()),
        clock,
        bs: args.bs as usize,
        block: usize::try_from(block).unwrap_or(0),
        shift: namespace.shift,
        writes: args.writes,
        latencies: [Vec::new(), Vec::new()],
        verified: 0,
    };
    let begun = clock.now();
    run.run_random_requests(args.requests, args.iodepth.into())?;
    let took = clock.now().since(begun);
    let latencies = std::mem::take(&mut run.latencies);
    run.read_back(args.iodepth.into())?;
    run.report(args, took, latencies, session.counters());
    session.end()
}

impl FioRun {
    /// Runs the random reads and writes.
    fn run_random_requests(&mut self, requests: u64, depth: usize) -> Result<(), Failure> {
        self.keep_in_flight(
            0..requests,
            ProgressLine::new(requests, "requests"),
            depth,
            |run, _| {
                let place = run.random_free_position();
                (place, run.random_below(100) < usize::from(run.writes))
            },
        )
    }

    /// Reads all positions that were written.
    fn read_back(&mut self, depth: usize) -> Result<(), Failure> {
        let places = self.positions.iter().enumerate();
        let written: Vec<_> =
            places.filter(|(_, place)| place.version > 0).map(|(place, _)| place).collect();
        let progress = ProgressLine::new(written.len() as u64, "blocks verified");
        self.keep_in_flight(written, progress, depth, |_, place| (place, false))
    }

    /// Keeps `depth` requests in flight, one for each item of `run_random_requests`. `next` returns
    /// the position of an item, and whether it is a write.
    fn keep_in_flight<T>(
        &mut self,
        all: impl IntoIterator<Item = T>,
        mut progress: ProgressLine,
        depth: usize,
        mut next: impl FnMut(&mut Self, T) -> (usize, bool),
    ) -> Result<(), Failure> {
        let mut all = all.into_iter().fuse();
        let mut ended = 0;
        loop {
            while self.pipe.open() < depth {
                let Some(one) = all.next() else { break };
                let (place, writes) = next(self, one);
                self.begin(place, writes);
            }
            if self.pipe.open() == 0 {
                return Ok(());
            }
            let (token, data) = self.pipe.wait()?;
            self.end(token, data.as_ref())?;
            ended += 1;
            progress.show(ended);
        }
    }

    fn random_below(&mut self, most: usize) -> usize {
        usize::try_from(self.rng.next_u64() % most.max(1) as u64).unwrap_or(0)
    }

    /// Returns a random position without a request. There are fewer requests than positions.
    fn random_free_position(&mut self) -> usize {
        let mut place = self.random_below(self.positions.len());
        while self.positions[place].busy {
            place = (place + 1) % self.positions.len();
        }
        place
    }

    fn begin(&mut self, place: usize, writes: bool) {
        let Some(slot) = self.open.iter().position(Option::is_none) else { return };
        self.positions[place].busy = true;
        let lba = (place as u64 * self.bs as u64) >> self.shift;
        // The pattern is created before the time of the request starts.
        let (request, room) = if writes {
            self.positions[place].version += 1;
            let data = self.block_pattern(place, self.positions[place].version);
            (NvmeRequest::Write { lba, data, fua: false }, None)
        } else {
            let blocks = u32::try_from(self.bs >> self.shift).unwrap_or(u32::MAX);
            (NvmeRequest::Read { lba, blocks }, Some(buffer(self.bs)))
        };
        self.open[slot] = Some(FioRequest { position: place, begun: self.clock.now(), writes });
        self.pipe.submit(slot as u64, request, room);
    }

    fn end(&mut self, token: u64, data: Option<&AlignedBuf>) -> Result<(), Failure> {
        let slot = usize::try_from(token).ok().and_then(|slot| self.open.get_mut(slot));
        let Some(FioRequest { position: place, begun, writes }) = slot.and_then(Option::take)
        else {
            return Ok(());
        };
        let took = self.clock.now().since(begun).as_micros();
        self.latencies[usize::from(writes)].push(u32::try_from(took).unwrap_or(u32::MAX));
        self.positions[place].busy = false;
        let version = self.positions[place].version;
        if let (Some(data), true) = (data.filter(|_| !writes), version > 0) {
            let wanted = self.block_pattern(place, version);
            if data.as_slice().get(..self.bs) != Some(&wanted[..]) {
                let at = place as u64 * self.bs as u64;
                let line = format!(
                    "data mismatch in bytes {at} to {}: not the last write",
                    at + self.bs as u64
                );
                return Err(Failure::Unavailable(line));
            }
            self.verified += 1;
        }
        Ok(())
    }

    /// Returns the content of a position after this write.
    fn block_pattern(&self, place: usize, version: u32) -> Bytes {
        let mut text = vec![0; self.bs];
        for (index, block) in text.chunks_mut(self.block).enumerate() {
            let at = place as u64 * self.bs as u64 + (index * self.block) as u64;
            let mut word = at ^ u64::from(version) << 40;
            for chunk in block.chunks_mut(8) {
                chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
                word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
            }
        }
        text.into()
    }

    fn report(
        &self,
        args: &FioArgs,
        took: Duration,
        latencies: [Vec<u32>; 2],
        counters: serde_json::Value,
    ) {
        #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
        let (seconds, bs) = (took.as_micros().max(1) as f64 / 1e6, self.bs as f64);
        let mut rows = Vec::new();
        for (name, mut all) in ["read", "write"].into_iter().zip(latencies) {
            all.sort_unstable();
            let at = |share: usize| all.get(all.len() * share / 1000).copied().unwrap_or(0);
            let last = all.last().copied().unwrap_or(0);
            #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
            let rate = all.len() as f64 / seconds;
            let us = [at(500), at(990), at(999), last];
            rows.push((name, all.len(), rate, rate * bs / 1e6, us));
        }
        if args.subsystem.connect.json {
            let shown = |(name, count, rate, mb, us): &(&str, usize, f64, f64, [u32; 4])| {
                json!({ "what": name, "requests": count, "per_second": rate,
                    "megabytes_per_second": mb, "p50_us": us[0], "p99_us": us[1],
                    "p999_us": us[2], "max_us": us[3] })
            };
            let rows: Vec<_> = rows.iter().map(shown).collect();
            let verified = self.verified;
            println!(
                "{:#}",
                json!({ "rows": rows, "verified": verified, "seconds": seconds,
                    "counters": counters })
            );
            return;
        }
        println!(
            "{:<6}{:>10}{:>12}{:>10}{:>9}{:>9}{:>9}{:>9}",
            "", "requests", "IOPS", "MB/s", "p50 us", "p99 us", "p99.9 us", "max us"
        );
        for (name, count, rate, mb, us) in rows {
            let [p50, p99, p999, max] = us;
            println!("{name:<6}{count:>10}{rate:>12.0}{mb:>10.1}{p50:>9}{p99:>9}{p999:>9}{max:>9}");
        }
        println!("{} reads verified", self.verified);
    }
}
