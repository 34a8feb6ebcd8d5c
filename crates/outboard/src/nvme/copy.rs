//! `outboard nvme read` and `write`: copy a range of a namespace to a file, or a file to a
//! namespace.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};

use ::io::clock::MonotonicClock;
use abi::aligned::AlignedBuf;
use apps::nvme::initiator::{InitiatorNamespace, NvmeRequest};
use apps::pattern_rules::PatternRules;
use base::Duration;
use bytes::Bytes;
use serde_json::json;

use super::args::{ConnectArgs, ReadArgs, WriteArgs};
use super::pipe::{NvmeRequestPipe, buffer};
use super::session::InitiatorSession;
use crate::pattern_file::PatternFile;
use crate::progress::ProgressLine;
use cli::Failure;

/// Maximum number of requests in flight.
const DEPTH: usize = 32;
/// Maximum number of bytes of a request.
const CHUNK: u64 = 256 << 10;

/// Runs `outboard nvme read`.
///
/// # Errors
/// Fails if the namespace cannot be read or the file cannot be written.
pub(super) fn read(args: &ReadArgs) -> Result<(), Failure> {
    let shown = args.output.display().to_string();
    let stuck = |error: io::Error| Failure::NoInput(format!("--output {shown}: {error}"));
    let plain = args.output.as_os_str() == "-";
    if plain && args.subsystem.connect.json {
        let line =
            "--json cannot be used with data on standard output; specify a file with --output";
        return Err(Failure::Usage(line.to_owned()));
    }
    let mut patterns = PatternFile::of_option(args.deny_patterns.as_ref());
    let rules = patterns.as_mut().map(PatternFile::read).transpose()?;
    let session = InitiatorSession::connect_with(&args.subsystem, rules.clone())?;
    let namespace = session.namespace(args.nsid)?;
    let size = namespace.blocks << namespace.shift;
    let length = args.length.unwrap_or_else(|| size.saturating_sub(args.offset));
    let range = check_block_range(&namespace, args.offset, length)?;
    // Created only after the range was checked, because an existing file loses its content.
    let mut output: Box<dyn Write> = match plain {
        true => Box::new(io::stdout().lock()),
        false => Box::new(File::create(&args.output).map_err(stuck)?),
    };
    let chunk = chunk(&session, &namespace);
    let mut pipe = NvmeRequestPipe::new(&session, args.nsid);
    let (clock, mut progress) = (MonotonicClock::new(), ProgressLine::new(length, "bytes"));
    let begun = clock.now();
    let (mut asked, mut written) = (range.0, range.0);
    let mut early: BTreeMap<u64, AlignedBuf> = BTreeMap::new();
    while written < range.1 {
        while asked < range.1 && pipe.open() + early.len() < DEPTH {
            let len = chunk.min(range.1 - asked);
            let blocks = u32::try_from(len >> namespace.shift).unwrap_or(u32::MAX);
            let request = NvmeRequest::Read { lba: asked >> namespace.shift, blocks };
            pipe.submit(asked, request, Some(buffer(usize::try_from(len).unwrap_or(0))));
            asked += len;
        }
        let (at, data) = pipe.wait().inspect_err(|_| report_matches(&session, rules.as_deref()))?;
        early.extend(data.map(|data| (at, data)));
        while let Some(data) = early.remove(&written) {
            let len = chunk.min(range.1 - written);
            let data = data.as_slice().get(..usize::try_from(len).unwrap_or(0));
            output.write_all(data.unwrap_or_default()).map_err(stuck)?;
            written += len;
            progress.show(written - range.0);
        }
    }
    output.flush().map_err(stuck)?;
    drop(progress);
    report_matches(&session, rules.as_deref());
    report(&args.subsystem.connect, length, clock.now().since(begun));
    session.end()
}

/// Prints how often the pattern of each rule was found, on standard error.
fn report_matches(session: &InitiatorSession, rules: Option<&PatternRules>) {
    let Some(rules) = rules else { return };
    let counters = session.counters();
    rules.for_each(&mut |line, counter| {
        let matches = counters["host"]["q0"][counter].as_u64().unwrap_or(0);
        let count = match matches {
            1 => String::from("1 match"),
            matches => format!("{matches} matches"),
        };
        eprintln!("outboard: --deny-patterns line {line}: {count}");
    });
}

/// Runs `outboard nvme write`.
///
/// # Errors
/// Fails if the file cannot be read or the namespace cannot be written.
pub(super) fn write(args: &WriteArgs) -> Result<(), Failure> {
    let shown = args.input.display().to_string();
    let stuck = |error: io::Error| Failure::NoInput(format!("--input {shown}: {error}"));
    let mut input = File::open(&args.input).map_err(stuck)?;
    let length = super::length_of(&mut input).map_err(stuck)?;
    let session = InitiatorSession::connect(&args.subsystem)?;
    let namespace = session.namespace(args.nsid)?;
    let padded = length.next_multiple_of(1 << namespace.shift);
    let range = check_block_range(&namespace, args.offset, padded)?;
    let chunk = chunk(&session, &namespace);
    let mut pipe = NvmeRequestPipe::new(&session, args.nsid);
    let (clock, mut progress) = (MonotonicClock::new(), ProgressLine::new(length, "bytes"));
    let (begun, mut at) = (clock.now(), range.0);
    while at < range.1 || pipe.open() > 0 {
        if at < range.1 && pipe.open() < DEPTH {
            let len = chunk.min(range.1 - at);
            let mut data = vec![0; usize::try_from(len).unwrap_or(0)];
            read_up_to(&mut input, &mut data, length - (at - range.0)).map_err(stuck)?;
            let (lba, data) = (at >> namespace.shift, Bytes::from(data));
            pipe.submit(at, NvmeRequest::Write { lba, data, fua: false }, None);
            at += len;
        } else {
            pipe.wait()?;
            progress.show(at - range.0);
        }
    }
    pipe.submit(0, NvmeRequest::Flush, None);
    pipe.wait()?;
    drop(progress);
    report(&args.subsystem.connect, length, clock.now().since(begun));
    session.end()
}

/// Prints a summary as JSON, if requested. Otherwise nothing, since standard output may have the
/// data.
fn report(args: &ConnectArgs, bytes: u64, took: Duration) {
    if args.json {
        println!("{:#}", json!({ "bytes": bytes, "microseconds": took.as_micros() }));
    }
}

/// Reads `left` bytes of the input, or as many as fit `out`; the rest of `out` is unchanged.
///
/// # Errors
/// Also fails if the input has become shorter: missing bytes must not become zeros.
fn read_up_to(input: &mut impl Read, out: &mut [u8], left: u64) -> io::Result<()> {
    let len = usize::try_from(left).unwrap_or(usize::MAX).min(out.len());
    let (out, _) = out.split_at_mut(len);
    input.read_exact(out).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::other("file was truncated while reading"),
        _ => error,
    })
}

/// Returns the bytes of a request, at most those that the controller accepts.
fn chunk(session: &InitiatorSession, namespace: &InitiatorNamespace) -> u64 {
    let most = session.data_bytes_max.min(CHUNK) >> namespace.shift << namespace.shift;
    most.max(1 << namespace.shift)
}

/// Checks a range of whole blocks; returns its first byte and its end.
fn check_block_range(
    namespace: &InitiatorNamespace,
    offset: u64,
    length: u64,
) -> Result<(u64, u64), Failure> {
    let (block, size) = (1_u64 << namespace.shift, namespace.blocks << namespace.shift);
    let end = offset.checked_add(length).filter(|end| *end <= size);
    match end {
        Some(end) if offset % block == 0 && length % block == 0 => Ok((offset, end)),
        Some(_) => Err(Failure::Usage(format!(
            "--offset and length must be multiples of the block size, {block} bytes"
        ))),
        None => Err(Failure::Usage(format!("range exceeds the namespace size of {size} bytes"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_block_is_filled_up_and_no_other() {
        let mut data = [0; 8];
        read_up_to(&mut &[7; 20][..], &mut data, 20).unwrap();
        assert_eq!(data, [7; 8]);
        let mut data = [0; 8];
        read_up_to(&mut &[7; 20][..], &mut data, 3).unwrap();
        assert_eq!(data, [7, 7, 7, 0, 0, 0, 0, 0]);
        // It had 20 bytes when its length was read.
        let error = read_up_to(&mut &[7; 5][..], &mut [0; 8], 20).unwrap_err();
        assert_eq!(error.to_string(), "file was truncated while reading");
    }
}
