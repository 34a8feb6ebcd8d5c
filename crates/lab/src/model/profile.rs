//! Hardware profiles (`profiles/*.toml`): what a machine offers.

use serde::Deserialize;

/// A machine with its NICs and disks. Values that are not stated bound nothing.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HardwareProfile {
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) host: HostProfile,
    pub(crate) nic: NicProfile,
    #[serde(default)]
    disks: DisksProfile,
}

/// The host's processor.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HostProfile {
    pub(crate) cores: u32,
    pub(crate) clock_ghz: f64,
    memory_gbytes_per_s: Option<f64>,
}

/// The NICs of the machine, which are equal.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NicProfile {
    pub(crate) count: u32,
    ports: u32,
    port_gbps: f64,
    pcie_gbps: Option<f64>,
    pub(crate) cores: Option<u32>,
    pub(crate) clock_ghz: Option<f64>,
    /// Cycles of a NIC's core for a cycle that was measured on the host's kind of core.
    #[serde(default = "same")]
    cycles_relative: f64,
    /// True if the NIC's engines work at line rate, so that its cores bound nothing.
    #[serde(default)]
    line_rate_engine: bool,
    packets_per_s: Option<f64>,
    memory_gbytes_per_s: Option<f64>,
    context_memory_bytes: Option<f64>,
    context_bytes: Option<f64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct DisksProfile {
    count: u32,
    gbytes_per_s: f64,
}

const fn same() -> f64 {
    1.0
}

impl HardwareProfile {
    /// Parses a profile.
    ///
    /// # Errors
    /// Returns the mistake in one line.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let profile: Self = toml::from_str(text)
            .map_err(|error| error.to_string().split_whitespace().collect::<Vec<_>>().join(" "))?;
        let (host, nic) = (&profile.host, &profile.nic);
        let positive = [
            ("host.cores", f64::from(host.cores)),
            ("host.clock_ghz", host.clock_ghz),
            ("nic.count", f64::from(nic.count)),
            ("nic.ports", f64::from(nic.ports)),
            ("nic.port_gbps", nic.port_gbps),
            ("nic.cycles_relative", nic.cycles_relative),
            ("nic.clock_ghz", nic.clock_ghz.unwrap_or(1.0)),
            ("nic.packets_per_s", nic.packets_per_s.unwrap_or(1.0)),
            ("nic.memory_gbytes_per_s", nic.memory_gbytes_per_s.unwrap_or(1.0)),
            ("host.memory_gbytes_per_s", host.memory_gbytes_per_s.unwrap_or(1.0)),
        ];
        match positive.into_iter().find(|(_, value)| !(*value > 0.0 && value.is_finite())) {
            Some((key, value)) => Err(format!("{key} is {value}; it must be positive")),
            None => Ok(profile),
        }
    }

    fn nics(&self) -> f64 {
        f64::from(self.nic.count)
    }

    /// Returns the cycles of all NICs' cores, as cycles of the host's kind of core.
    pub(crate) fn nic_cycles_per_s(&self) -> Option<f64> {
        if self.nic.line_rate_engine {
            return None;
        }
        let cycles = f64::from(self.nic.cores?) * self.nic.clock_ghz? * 1e9;
        Some(self.nics() * cycles / self.nic.cycles_relative)
    }

    pub(crate) fn link_bytes_per_s(&self) -> f64 {
        self.nics() * f64::from(self.nic.ports) * self.nic.port_gbps * 1e9 / 8.0
    }

    pub(crate) fn packets_per_s(&self) -> Option<f64> {
        Some(self.nics() * self.nic.packets_per_s?)
    }

    pub(crate) fn pcie_bytes_per_s(&self) -> Option<f64> {
        Some(self.nics() * self.nic.pcie_gbps? * 1e9 / 8.0)
    }

    pub(crate) fn host_memory_bytes_per_s(&self) -> Option<f64> {
        Some(self.host.memory_gbytes_per_s? * 1e9)
    }

    pub(crate) fn nic_memory_bytes_per_s(&self) -> Option<f64> {
        Some(self.nics() * self.nic.memory_gbytes_per_s? * 1e9)
    }

    /// Returns the disks' bandwidth; none if the profile has no disks.
    pub(crate) fn disk_bytes_per_s(&self) -> Option<f64> {
        let DisksProfile { count, gbytes_per_s } = self.disks;
        (count > 0).then(|| f64::from(count) * gbytes_per_s * 1e9)
    }

    /// Returns the number of flows whose contexts fit into the memory of one NIC.
    pub(crate) fn contexts_per_nic(&self) -> Option<f64> {
        Some((self.nic.context_memory_bytes? / self.nic.context_bytes?).floor())
    }

    /// Returns the profile with another number of NICs.
    pub(crate) fn with_nics(mut self, count: u32) -> Self {
        self.nic.count = count;
        self
    }
}

/// Returns the profiles of `profiles/`.
///
/// # Panics
/// If an embedded file is invalid, which a test excludes.
pub(crate) fn built_in_profiles() -> Vec<HardwareProfile> {
    let files = [
        include_str!("../../../../profiles/connectx-6-dx.toml"),
        include_str!("../../../../profiles/agilio-lx.toml"),
        include_str!("../../../../profiles/bluefield-2.toml"),
        include_str!("../../../../profiles/bluefield-3.toml"),
        include_str!("../../../../profiles/this-machine.toml"),
    ];
    files.map(|text| HardwareProfile::parse(text).expect("checked by a test")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_profiles_are_valid_and_named_as_their_files() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles");
        let names: Vec<_> = built_in_profiles().into_iter().map(|profile| profile.name).collect();
        let mut files = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let profile = HardwareProfile::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
            assert_eq!(
                Some(profile.name.as_str()),
                path.file_stem().and_then(|name| name.to_str())
            );
            assert!(names.contains(&profile.name));
            files += 1;
        }
        assert_eq!(files, names.len());
    }

    #[test]
    fn mistakes_name_the_key() {
        let valid = "name = 'p'\ntitle = 't'\n[host]\ncores = 1\nclock_ghz = 2.0\n[nic]\n\
            count = 1\nports = 1\nport_gbps = 100\n";
        assert!(HardwareProfile::parse(valid).is_ok());
        let refused =
            |from: &str, to: &str| HardwareProfile::parse(&valid.replace(from, to)).unwrap_err();
        assert_eq!(refused("cores = 1", "cores = 0"), "host.cores is 0; it must be positive");
        assert_eq!(refused("2.0", "-1.0"), "host.clock_ghz is -1; it must be positive");
        assert!(refused("ports = 1", "prots = 1").contains("prots"));
    }

    #[test]
    fn values_that_are_not_stated_bound_nothing() {
        let profiles = built_in_profiles();
        let named = |name: &str| profiles.iter().find(|one| one.name == name).unwrap();
        let connectx = named("connectx-6-dx");
        assert_eq!(connectx.nic_cycles_per_s(), None);
        assert_eq!(connectx.contexts_per_nic(), Some(20_164.0));
        assert_eq!(named("bluefield-2").disk_bytes_per_s(), Some(10e9));
        assert_eq!(named("agilio-lx").disk_bytes_per_s(), None);
    }
}
