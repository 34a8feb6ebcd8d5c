//! Addresses of devices in other processes.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use wire::LinkAddress;

/// Address of a device in another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeviceAddress {
    /// The path of a socket on this machine.
    Unix(PathBuf),
    /// A device on another machine.
    Ethernet {
        /// The interface that leads to it.
        interface: String,
        /// The address of its interface.
        mac: [u8; 6],
    },
}

impl fmt::Display for DeviceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Ethernet { interface, mac } => {
                write!(f, "ether:{interface},{}", LinkAddress(*mac))
            }
        }
    }
}

/// Addresses of a device in another process, and of those that stand by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicAddress {
    devices: Vec<DeviceAddress>,
}

impl NicAddress {
    /// Returns the addresses, in the order in which they are tried.
    pub(crate) fn devices(&self) -> &[DeviceAddress] {
        &self.devices
    }

    /// Returns whether a device may be on another machine.
    pub(crate) fn has_other_machine(&self) -> bool {
        self.devices.iter().any(|device| matches!(device, DeviceAddress::Ethernet { .. }))
    }
}

impl FromStr for NicAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || {
            format!(
                "invalid device `{text}`; expected unix:PATH or ether:IF,MAC, or several after \
                 commas"
            )
        };
        let (mut devices, mut parts) = (Vec::new(), text.split(','));
        while let Some(part) = parts.next() {
            let device = match part.split_once(':') {
                Some(("unix", path)) if !path.is_empty() => DeviceAddress::Unix(path.into()),
                Some(("ether", interface)) if !interface.is_empty() => {
                    let mac = parts.next().and_then(|mac| mac.parse::<LinkAddress>().ok());
                    let LinkAddress(mac) = mac.ok_or_else(invalid)?;
                    DeviceAddress::Ethernet { interface: interface.to_owned(), mac }
                }
                _ => return Err(invalid()),
            };
            devices.push(device);
        }
        Ok(Self { devices })
    }
}

impl fmt::Display for NicAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, device) in self.devices.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{device}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_lists() {
        let one: NicAddress = "unix:/run/a".parse().unwrap();
        assert_eq!(one.devices(), [DeviceAddress::Unix("/run/a".into())]);
        assert!(!one.has_other_machine());
        for text in ["unix:/run/a,unix:b", "ether:eth0,02:00:00:00:0a:ff,unix:b"] {
            let two: NicAddress = text.parse().unwrap();
            assert_eq!((two.devices().len(), two.to_string()), (2, text.to_owned()));
        }
        let ether: NicAddress = "ether:e0,02:00:00:00:00:01".parse().unwrap();
        assert!(ether.has_other_machine());
        for wrong in [
            "",
            "unix:",
            "/run/a",
            "unix:a,",
            "unix:a,b",
            "ether:eth0",
            "ether:,02:00:00:00:00:01",
            "ether:eth0,02:00:00:00:00",
            "ether:eth0,02:00:00:00:00:01:02",
            "ether:eth0,02:00:00:00:00:1",
            "ether:eth0,02:00:00:00:00:0g",
        ] {
            assert!(wrong.parse::<NicAddress>().unwrap_err().contains("unix:PATH"), "{wrong}");
        }
    }
}
