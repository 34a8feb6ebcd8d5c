//! `outboard nvme key`: pre-shared keys of NVMe/TCP's secure channel.
//!
//! `generate` prints a new key, which both ends are given. `show` prints the values derived from a
//! key for a host and a subsystem, as `nvme check-tls-key` does, to find out why two ends differ.

use std::io::Read as _;

use clap::{Args, Subcommand, ValueEnum};
use nvme_psk::{ConfiguredPsk, Derivation, IdentityVersion, PskHash, TlsPsk};
use serde_json::json;
use zeroize::Zeroizing;

use super::args::{DerivationArg, NqnArg};
use cli::Failure;

/// Subcommands of `outboard nvme key`.
#[derive(Debug, Subcommand)]
pub(crate) enum NvmeKeySubcommand {
    /// Generate a random key
    Generate(GenerateArgs),
    /// Print the identities and secrets derived from a key for a host and a subsystem
    Show(Box<ShowArgs>),
}

/// Options of `outboard nvme key generate`.
#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// Hash function of the key, which determines its length and its cipher
    #[arg(long, value_enum, default_value_t = PskHashArg::Sha256)]
    hash: PskHashArg,
}

/// Options of `outboard nvme key show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Key (NVMeTLSkey-1:...), or - to read it from standard input, hidden from other users
    #[arg(value_name = "KEY")]
    key: String,
    /// NQN of the host
    #[arg(long, value_name = "NQN")]
    hostnqn: NqnArg,
    /// NQN of the subsystem
    #[arg(long, value_name = "NQN")]
    subsysnqn: NqnArg,
    /// Derivation of keys from the given one
    #[arg(long, value_enum, default_value_t = DerivationArg::Rfc8446, value_name = "DERIVATION")]
    derivation: DerivationArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Hash functions of new keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PskHashArg {
    /// 32 bytes, for AES-128-GCM
    Sha256,
    /// 48 bytes, for AES-256-GCM
    Sha384,
    /// 32 bytes, used without derivation of a key per host
    None,
}

/// Runs `outboard nvme key`.
///
/// # Errors
/// Fails if the key is invalid.
pub(super) fn run(verb: &NvmeKeySubcommand) -> Result<(), Failure> {
    let text = match verb {
        NvmeKeySubcommand::Generate(args) => generate(args.hash)?,
        NvmeKeySubcommand::Show(args) => show(args)?,
    };
    println!("{}", *text);
    Ok(())
}

fn generate(hash: PskHashArg) -> Result<Zeroizing<String>, Failure> {
    let hash = match hash {
        PskHashArg::Sha256 => Some(PskHash::Sha256),
        PskHashArg::Sha384 => Some(PskHash::Sha384),
        PskHashArg::None => None,
    };
    let len = hash.unwrap_or(PskHash::Sha256).bytes();
    let words = std::iter::repeat_with(io::clock::entropy);
    let psk: Vec<u8> = words.flat_map(u64::to_ne_bytes).take(len).collect();
    let key = ConfiguredPsk::new(hash, Zeroizing::new(psk));
    let key = key.map_err(|e| Failure::System(e.to_string()))?;
    Ok(key.to_interchange())
}

fn show(args: &ShowArgs) -> Result<Zeroizing<String>, Failure> {
    let text = match args.key.as_str() {
        "-" => {
            let mut text = Zeroizing::new(String::new());
            let read = std::io::stdin().read_to_string(&mut text);
            read.map_err(|e| Failure::NoInput(format!("standard input: {e}")))?;
            text
        }
        key => Zeroizing::new(key.to_owned()),
    };
    let key = text.trim().parse::<ConfiguredPsk>();
    let key = key.map_err(|e| Failure::Usage(format!("invalid KEY: {e}")))?;
    let (host, subsystem) = (args.hostnqn.0.to_string(), args.subsysnqn.0.to_string());
    let derivation = Derivation::from(args.derivation);
    let long = || Failure::Usage(format!("host NQN {host} is too long to derive a key"));
    let retained = key.retained(&host, derivation).ok_or_else(long)?;
    let digest = retained.digest(&host, &subsystem);
    let tls = |version| retained.tls(version, &host, &subsystem, derivation);
    let shown = [(0, tls(IdentityVersion::Zero)), (1, tls(IdentityVersion::One))];
    if args.json {
        let all: Vec<_> = shown.iter().map(|(version, tls)| as_json(*version, tls)).collect();
        let hash = key.hash().map(name);
        let all = json!({ "hash": hash, "digest": digest, "identities": all });
        return Ok(Zeroizing::new(format!("{all:#}")));
    }
    let hash = key.hash().map_or("none", name);
    let mut text = Zeroizing::new(format!("hash        {hash}\ndigest      {digest}"));
    for (version, tls) in &shown {
        let line = match tls {
            Some(TlsPsk { identity, secret, .. }) => {
                let secret = hex(secret);
                format!("\nidentity {version}  {identity}\nsecret {version}    {}", *secret)
            }
            None => format!("\nidentity {version}  none: NQNs are too long"),
        };
        text.push_str(&Zeroizing::new(line));
    }
    Ok(text)
}

fn as_json(version: u8, tls: &Option<TlsPsk>) -> serde_json::Value {
    json!({
        "version": version,
        "identity": tls.as_ref().map(|tls| &tls.identity),
        "tls_psk": tls.as_ref().map(|tls| hex(&tls.secret).to_string()),
    })
}

const fn name(hash: PskHash) -> &'static str {
    match hash {
        PskHash::Sha256 => "sha256",
        PskHash::Sha384 => "sha384",
    }
}

fn hex(bytes: &[u8]) -> Zeroizing<String> {
    Zeroizing::new(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key from libnvme's test/psk.c.
    const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    const HOST: &str = "nqn.2026-11.org.example:host";
    const SUBSYSTEM: &str = "nqn.2026-11.org.example:disks";

    fn args(key: &str, derivation: DerivationArg, json: bool) -> ShowArgs {
        ShowArgs {
            key: key.to_owned(),
            hostnqn: HOST.parse().unwrap(),
            subsysnqn: SUBSYSTEM.parse().unwrap(),
            derivation,
            json,
        }
    }

    #[test]
    fn generates_keys_of_each_length() {
        for (hash, prefix, len) in [
            (PskHashArg::Sha256, "NVMeTLSkey-1:01:", 65),
            (PskHashArg::Sha384, "NVMeTLSkey-1:02:", 89),
            (PskHashArg::None, "NVMeTLSkey-1:00:", 65),
        ] {
            let (one, other) = (generate(hash).unwrap(), generate(hash).unwrap());
            assert!(one.starts_with(prefix) && one.len() == len, "{}", *one);
            assert_ne!(one, other);
            assert!(one.parse::<ConfiguredPsk>().is_ok());
        }
    }

    /// Returns the values derived from [`KEY`] for a version: digest, identity and secret.
    fn wanted(version: IdentityVersion, derivation: Derivation) -> (String, String, String) {
        let key: ConfiguredPsk = KEY.parse().unwrap();
        let retained = key.retained(HOST, derivation).unwrap();
        let tls = retained.tls(version, HOST, SUBSYSTEM, derivation).unwrap();
        (retained.digest(HOST, SUBSYSTEM), tls.identity, hex(&tls.secret).to_string())
    }

    #[test]
    fn shows_what_comes_of_a_key() {
        let text = show(&args(KEY, DerivationArg::Rfc8446, false)).unwrap();
        let (digest, zero, zero_secret) = wanted(IdentityVersion::Zero, Derivation::Rfc8446);
        let (_, one, one_secret) = wanted(IdentityVersion::One, Derivation::Rfc8446);
        let lines = [
            "hash        sha256".to_owned(),
            format!("digest      {digest}"),
            format!("identity 0  {zero}"),
            format!("secret 0    {zero_secret}"),
            format!("identity 1  {one}"),
            format!("secret 1    {one_secret}"),
        ];
        assert_eq!(*text, lines.join("\n"));
    }

    #[test]
    fn shows_it_to_machines() {
        let text = show(&args(KEY, DerivationArg::Libnvme, true)).unwrap();
        let shown: serde_json::Value = serde_json::from_str(&text).unwrap();
        let (digest, identity, secret) = wanted(IdentityVersion::One, Derivation::Libnvme);
        assert_eq!((&shown["hash"], &shown["digest"]), (&"sha256".into(), &digest.into()));
        let one = json!({ "version": 1, "identity": identity, "tls_psk": secret });
        assert_eq!(shown["identities"][1], one);
    }

    #[test]
    fn says_what_is_wrong_with_a_key() {
        let why = show(&args(&KEY[1..], DerivationArg::Rfc8446, false)).unwrap_err();
        assert_eq!(why.to_string(), "invalid KEY: an NVMe/TCP key must start with `NVMeTLSkey-1:`");
    }
}
