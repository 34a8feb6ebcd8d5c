//! One URL of `outboard get`: where its content goes, and what became of it.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use apps::get::{GetError, GetUrl};
use aws_lc_rs::digest::{Context, SHA256};
use base::{Duration, Instant};
use serde_json::{Value, json};

use super::args::Sha256Arg;
use super::part_file::{PartFile, PartFileError};
use crate::tls::ServerTrust;
use cli::Failure;

/// curl's exit codes for failures that are not those of a [`GetError`].
pub(super) const WRITE_ERROR: u8 = 23;
pub(super) const RESOLVE_ERROR: u8 = 6;
pub(super) const TIMEOUT: u8 = 28;
pub(super) const TOO_MANY_REDIRECTS: u8 = 47;
const CERTIFICATE_REFUSED: u8 = 60;
/// curl has no checksums; this is aria2's exit code, which curl does not use.
const WRONG_CHECKSUM: u8 = 32;

/// Destination of the content.
pub(super) enum GetOutput {
    /// Standard output, or a file that is not a regular one. Content is written in order.
    Stream(Box<dyn Write>, Context),
    /// A regular file.
    File(PartFile),
}

impl GetOutput {
    /// Opens a file, or standard output if there is none.
    ///
    /// # Errors
    /// Fails if the file cannot be written, or an interrupted download of it would be lost.
    pub(super) fn open(
        file: Option<&Path>,
        url: &GetUrl,
        continues: bool,
    ) -> Result<Self, Failure> {
        let hash = Context::new(&SHA256);
        let Some(path) = file else {
            return Ok(Self::Stream(Box::new(io::stdout()), hash));
        };
        let stuck = |why: &dyn std::fmt::Display| {
            Failure::Transfer(WRITE_ERROR, format!("--output {}: {why}", path.display()))
        };
        // A device or a pipe must not be replaced by a file.
        if std::fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir()) {
            let opened = std::fs::OpenOptions::new().write(true).open(path);
            return Ok(Self::Stream(Box::new(opened.map_err(|e| stuck(&e))?), hash));
        }
        if path.is_dir() {
            return Err(stuck(&"is a directory"));
        }
        let opened = PartFile::open(path, &url.to_string(), continues);
        Ok(Self::File(opened.map_err(|e| match e {
            line @ (PartFileError::Interrupted { .. } | PartFileError::InUse { .. }) => {
                Failure::Transfer(WRITE_ERROR, line.to_string())
            }
            other => stuck(&other),
        })?))
    }
}

/// A URL and its download.
pub(super) struct Transfer {
    /// URL of the command line.
    pub(super) asked: GetUrl,
    /// URL after redirects.
    pub(super) url: GetUrl,
    pub(super) file: Option<PathBuf>,
    pub(super) output: Option<GetOutput>,
    pub(super) redirects: u8,
    /// Verification of the server's certificate, if there is one.
    pub(super) trust: Option<Arc<ServerTrust>>,
    pub(super) begun: Instant,
    pub(super) length: Option<u64>,
    /// Bytes of content received by this run, and those that an earlier one had.
    pub(super) received: u64,
    pub(super) resumed: u64,
    /// Time that the transfer took, and its failure, after its end.
    ended: Option<(Duration, Option<(u8, String)>)>,
}

impl Transfer {
    pub(super) fn new(url: GetUrl, file: Option<PathBuf>) -> Self {
        Self {
            asked: url.clone(),
            url,
            file,
            output: None,
            redirects: 0,
            trust: None,
            begun: Instant::ZERO,
            length: None,
            received: 0,
            resumed: 0,
            ended: None,
        }
    }

    pub(super) const fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Prepares for content.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(super) fn begin(
        &mut self,
        length: Option<u64>,
        validator: Option<String>,
        resumed: bool,
    ) -> Result<(), Failure> {
        self.length = length;
        let Some(GetOutput::File(file)) = &mut self.output else { return Ok(()) };
        if resumed {
            self.resumed = file.written_bytes();
            return Ok(());
        }
        if file.resume_point().is_some() {
            eprintln!("outboard: {}: changed on the server, fetching it again", self.asked);
        }
        file.begin(length, validator).map_err(|e| self.write_failure(&e))
    }

    /// Writes content.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub(super) fn write(&mut self, now: Instant, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        let written = match &mut self.output {
            Some(GetOutput::Stream(stream, hash)) => {
                hash.update(bytes);
                stream.write_all(bytes)
            }
            Some(GetOutput::File(file)) => file.write(now, offset, bytes),
            None => Ok(()),
        };
        self.received += bytes.len() as u64;
        written.map_err(|e| self.write_failure(&e))
    }

    /// Saves the state of the file, if the last time is long ago.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub(super) fn save(&mut self, now: Instant) -> Result<(), Failure> {
        match &mut self.output {
            Some(GetOutput::File(file)) => file.save_if_due(now),
            _ => Ok(()),
        }
        .map_err(|e| self.write_failure(&e))
    }

    /// Checks and completes the file.
    ///
    /// # Errors
    /// Fails if the checksum is another one, or the file cannot be completed.
    pub(super) fn complete(&mut self, sha256: Option<Sha256Arg>) -> Result<(), Failure> {
        let result = match &mut self.output {
            Some(GetOutput::Stream(stream, hash)) => {
                let (sum, mut bytes) = (hash.clone().finish(), [0; 32]);
                bytes.copy_from_slice(sum.as_ref());
                stream.flush().map(|()| bytes)
            }
            Some(GetOutput::File(file)) if sha256.is_some() => file.sha256(),
            _ => Ok([0; 32]),
        };
        let sum = result.map_err(|e| self.write_failure(&e))?;
        if let Some(expected) = sha256.filter(|expected| expected.0 != sum) {
            self.abandon(false);
            let shown = |sum: [u8; 32]| sum.map(|byte| format!("{byte:02x}")).concat();
            let (sum, expected) = (shown(sum), shown(expected.0));
            let line = format!("{}: SHA-256 is {sum} instead of {expected}", self.asked);
            return Err(Failure::Transfer(WRONG_CHECKSUM, line));
        }
        let done = match &self.output {
            Some(GetOutput::File(file)) => file.complete(),
            _ => Ok(()),
        };
        done.map_err(|e| self.write_failure(&e))
    }

    /// Closes the file of an incomplete download; `keep` it if it can be continued.
    pub(super) fn abandon(&mut self, keep: bool) {
        if let Some(GetOutput::File(file)) = &self.output {
            if let Err(error) = file.abandon(keep) {
                eprintln!("outboard: {}: cannot keep the partial file: {error}", self.asked);
            }
        }
        self.output = None;
    }

    /// Notes the end of the transfer.
    pub(super) fn end(&mut self, now: Instant, failure: Option<&Failure>) {
        let failure = failure.map(|failure| (failure.code(), failure.to_string()));
        self.output = None;
        self.ended = Some((now.since(self.begun), failure));
    }

    /// Returns the failure for an error of the client.
    pub(super) fn failure(&self, error: &GetError) -> Failure {
        let refused = self.trust.as_ref().and_then(|trust| trust.last_error());
        let early = matches!(error, GetError::Tls(_) | GetError::Quic { established: false, .. });
        match refused.filter(|_| early) {
            Some(why) => {
                let line = format!(
                    "{}: certificate refused: {why}; trust it with --cacert, or accept any with \
                     --insecure",
                    self.url
                );
                Failure::Transfer(CERTIFICATE_REFUSED, line)
            }
            None => Failure::Transfer(error.curl_code(), format!("{}: {error}", self.url)),
        }
    }

    fn write_failure(&self, error: &io::Error) -> Failure {
        let name =
            self.file.as_ref().map_or_else(|| "standard output".into(), |f| f.to_string_lossy());
        Failure::Transfer(WRITE_ERROR, format!("cannot write {name}: {error}"))
    }

    /// Returns the result for `--json`.
    pub(super) fn report(&self) -> Value {
        let (took, failure) = match &self.ended {
            Some((took, failure)) => (Some(took.as_micros()), failure.as_ref()),
            None => (None, None),
        };
        json!({
            "url": self.asked.to_string(),
            "final_url": self.url.to_string(),
            "file": self.file.as_ref().map(|file| file.to_string_lossy()),
            "length": self.length,
            "received_bytes": self.received,
            "resumed_bytes": self.resumed,
            "microseconds": took,
            "exit_code": failure.map(|(code, _)| code).unwrap_or(&0),
            "error": failure.map(|(_, line)| line),
        })
    }
}
