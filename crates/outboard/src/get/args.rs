//! Command-line options of `outboard get`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use apps::get::GetUrl;
use clap::Args;
use stack::StackOptions;

/// Options of `outboard get`.
#[derive(Clone, Debug, Args)]
pub(crate) struct GetArgs {
    /// URLs of http or https to fetch
    #[arg(value_name = "URL", required = true)]
    pub(crate) urls: Vec<GetUrl>,
    /// Write to FILE instead of standard output; may be given several times, once for each URL
    #[arg(long, short, value_name = "FILE", conflicts_with = "remote_name")]
    pub(crate) output: Vec<PathBuf>,
    /// Write to files named like the last parts of the URLs
    #[arg(long, short = 'O')]
    pub(crate) remote_name: bool,
    /// Maximum number of connections at a time, for several URLs and for parts of large files
    #[arg(long, default_value_t = 1, value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) parallel: u16,
    /// Continue interrupted transfers; a file that has changed on the server is fetched again
    #[arg(long = "continue")]
    pub(crate) resume: bool,
    /// As --continue, in the form of curl: -C -
    #[arg(long, short = 'C', value_name = "-", allow_hyphen_values = true, value_parser = ["-"])]
    pub(crate) continue_at: Option<String>,
    /// Fail unless the file has this SHA-256 checksum, in hexadecimal
    #[arg(long, value_name = "HEX")]
    pub(crate) sha256: Option<Sha256Arg>,
    /// Follow redirects
    #[arg(long, short = 'L')]
    pub(crate) location: bool,
    /// Use HTTP/3 for URLs of https
    #[arg(long)]
    pub(crate) http3_only: bool,
    /// Trusted certificates in PEM: certificate authorities, or the server's own, whose validity
    /// dates are then ignored [default: the system's]
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    pub(crate) cacert: Option<PathBuf>,
    /// Accept any certificate; an attacker on the path can then read and change all data
    #[arg(long, short = 'k')]
    pub(crate) insecure: bool,
    /// Address of a host, instead of looking its name up; may be given several times
    #[arg(long, value_name = "HOST:PORT:ADDR")]
    pub(crate) resolve: Vec<ResolveArg>,
    /// Longest time to connect to an address, in seconds
    #[arg(long, default_value_t = 30, value_name = "S",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connect_timeout: u32,
    /// Longest time that a connection may be idle, in seconds
    #[arg(long, default_value_t = 60, value_name = "S",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) idle_timeout: u32,
    /// Longest time of all transfers together, in seconds
    #[arg(long, short = 'm', value_name = "S", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_time: Option<u32>,
    /// Show no progress
    #[arg(long, short)]
    pub(crate) silent: bool,
    /// Print JSON with results and counters
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) stack: StackOptions,
}

impl GetArgs {
    /// Returns whether interrupted transfers are continued.
    pub(crate) const fn continues(&self) -> bool {
        self.resume || self.continue_at.is_some()
    }
}

/// A SHA-256 checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sha256Arg(pub(crate) [u8; 32]);

impl FromStr for Sha256Arg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("invalid SHA-256 `{text}`; expected 64 hexadecimal digits");
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut sum = [0; 32];
        for (byte, at) in sum.iter_mut().zip((0..64).step_by(2)) {
            let digits = text.get(at..at + 2).ok_or_else(wrong)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
        }
        Ok(Self(sum))
    }
}

/// Address of a host and a port, as in curl's `--resolve`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResolveArg {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) addr: IpAddr,
}

impl FromStr for ResolveArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (host, rest) = text.split_once(':')?;
            let (port, addr) = rest.split_once(':')?;
            let addr = addr.trim_start_matches('[').trim_end_matches(']').parse().ok()?;
            Some(Self { host: host.to_ascii_lowercase(), port: port.parse().ok()?, addr })
        };
        parse().filter(|arg| !arg.host.is_empty()).ok_or_else(|| {
            format!("invalid address `{text}`; expected HOST:PORT:ADDR, as a.example:443:10.0.0.1")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked() {
        let sum: Sha256Arg = "0fA0".repeat(16).parse().unwrap();
        assert_eq!(sum.0[..3], [0x0f, 0xa0, 0x0f]);
        for bad in ["", "00", &"g".repeat(64), &"é".repeat(32), &"+1".repeat(32)] {
            assert!(bad.parse::<Sha256Arg>().is_err(), "{bad}");
        }
        let six: ResolveArg = "A.example:443:[fd77::2]".parse().unwrap();
        assert_eq!((&*six.host, six.port, six.addr.is_ipv6()), ("a.example", 443, true));
        for bad in ["", "a", "a:80", ":80:10.0.0.1", "a:x:10.0.0.1", "a:80:b"] {
            assert!(bad.parse::<ResolveArg>().is_err(), "{bad}");
        }
    }
}
