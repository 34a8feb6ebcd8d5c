//! Options of serving files on namespaces.

use apps::remote::RemoteFilesConfig;
use base::Duration;
use clap::Args;

use cli::Failure;

/// Options of files on namespaces. They have no default value here, so that those given for a
/// directory are found.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct RemoteArgs {
    /// Memory for the content of files on namespaces, in MiB [default: 256]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    remote_cache: Option<u32>,
    /// Units of 128 KiB to read ahead of a sequential reader of a namespace; 0 disables read-ahead
    /// [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1024))]
    remote_read_ahead: Option<u32>,
    /// Longest time that requests wait for a target that does not answer, in seconds; then they get
    /// 503 [default: 10]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=50))]
    remote_patience: Option<u32>,
    /// Time for which the metadata of a namespace is used without reading it again, in seconds; 0
    /// checks at each request, and while a file is read [default: 1]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(0..=3600))]
    remote_validity: Option<u32>,
}

impl RemoteArgs {
    /// Applies the options. With `strict`, metadata is not trusted at all.
    pub(crate) fn configure(&self, strict: bool, config: &mut RemoteFilesConfig) {
        let seconds = |given: Option<u32>, usual| {
            given.map_or(usual, |seconds| Duration::from_secs(seconds.into()))
        };
        if let Some(mib) = self.remote_cache {
            config.cache_bytes_max = (mib as usize) << 20;
        }
        config.read_ahead_units = self.remote_read_ahead.map_or(config.read_ahead_units, u64::from);
        config.patience = seconds(self.remote_patience, config.patience);
        config.validity = match strict {
            true => Duration::ZERO,
            false => seconds(self.remote_validity, config.validity),
        };
    }

    /// Checks the options of a server of a directory, which has none of these.
    ///
    /// # Errors
    /// An option is given.
    pub(crate) fn check_absent(&self) -> Result<(), Failure> {
        let given = [
            ("--remote-cache", self.remote_cache),
            ("--remote-read-ahead", self.remote_read_ahead),
            ("--remote-patience", self.remote_patience),
            ("--remote-validity", self.remote_validity),
        ];
        match given.iter().find(|(_, value)| value.is_some()) {
            None => Ok(()),
            Some((name, _)) => Err(Failure::Usage(format!(
                "{name} is for files on namespaces, and a directory is served; omit it, or serve \
                 nvme://TARGET/NSID"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_replace_defaults() {
        let mut config = RemoteFilesConfig::default();
        RemoteArgs::default().configure(false, &mut config);
        let usual = RemoteFilesConfig::default();
        assert_eq!((config.cache_bytes_max, config.patience), (256 << 20, usual.patience));
        let args = RemoteArgs {
            remote_cache: Some(1),
            remote_read_ahead: Some(0),
            remote_patience: Some(50),
            remote_validity: Some(7),
        };
        args.configure(false, &mut config);
        assert_eq!((config.cache_bytes_max, config.read_ahead_units), (1 << 20, 0));
        let seconds = Duration::from_secs;
        assert_eq!((config.patience, config.validity), (seconds(50), seconds(7)));
        args.configure(true, &mut config);
        assert_eq!(config.validity, Duration::ZERO, "--strict-files");
    }

    #[test]
    fn options_of_namespaces_are_refused_for_directories() {
        assert!(RemoteArgs::default().check_absent().is_ok());
        let args = RemoteArgs { remote_read_ahead: Some(0), ..RemoteArgs::default() };
        let line = args.check_absent().map_err(|failure| failure.to_string());
        assert!(line.is_err_and(|line| line.starts_with("--remote-read-ahead is for files on")));
    }
}
