//! Pre-shared keys: from the command line and files to TLS handshakes.
//!
//! [`PskStore`] holds the keys of one end under all of their identities, and creates a handshake
//! for each connection. The handshake itself is [`tls_psk`]'s; crate `nvme-psk` parses and derives
//! keys. Errors never contain keys, nor words that may be misplaced keys. A target reads its file
//! again on SIGHUP; if the new file is invalid, the old keys stay in use.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apps::nvme::handshake::{
    NvmeHandshakeProgress, NvmeHandshakeResult, NvmeTlsHandshake, NvmeTlsHandshakeFactory,
};
use host::{TlsKeys, TlsSecrets};
use nvme_psk::{ConfiguredPsk, Derivation, IdentityVersion, PskHash, TlsPsk};
use rustls::crypto::CryptoProvider;
use tls_psk as psk;
use wire::nvme::nqn::Nqn;
use wire::tls::client_hello::{self, ClientHello, extension};
use zeroize::Zeroizing;

use super::args::{DerivationArg, SecurityArgs, TargetArgs};
use cli::Failure;

/// A host's NQN and its key.
struct HostKey {
    host: Nqn,
    key: ConfiguredPsk,
}

/// Keys by their identities in the handshake.
type PskIndex = BTreeMap<Vec<u8>, psk::ExternalPsk>;

/// Keys of one end.
pub(super) struct PskStore {
    keys: Arc<Mutex<PskIndex>>,
    provider: Arc<CryptoProvider>,
    /// Reason of the last failed handshake.
    last_failure: Arc<Mutex<Option<psk::TlsPskFailure>>>,
}

impl PskStore {
    /// Returns the keys of a target, for its subsystem and for discovery; `None` if none are
    /// configured.
    ///
    /// # Errors
    /// Fails if a key is invalid, or if the file cannot be read.
    pub(super) fn target(args: &TargetArgs) -> Result<Option<Arc<Self>>, Failure> {
        let hosts = hosts(args)?;
        if hosts.is_empty() {
            return Ok(None);
        }
        Self::new(derive_all(args, &hosts)?).map(Some)
    }

    /// Reads a target's file again, and prints the result on standard error. Established
    /// connections continue.
    pub(super) fn reload(&self, args: &TargetArgs) {
        let read =
            hosts(args).and_then(|hosts| Ok((hosts.len(), index_keys(derive_all(args, &hosts)?)?)));
        match read {
            Ok((count, keys)) => {
                *lock(&self.keys) = keys;
                eprintln!("outboard: SIGHUP: reloaded {count} pre-shared keys");
            }
            Err(error) => eprintln!("outboard: SIGHUP: {error}; keeping the old keys"),
        }
    }

    /// Returns the key of an initiator for a subsystem; `None` if none is configured.
    ///
    /// # Errors
    /// As for [`Self::target`]; also if the host's NQN is not given.
    pub(super) fn initiator(
        args: &SecurityArgs,
        host: Option<Nqn>,
        subsystem: &Nqn,
    ) -> Result<Option<Arc<Self>>, Failure> {
        if args.tls_psk.is_none() && args.tls_psk_file.is_none() {
            return Ok(None);
        }
        let host = host.ok_or_else(|| {
            let line = "a pre-shared key requires --hostnqn";
            Failure::Usage(line.to_owned())
        })?;
        let key = match (&args.tls_psk, &args.tls_psk_file) {
            (Some(text), _) => {
                text.parse().map_err(|why| Failure::Usage(format!("invalid --tls-psk: {why}")))?
            }
            (None, Some(path)) => {
                let found = read(path)?.into_iter().find(|one| one.host == host);
                let none =
                    || format!("{}: no key for host {host}; check --hostnqn", path.display());
                found.ok_or_else(|| Failure::NoInput(none()))?.key
            }
            (None, None) => return Ok(None),
        };
        let version = match args.tls_psk_version {
            0 => IdentityVersion::Zero,
            _ => IdentityVersion::One,
        };
        let psk = derive(&key, version, (&host, subsystem), args.tls_psk_derivation);
        Self::new(vec![psk.ok_or_else(|| too_long(&host, subsystem))?]).map(Some)
    }

    fn new(all: Vec<TlsPsk>) -> Result<Arc<Self>, Failure> {
        let keys = Arc::new(Mutex::new(index_keys(all)?));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        Ok(Arc::new(Self { keys, provider, last_failure: Arc::default() }))
    }

    /// Returns the reason for which the last handshake failed, if that was detected at this end.
    pub(super) fn last_failure(&self) -> Option<psk::TlsPskFailure> {
        *lock(&self.last_failure)
    }

    fn new_handshake(&self, end: PskHandshakeState, is_client: bool) -> Box<dyn NvmeTlsHandshake> {
        let (provider, why) = (Arc::clone(&self.provider), Arc::clone(&self.last_failure));
        Box::new(PskHandshake { end, is_client, provider, last_failure: why })
    }
}

/// Locks even if poisoned: no code under the lock panics.
fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NvmeTlsHandshakeFactory for PskStore {
    fn server(&self) -> Option<Box<dyn NvmeTlsHandshake>> {
        Some(self.new_handshake(
            PskHandshakeState::AwaitingHello { keys: Arc::clone(&self.keys), incomplete_hellos: 0 },
            false,
        ))
    }

    fn client(&self) -> Option<Box<dyn NvmeTlsHandshake>> {
        let keys: Vec<_> = lock(&self.keys).values().cloned().collect();
        psk::TlsPskHandshake::client(&keys)
            .ok()
            .map(|end| self.new_handshake(PskHandshakeState::Running(end), true))
    }
}

/// One end of a handshake.
struct PskHandshake {
    end: PskHandshakeState,
    is_client: bool,
    provider: Arc<CryptoProvider>,
    last_failure: Arc<Mutex<Option<psk::TlsPskFailure>>>,
}

enum PskHandshakeState {
    /// A server before the ClientHello. It then uses only the keys that the client offers, so that
    /// an idle connection costs no memory, however many keys there are.
    AwaitingHello {
        keys: Arc<Mutex<PskIndex>>,
        /// Number of times that the ClientHello was incomplete.
        incomplete_hellos: usize,
    },
    Running(psk::TlsPskHandshake),
}

/// Maximum number of records of a ClientHello. One is usual; each further one costs another parse.
const HELLO_RECORDS_MAX: usize = 16;
/// Maximum number of known keys that are accepted from one ClientHello.
const OFFERED_MAX: usize = 16;

impl PskHandshakeState {
    /// Returns the handshake once the ClientHello is complete. If the client offers no known key,
    /// the handshake starts as well, and fails with an alert.
    fn start_if_ready(
        &mut self,
        received: &[u8],
    ) -> Result<Option<&mut psk::TlsPskHandshake>, psk::TlsPskSetupError> {
        if let Self::AwaitingHello { keys, incomplete_hellos: looks } = self {
            let offered = match ClientHello::parse(received) {
                ClientHello::Incomplete if *looks < HELLO_RECORDS_MAX => {
                    *looks += usize::from(!received.is_empty());
                    return Ok(None);
                }
                ClientHello::Whole(body) => offered(&body, &lock(keys)),
                ClientHello::Incomplete | ClientHello::Malformed => Vec::new(),
            };
            *self = Self::Running(psk::TlsPskHandshake::server(&offered)?);
        }
        match self {
            Self::Running(handshake) => Ok(Some(handshake)),
            Self::AwaitingHello { .. } => Ok(None),
        }
    }
}

/// Returns the known keys that a client offers.
fn offered(hello: &[u8], keys: &PskIndex) -> Vec<psk::ExternalPsk> {
    let content = client_hello::find_extension(hello, extension::PRE_SHARED_KEY)
        .flatten()
        .unwrap_or_default();
    let known = client_hello::psk_identities(content).filter_map(|identity| keys.get(identity));
    known.take(OFFERED_MAX).cloned().collect()
}

impl NvmeTlsHandshake for PskHandshake {
    fn advance(&mut self, received: &[u8], out: &mut Vec<u8>) -> NvmeHandshakeProgress {
        let handshake = match self.end.start_if_ready(received) {
            Ok(Some(handshake)) => handshake,
            Ok(None) => return NvmeHandshakeProgress::More { used: 0 },
            Err(_) => return NvmeHandshakeProgress::Failed { used: 0 },
        };
        let (used, agreed) = match handshake.advance(received, out) {
            psk::TlsPskProgress::More { used } => return NvmeHandshakeProgress::More { used },
            psk::TlsPskProgress::Failed { used, reason: why } => {
                *lock(&self.last_failure) = Some(why);
                return NvmeHandshakeProgress::Failed { used };
            }
            psk::TlsPskProgress::Done { used, secrets: agreed } => (used, *agreed),
        };
        let psk::TlsPskSecrets { suite, tx_secret, rx_secret, identity } = agreed;
        let secrets = TlsSecrets { suite, is_client: self.is_client, tx: tx_secret, rx: rx_secret };
        let crypto = Arc::new(crypto::Provider);
        match TlsKeys::from_secrets(&secrets, &self.provider, crypto) {
            Some(keys) => NvmeHandshakeProgress::Done {
                used,
                result: Box::new(NvmeHandshakeResult { keys, identity }),
            },
            None => NvmeHandshakeProgress::Failed { used },
        }
    }
}

impl From<DerivationArg> for Derivation {
    fn from(arg: DerivationArg) -> Self {
        match arg {
            DerivationArg::Rfc8446 => Self::Rfc8446,
            DerivationArg::Libnvme => Self::Libnvme,
        }
    }
}

/// Returns the keys of a target's command line and of its file.
fn hosts(args: &TargetArgs) -> Result<Vec<HostKey>, Failure> {
    let wrong = |why| Failure::Usage(format!("invalid --tls-psk: {why}"));
    let given = args.tls_psk.iter().map(|given| host_key(given).map_err(wrong));
    let mut all = given.collect::<Result<Vec<_>, _>>()?;
    if let Some(path) = &args.tls_psk_file {
        all.extend(read(path)?);
    }
    Ok(all)
}

/// Derives all keys of a target's hosts: for the subsystem and for discovery, in both versions.
fn derive_all(args: &TargetArgs, hosts: &[HostKey]) -> Result<Vec<TlsPsk>, Failure> {
    let mut all: Vec<TlsPsk> = Vec::new();
    for HostKey { host, key } in hosts {
        for subsystem in [args.nqn.0, Nqn::discovery()] {
            let versions = [IdentityVersion::One, IdentityVersion::Zero];
            // Names may be too long for version 0 only.
            let derived = versions
                .map(|version| derive(key, version, (host, &subsystem), args.tls_psk_derivation));
            if derived.iter().all(Option::is_none) {
                return Err(too_long(host, &subsystem));
            }
            all.extend(derived.into_iter().flatten());
        }
    }
    Ok(all)
}

/// Converts keys for handshakes; fails now if the TLS library refuses one.
fn index_keys(all: Vec<TlsPsk>) -> Result<PskIndex, Failure> {
    let mut keys = PskIndex::new();
    for psk in all {
        let hash = match psk.hash {
            PskHash::Sha256 => psk::TlsPskHash::Sha256,
            PskHash::Sha384 => psk::TlsPskHash::Sha384,
        };
        let key =
            [psk::ExternalPsk { identity: psk.identity.into_bytes(), secret: psk.secret, hash }];
        psk::TlsPskHandshake::server(&key)
            .map_err(|e| Failure::System(format!("pre-shared keys: {e}")))?;
        // All keys of a host have the same identity in version 0, so only the first one is kept.
        for one in key {
            keys.entry(one.identity.clone()).or_insert(one);
        }
    }
    Ok(keys)
}

/// Derives a key; `None` if the names are too long for this version.
fn derive(
    key: &ConfiguredPsk,
    version: IdentityVersion,
    (host, subsystem): (&Nqn, &Nqn),
    derivation: DerivationArg,
) -> Option<TlsPsk> {
    let derivation = derivation.into();
    let retained = key.retained(host.as_str(), derivation)?;
    retained.tls(version, host.as_str(), subsystem.as_str(), derivation)
}

fn too_long(host: &Nqn, subsystem: &Nqn) -> Failure {
    let line = format!("NQNs {host} and {subsystem} are too long for a PSK identity");
    Failure::Usage(line)
}

/// Parses `HOSTNQN=KEY`. Names may contain `=`, so the start of the key is searched.
fn host_key(text: &str) -> Result<HostKey, String> {
    let at = text.find("=NVMeTLSkey-").ok_or("expected HOSTNQN=NVMeTLSkey-1:...")?;
    let (host, key) = text.split_at(at);
    parse_host_and_key(host, key.get(1..).unwrap_or_default())
}

/// Parses a host's NQN and its key. Error messages do not repeat the words, since either may be a
/// key.
fn parse_host_and_key(host: &str, key: &str) -> Result<HostKey, String> {
    let name = Nqn::new(host).filter(|_| !host.contains("NVMeTLSkey-"));
    let host = name.ok_or("invalid host NQN")?;
    let key = key.parse().map_err(|why| format!("invalid key: {why}"))?;
    Ok(HostKey { host, key })
}

/// Reads a file of keys, with a host's NQN and its key on each line.
fn read(path: &Path) -> Result<Vec<HostKey>, Failure> {
    let wrong = |why: String| Failure::NoInput(format!("{}{why}", path.display()));
    let text = std::fs::read_to_string(path).map(Zeroizing::new);
    let text = text.map_err(|e| wrong(format!(": {e}")))?;
    let mut keys = Vec::new();
    for (line, number) in text.lines().map(str::trim).zip(1..) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let key = match line.split_once(char::is_whitespace) {
            Some((host, key)) => parse_host_and_key(host, key.trim_start()),
            None => Err("expected HOSTNQN and KEY".to_owned()),
        };
        keys.push(key.map_err(|why| wrong(format!(", line {number}: {why}")))?);
    }
    if keys.is_empty() {
        return Err(wrong(": no keys found".to_owned()));
    }
    Ok(keys)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A key of 32 zero bytes, with SHA-256.
    fn key() -> String {
        let psk = Zeroizing::new(vec![0; 32]);
        ConfiguredPsk::new(Some(PskHash::Sha256), psk).unwrap().to_interchange().to_string()
    }

    /// Parses a target's command line.
    pub(in super::super) fn target(options: &[&str]) -> TargetArgs {
        use clap::Parser as _;
        let all = [&["outboard", "nvme", "target", "--namespace", "disk"], options].concat();
        match crate::args::Cli::parse_from(all).verb {
            crate::args::CliSubcommand::Nvme(super::super::NvmeSubcommand::Target(args)) => *args,
            _ => panic!("a target"),
        }
    }

    #[test]
    fn keys_are_read_and_never_said() {
        let right = host_key(&format!("nqn.2026-11.example:a=b={}", key()));
        assert_eq!(right.ok().unwrap().host.as_str(), "nqn.2026-11.example:a=b");
        let mut wrong = key();
        wrong.replace_range(17..18, "B");
        for (text, why) in [
            (key(), "expected HOSTNQN="),
            ("nqn.2026-11.example:a".to_owned(), "expected HOSTNQN="),
            (format!("host={}", key()), "invalid host NQN"),
            (format!("{}={}", key(), key()), "invalid host NQN"),
            (format!("nqn.2026-11.example:{}={}", key(), key()), "invalid host NQN"),
            (format!("nqn.2026-11.example:a={wrong}"), "checksum"),
        ] {
            let said = host_key(&text).err().unwrap();
            assert!(said.contains(why), "{said}");
            assert!(!said.contains("AAAA"), "{said}");
        }
    }

    #[test]
    fn files_have_comments() {
        let path = std::env::temp_dir().join(format!("outboard-psk-{}", std::process::id()));
        let good = format!("# keys\n\n nqn.2026-11.example:a \t{}\n", key());
        std::fs::write(&path, &good).unwrap();
        assert_eq!(read(&path).ok().unwrap().len(), 1);
        for (text, why) in [
            ("# nothing\n".to_owned(), "no keys found"),
            (format!("{good}nqn.2026-11.example:b"), ", line 4: expected HOSTNQN"),
            (format!("{good}nqn.2026-11.example:b NVMeTLSkey-1:01:AA"), ", line 4: invalid key"),
            (format!("{} nqn.2026-11.example:a", key()), ", line 1: invalid host NQN"),
            (format!("host={} # one", key()), ", line 1: invalid host NQN"),
            (format!("nqn.2026-11.example:a={} # one", key()), ", line 1: invalid host NQN"),
            (format!("nqn.2026-11.example:a {} # one", key()), ", line 1: invalid key"),
        ] {
            std::fs::write(&path, text).unwrap();
            let said = read(&path).err().unwrap().to_string();
            assert!(said.contains(why), "{said}");
            assert!(!said.contains("AAAA"), "{said}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn names_too_long_for_version_0_have_version_1() {
        let name = |letter: &str, len| format!("nqn.2026-11.example:{}", letter.repeat(len));
        let nqn = format!("--nqn={}", name("s", 200));
        let args = target(&[&nqn, &format!("--tls-psk={}={}", name("h", 120), key())]);
        let all = derive_all(&args, &hosts(&args).unwrap()).unwrap();
        let versions: Vec<_> = all.iter().map(|psk| &psk.identity[..8]).collect();
        // The subsystem in version 1 only; the discovery service, whose name is short, in both.
        assert_eq!(versions, ["NVMe1R01", "NVMe1R01", "NVMe0R01"]);
    }

    #[test]
    fn a_file_is_read_again_and_a_wrong_one_changes_nothing() {
        let path = std::env::temp_dir().join(format!("outboard-again-{}", std::process::id()));
        let [one, two] = ["a", "b"].map(|host| format!("nqn.2026-11.example:{host}"));
        let file = format!("--tls-psk-file={}", path.display());
        let args = target(&[&file, &format!("--tls-psk={one}={}", key())]);
        std::fs::write(&path, format!("{one} {}\n", key())).unwrap();
        let psks = PskStore::target(&args).unwrap().unwrap();
        let known = |host: &str| {
            let called =
                |key: &psk::ExternalPsk| String::from_utf8_lossy(&key.identity).contains(host);
            lock(&psks.keys).values().any(called)
        };
        assert!(known(&one) && !known(&two));
        for (text, has_two) in [
            (format!("{two} {}\n", key()), true),
            ("# none\n".to_owned(), true),
            (format!("{one} {}\n", key()), false),
        ] {
            std::fs::write(&path, text).unwrap();
            psks.reload(&args);
            // The key of the command line stays.
            assert!(known(&one));
            assert_eq!(known(&two), has_two);
        }
        std::fs::remove_file(&path).unwrap();
    }

    /// Runs a handshake of the target's end with a client that has `key`, whose ClientHello arrives
    /// in records of `cut` bytes. Returns the identity, or the target's reason of the failure.
    fn shake(
        psks: &PskStore,
        key: psk::ExternalPsk,
        cut: usize,
    ) -> Result<String, Option<psk::TlsPskFailure>> {
        let (mut server, mut client) =
            (psks.server().unwrap(), psk::TlsPskHandshake::client(&[key]).unwrap());
        let (mut up, mut down) = (Vec::new(), Vec::new());
        assert!(matches!(server.advance(&[], &mut down), NvmeHandshakeProgress::More { used: 0 }));
        client.advance(&[], &mut up);
        let record = |part: &[u8]| {
            let len = u16::try_from(part.len()).unwrap().to_be_bytes();
            [&[22, 3, 1][..], &len, part].concat()
        };
        let mut came = Vec::new();
        // Like the channel: one more record at a time, after the bytes that were not used yet.
        let records: Vec<_> = up[5..].chunks(cut).map(record).collect();
        for record in records.iter().map(|record| &record[..]) {
            came.extend_from_slice(record);
            match server.advance(&came, &mut down) {
                NvmeHandshakeProgress::More { used } => drop(came.drain(..used)),
                NvmeHandshakeProgress::Done { .. } => panic!("without the client's Finished"),
                NvmeHandshakeProgress::Failed { .. } => return Err(psks.last_failure()),
            }
        }
        up.clear();
        assert!(matches!(client.advance(&down, &mut up), psk::TlsPskProgress::Done { .. }));
        match server.advance(&up, &mut down) {
            NvmeHandshakeProgress::Done { result: agreed, .. } => {
                Ok(String::from_utf8(agreed.identity).unwrap())
            }
            _ => Err(psks.last_failure()),
        }
    }

    #[test]
    fn only_offered_keys_are_tried() {
        let options: Vec<_> =
            (0..300).map(|n| format!("--tls-psk=nqn.2026-11.example:{n}={}", key())).collect();
        let args = target(&options.iter().map(String::as_str).collect::<Vec<_>>());
        let psks = PskStore::target(&args).unwrap().unwrap();
        assert_eq!(lock(&psks.keys).len(), 1200);
        let host =
            |of: &psk::ExternalPsk| String::from_utf8_lossy(&of.identity).contains("example:123 ");
        let known = lock(&psks.keys).values().find(|key| host(key)).unwrap().clone();
        let name = String::from_utf8(known.identity.clone()).unwrap();
        for cut in [16_000, 100] {
            assert_eq!(shake(&psks, known.clone(), cut), Ok(name.clone()));
        }
        // A ClientHello in too many records is refused.
        assert!(shake(&psks, known.clone(), 10).is_err());
        let other = psk::ExternalPsk { identity: b"NVMe1R01 nobody".to_vec(), ..known.clone() };
        assert_eq!(shake(&psks, other, 16_000), Err(Some(psk::TlsPskFailure::NoKey)));
        let other = psk::ExternalPsk { secret: Zeroizing::new(vec![1; 32]), ..known };
        assert_eq!(shake(&psks, other, 16_000), Err(Some(psk::TlsPskFailure::SecretMismatch)));
    }
}
