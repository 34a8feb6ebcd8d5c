//! Pre-shared keys: from the command line and files to handshakes of TLS.
//!
//! [`Psks`] has the keys of one end, made for all that they may be called, and makes a handshake
//! for each connection. What goes over the wire is [`io::psk`]'s; how keys are written and derived
//! [`crypto::nvme_psk`]'s. No key is in an error, and no word either that may be a misplaced one.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use apps::nvme::handshake::{Agreed, Handshake, Handshakes, Progress};
use crypto::nvme_psk::{ConfiguredPsk, Derivation, IdentityVersion, PskHash, TlsPsk};
use host::{TlsKeys, TlsSecrets};
use io::psk;
use rustls::crypto::CryptoProvider;
use wire::nvme::nqn::Nqn;
use zeroize::Zeroizing;

use super::args::{DerivationArg, SecurityArgs, TargetArgs};
use crate::error::Failure;

/// A host's name and its key.
struct HostKey {
    host: Nqn,
    key: ConfiguredPsk,
}

/// Keys of one end.
pub(super) struct Psks {
    keys: Vec<psk::Key>,
    provider: Arc<CryptoProvider>,
    /// Why the last handshake failed.
    why: Arc<Mutex<Option<psk::Why>>>,
}

impl Psks {
    /// Those of a target, for its subsystem and for discovery; none where it was given none.
    ///
    /// # Errors
    /// What is wrong with a key, or with the file.
    pub(super) fn target(args: &TargetArgs) -> Result<Option<Arc<Self>>, Failure> {
        let mut hosts = Vec::new();
        for given in &args.tls_psk {
            hosts.push(host_key(given).map_err(|why| Failure::Usage(format!("--tls-psk: {why}")))?);
        }
        if let Some(path) = &args.tls_psk_file {
            hosts.extend(read(path)?);
        }
        if hosts.is_empty() {
            return Ok(None);
        }
        let mut all: Vec<TlsPsk> = Vec::new();
        for HostKey { host, key } in &hosts {
            for subsystem in [args.nqn.0, Nqn::discovery()] {
                for version in [IdentityVersion::One, IdentityVersion::Zero] {
                    let psk = derive(key, version, (host, &subsystem), args.tls_psk_derivation)?;
                    // Of several keys of a host version 0 knows one: they are called the same.
                    if all.iter().all(|other| other.identity != psk.identity) {
                        all.push(psk);
                    }
                }
            }
        }
        Self::new(all).map(Some)
    }

    /// That of an initiator towards a subsystem; none where it was given none.
    ///
    /// # Errors
    /// As for [`Self::target`], or that nobody knows whose key it is.
    pub(super) fn initiator(
        args: &SecurityArgs,
        host: Option<Nqn>,
        subsystem: &Nqn,
    ) -> Result<Option<Arc<Self>>, Failure> {
        if args.tls_psk.is_none() && args.tls_psk_file.is_none() {
            return Ok(None);
        }
        let host = host.ok_or_else(|| {
            let line = "a key is a host's: say by --hostnqn which one this is";
            Failure::Usage(line.to_owned())
        })?;
        let key = match (&args.tls_psk, &args.tls_psk_file) {
            (Some(text), _) => {
                text.parse().map_err(|why| Failure::Usage(format!("--tls-psk: {why}")))?
            }
            (None, Some(path)) => {
                let found = read(path)?.into_iter().find(|one| one.host == host);
                let none = || format!("{}: no key of {host}; see --hostnqn", path.display());
                found.ok_or_else(|| Failure::NoInput(none()))?.key
            }
            (None, None) => return Ok(None),
        };
        let version = match args.tls_psk_version {
            0 => IdentityVersion::Zero,
            _ => IdentityVersion::One,
        };
        let psk = derive(&key, version, (&host, subsystem), args.tls_psk_derivation)?;
        Self::new(vec![psk]).map(Some)
    }

    fn new(all: Vec<TlsPsk>) -> Result<Arc<Self>, Failure> {
        let keys = all.into_iter().map(|psk| psk::Key {
            identity: psk.identity.into_bytes(),
            secret: psk.secret,
            hash: match psk.hash {
                PskHash::Sha256 => psk::Hash::Sha256,
                PskHash::Sha384 => psk::Hash::Sha384,
            },
        });
        let keys: Vec<_> = keys.collect();
        // A library that refuses them says so now.
        psk::Handshake::server(&keys)
            .map_err(|e| Failure::System(format!("pre-shared keys: {e}")))?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        Ok(Arc::new(Self { keys, provider, why: Arc::default() }))
    }

    /// Why the last handshake failed, where that was known at this end.
    pub(super) fn why(&self) -> Option<psk::Why> {
        *self.why.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handshake(
        &self,
        handshake: Result<psk::Handshake, psk::Unusable>,
        is_client: bool,
    ) -> Option<Box<dyn Handshake>> {
        let (provider, why) = (Arc::clone(&self.provider), Arc::clone(&self.why));
        Some(Box::new(Shake { handshake: handshake.ok()?, is_client, provider, why }))
    }
}

impl Handshakes for Psks {
    fn server(&self) -> Option<Box<dyn Handshake>> {
        self.handshake(psk::Handshake::server(&self.keys), false)
    }

    fn client(&self) -> Option<Box<dyn Handshake>> {
        self.handshake(psk::Handshake::client(&self.keys), true)
    }
}

/// One end of a handshake.
struct Shake {
    handshake: psk::Handshake,
    is_client: bool,
    provider: Arc<CryptoProvider>,
    why: Arc<Mutex<Option<psk::Why>>>,
}

impl Handshake for Shake {
    fn advance(&mut self, received: &[u8], out: &mut Vec<u8>) -> Progress {
        let (used, agreed) = match self.handshake.advance(received, out) {
            psk::Progress::More { used } => return Progress::More { used },
            psk::Progress::Failed { used, why } => {
                // Nothing under the lock panics.
                *self.why.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
                return Progress::Failed { used };
            }
            psk::Progress::Done { used, agreed } => (used, *agreed),
        };
        let psk::Agreed { suite, tx_secret, rx_secret, identity } = agreed;
        let secrets = TlsSecrets { suite, is_client: self.is_client, tx: tx_secret, rx: rx_secret };
        let crypto = Arc::new(crypto::Provider);
        match TlsKeys::from_secrets(&secrets, &self.provider, crypto) {
            Some(keys) => Progress::Done { used, agreed: Box::new(Agreed { keys, identity }) },
            None => Progress::Failed { used },
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

fn derive(
    key: &ConfiguredPsk,
    version: IdentityVersion,
    (host, subsystem): (&Nqn, &Nqn),
    derivation: DerivationArg,
) -> Result<TlsPsk, Failure> {
    let derivation = derivation.into();
    let retained = key.retained(host.as_str(), derivation);
    retained
        .and_then(|key| key.tls(version, host.as_str(), subsystem.as_str(), derivation))
        .ok_or_else(|| {
            let line = format!("{host} and {subsystem} are too long for the identity of a key");
            Failure::Usage(line)
        })
}

/// Reads `HOSTNQN=KEY`. Names may have a `=`, keys begin as they do.
fn host_key(text: &str) -> Result<HostKey, String> {
    let at = text.find("=NVMeTLSkey-").ok_or("what is given is HOSTNQN=NVMeTLSkey-1:...")?;
    let (host, key) = text.split_at(at);
    pair(host, key.get(1..).unwrap_or_default())
}

/// What is wrong is said without the words themselves: one of them may be a key, wherever it is.
fn pair(host: &str, key: &str) -> Result<HostKey, String> {
    let name = Nqn::new(host).filter(|_| !host.contains("NVMeTLSkey-"));
    let host = name.ok_or("what comes first is no name of a host")?;
    let key = key.parse().map_err(|why| format!("what follows the host: {why}"))?;
    Ok(HostKey { host, key })
}

/// Reads a file of keys: a host's name and its key on each line.
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
            Some((host, key)) => pair(host, key.trim_start()),
            None => Err("a line is a host's name and its key".to_owned()),
        };
        keys.push(key.map_err(|why| wrong(format!(", line {number}: {why}")))?);
    }
    if keys.is_empty() {
        return Err(wrong(": no key in it".to_owned()));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 32 bytes of zero, with SHA-256.
    fn key() -> String {
        let psk = Zeroizing::new(vec![0; 32]);
        ConfiguredPsk::new(Some(PskHash::Sha256), psk).unwrap().to_interchange().to_string()
    }

    #[test]
    fn keys_are_read_and_never_said() {
        let right = host_key(&format!("nqn.2026-11.example:a=b={}", key()));
        assert_eq!(right.ok().unwrap().host.as_str(), "nqn.2026-11.example:a=b");
        let mut wrong = key();
        wrong.replace_range(17..18, "B");
        for (text, why) in [
            (key(), "what is given is HOSTNQN="),
            ("nqn.2026-11.example:a".to_owned(), "what is given is HOSTNQN="),
            (format!("host={}", key()), "no name of a host"),
            (format!("{}={}", key(), key()), "no name of a host"),
            (format!("nqn.2026-11.example:{}={}", key(), key()), "no name of a host"),
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
            ("# nothing\n".to_owned(), "no key in it"),
            (format!("{good}nqn.2026-11.example:b"), ", line 4: a line is"),
            (format!("{good}nqn.2026-11.example:b NVMeTLSkey-1:01:AA"), ", line 4: what follows"),
            (format!("{} nqn.2026-11.example:a", key()), ", line 1: what comes first is no"),
            (format!("host={} # one", key()), ", line 1: what comes first is no"),
            (format!("nqn.2026-11.example:a={} # one", key()), ", line 1: what comes first is no"),
            (format!("nqn.2026-11.example:a {} # one", key()), ", line 1: what follows"),
        ] {
            std::fs::write(&path, text).unwrap();
            let said = read(&path).err().unwrap().to_string();
            assert!(said.contains(why), "{said}");
            assert!(!said.contains("AAAA"), "{said}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
