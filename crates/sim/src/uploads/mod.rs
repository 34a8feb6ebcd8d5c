//! Scenarios with uploads: their parameters, and the requests of each client.
//!
//! In three of ten scenarios without a proxy and without storage, the server accepts uploads to a
//! directory below its root, and some clients send files by PUT: over TCP, with TLS if the scenario
//! has it, or over QUIC. After each upload the client gets the file. Every session has a path of
//! its own, so that [`ledger`] knows the permitted contents of the path at each time. Clients
//! break off, the disk fails, the quota is used up, and the server's machine is killed and starts
//! again. [`crate::faults`] draws the parameters with the rest of a scenario.

pub(crate) mod ledger;

use std::collections::BTreeSet;

use base::{Duration, Prng};

use crate::content::VersionCatalog;
use crate::http::{FileRequest, PutRequest, RequestKind};
use crate::trace::mix;

/// Chosen so that the seeds kept as regression tests have no uploads.
const SALT: u64 = 0x0910_ad00_0b37;
/// Number of the first file that is uploaded, in the catalog of versions.
const FIRST_FILE: usize = 1_000;
/// A quota or a limit that is never reached.
const UNLIMITED: u64 = 1 << 40;

/// The uploads of a session to one path.
#[derive(Clone, Debug)]
pub(crate) struct UploadSession {
    /// Node of the client.
    pub(crate) client: usize,
    /// Over HTTP/3.
    pub(crate) http3: bool,
    /// Requests: uploads, each followed by a GET of the file.
    pub(crate) requests: Vec<FileRequest>,
    /// Requests after the faults, for another path.
    pub(crate) last: Vec<FileRequest>,
    /// Times from the opening of a connection after which the client breaks it off, one for each of
    /// the first connections.
    pub(crate) breaks: Vec<Duration>,
    /// Maximum number of pipelined requests over TCP.
    pub(crate) depth: usize,
    /// The server's responses are read as slowly as by the scenario's other clients.
    pub(crate) piece: Option<(usize, Duration)>,
}

/// Uploads in a scenario.
#[derive(Clone, Debug)]
pub(crate) struct UploadScenario {
    /// Bytes that the files may have in all.
    pub(crate) quota: u64,
    /// Largest size of a file.
    pub(crate) file_bytes_max: u64,
    pub(crate) sessions: Vec<UploadSession>,
    /// Number of times that the server's machine is killed and starts again.
    pub(crate) kills: u64,
    /// Probabilities that a write, a flush or a publication fails, and that a write fails for lack
    /// of space.
    pub(crate) write_error: f64,
    pub(crate) no_space: f64,
}

impl UploadScenario {
    /// Uses a generator of its own: scenarios without uploads do not depend on these draws.
    pub(crate) fn draw(
        seed: u64,
        clients: usize,
        (calm_net, calm_disk): (bool, bool),
        quic: bool,
    ) -> Option<Self> {
        let r = &mut Prng::new(seed ^ SALT);
        if !r.chance(0.3) {
            return None;
        }
        let kills = if !calm_net && r.chance(0.5) { r.range(1, 3) } else { 0 };
        let errors = !calm_disk && r.chance(0.4);
        let write_error = if errors && r.chance(0.7) { r.unit() * 0.2 } else { 0.0 };
        let no_space = if errors && r.chance(0.5) { r.unit() * 0.2 } else { 0.0 };
        let file_bytes_max = if r.chance(0.2) { r.range(20_000, 200_000) } else { UNLIMITED };
        let is_tight = r.chance(0.25);
        let mut drawn = UploadDraws { seed, next_file: FIRST_FILE, file_bytes_max, is_tight };
        let mut sessions = Vec::new();
        for client in 1..=clients {
            for http3 in [false, true] {
                if (http3 && !quic) || !r.chance(0.7) {
                    continue;
                }
                sessions.push(drawn.session(r, client, http3, calm_net));
            }
        }
        let total: u64 = sessions.iter().map(UploadSession::bytes).sum();
        let quota = if is_tight { r.range(total / 4, total + 1) } else { UNLIMITED };
        Some(Self { quota, file_bytes_max, sessions, kills, write_error, no_space })
    }

    /// Returns whether every upload succeeds, or fails for the same reason in each run, whichever
    /// half does the work, with the probability that a disk stalls.
    pub(crate) fn is_certain(&self, disk_stall: f64) -> bool {
        !self.breaks() && self.kills == 0 && self.quota == UNLIMITED && disk_stall == 0.0
    }

    /// Returns whether the server may refuse an upload while its content arrives.
    pub(crate) const fn refuses(&self) -> bool {
        self.quota != UNLIMITED || self.file_bytes_max != UNLIMITED
    }

    /// Returns whether the server may fail an upload by its own fault.
    pub(crate) fn may_fail(&self) -> bool {
        self.write_error > 0.0 || self.no_space > 0.0
    }

    /// Returns whether clients break off.
    pub(crate) fn breaks(&self) -> bool {
        self.sessions.iter().any(|session| !session.breaks.is_empty())
    }

    /// Returns the requests of all sessions.
    fn requests(&self) -> impl Iterator<Item = &FileRequest> {
        self.sessions.iter().flat_map(|session| session.requests.iter().chain(&session.last))
    }

    /// Adds the contents of all uploads to the catalog, so that responses with them are known.
    pub(crate) fn add_versions(&self, known: &mut VersionCatalog) {
        for request in self.requests() {
            if let RequestKind::Put(put) = &request.want {
                known.add(request.version, request.file, put.size);
            }
        }
    }

    /// Returns the path of each file that may exist, below the directory for uploads, with its
    /// number.
    pub(crate) fn paths(&self) -> impl Iterator<Item = (String, usize)> {
        let stored = self.requests().filter(|request| request.want == RequestKind::Stored);
        stored.map(|request| (request.path.clone(), request.file))
    }

    /// Returns the sessions of a client.
    pub(crate) fn of(&self, client: usize, http3: bool) -> Option<&UploadSession> {
        self.sessions.iter().find(|session| session.client == client && session.http3 == http3)
    }
}

impl UploadSession {
    fn bytes(&self) -> u64 {
        let size = |request: &FileRequest| match &request.want {
            RequestKind::Put(put) => put.size,
            _ => 0,
        };
        self.requests.iter().chain(&self.last).map(size).sum()
    }
}

/// State of the draws of a scenario's sessions.
struct UploadDraws {
    seed: u64,
    next_file: usize,
    file_bytes_max: u64,
    is_tight: bool,
}

impl UploadDraws {
    fn session(
        &mut self,
        r: &mut Prng,
        client: usize,
        http3: bool,
        calm_net: bool,
    ) -> UploadSession {
        let count = r.range(1, 4);
        let requests = self.requests(r, count, false);
        let last = self.requests(r, 1, true);
        let breaks = if !calm_net && r.chance(0.35) { r.range(1, 3) } else { 0 };
        let breaks = (0..breaks).map(|_| Duration::from_micros(r.below(400_000))).collect();
        let depth = if r.chance(0.7) { 1 } else { r.range(2, 4) as usize };
        let piece = r.chance(0.3).then(|| {
            let bytes = r.range(500, 30_000) as usize;
            (bytes, Duration::from_micros(r.range(50, 10_000)))
        });
        UploadSession { client, http3, requests, last, breaks, depth, piece }
    }

    /// Returns uploads to one path, each with another size, and the GETs that follow them.
    fn requests(&mut self, r: &mut Prng, count: u64, is_last: bool) -> Vec<FileRequest> {
        let file = self.next_file;
        self.next_file += 1;
        let (mut sizes, mut requests) = (BTreeSet::new(), Vec::new());
        for index in 0..count {
            let odd = if is_last || !r.chance(0.1) { 3 } else { r.below(2) };
            let mut size = if is_last || odd < 3 { r.below(3_000) } else { draw_size(r) };
            while !sizes.insert(size) {
                size += 1;
            }
            let (path, refusal) = match odd {
                0 => (format!("no/such/u{file}"), Some(404)),
                1 => (format!(".u{file}"), Some(403)),
                _ => (format!("u{file}"), (size > self.file_bytes_max).then_some(413)),
            };
            let put = PutRequest {
                size,
                chunk: r.chance(0.4).then(|| r.range(1_000, 50_000)),
                keep: r.chance(0.15),
                expects: r.chance(0.2),
                may_be_full: self.is_tight,
                refusal,
            };
            let version = mix(self.seed ^ mix((file as u64) << 16 ^ index ^ SALT));
            requests.push(FileRequest { want: RequestKind::Put(put), file, path, version });
            let path = format!("u{file}");
            requests.push(FileRequest { want: RequestKind::Stored, file, path, version: 0 });
        }
        requests
    }
}

/// Draws the size of a file: small, or several writes of 128 KiB.
fn draw_size(r: &mut Prng) -> u64 {
    match r.below(10) {
        0 => r.below(20),
        1..=4 => r.below(5_000),
        5..=7 => r.below(150_000),
        _ => r.below(500_000),
    }
}
