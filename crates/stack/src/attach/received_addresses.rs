//! Addresses and ports whose frames the link of a device process receives.
//!
//! An XDP link redirects the frames of the addresses that it was opened with, or, if these are also
//! the kernel's, those of the ports that programs have claimed. Used by [`super::acceptor`] for
//! each program. Ports stay redirected after their program has ended, because the device may still
//! end connections on them, and the program may return.

use std::net::IpAddr;

use abi::attach::{AddressClaim, AttachRefusal, PortClaim, PortRange};
use cli::Failure;
use io::open_error::OpenLinkError;
use io::xdp::ListenerPorts;
use nic::switch::outgoing_ports;

use crate::options::{SHARED_ACTIVE_PORTS, StackOptions};

/// Addresses and ports that a link receives.
#[derive(Clone, Debug)]
pub(crate) enum ReceivedAddresses {
    /// All that programs claim.
    Any,
    /// All ports of these addresses.
    Listed(Vec<IpAddr>),
    /// These ports of these addresses, which the kernel has too.
    SharedWithKernel(Vec<IpAddr>, ListenerPorts),
}

impl ReceivedAddresses {
    /// Returns those of the link that the options name, for `programs_max` programs.
    ///
    /// # Errors
    /// If there are not enough ports for the outgoing connections of that many programs, or the
    /// ports of programs could not be added later.
    pub(crate) fn of_options(options: &StackOptions, programs_max: u8) -> Result<Self, Failure> {
        if !options.link.is_xdp() {
            return Ok(Self::Any);
        }
        let addrs: Vec<_> = options.addrs().iter().map(|cidr| cidr.addr).collect();
        if !options.share_address {
            return Ok(Self::Listed(addrs));
        }
        let is_above_the_kernels =
            |&n: &usize| outgoing_ports(n).first >= *SHARED_ACTIVE_PORTS.start();
        let possible = (0..usize::from(programs_max)).take_while(is_above_the_kernels).count();
        if possible < programs_max.into() {
            return Err(Failure::Usage(format!(
                "--share-address has ports for the connections of {possible} programs; lower \
                 --max-programs"
            )));
        }
        if options.confinement.switches_user() {
            let line = "--share-address changes the XDP program for each program that attaches, \
                        which needs capabilities; omit --user";
            return Err(Failure::Usage(line.to_owned()));
        }
        Ok(Self::SharedWithKernel(addrs, options.listen_ports.clone()))
    }

    /// Checks a claim.
    ///
    /// # Errors
    /// The reason for the program.
    pub(super) fn check(&self, claim: &AddressClaim) -> Result<(), AttachRefusal> {
        let (addrs, is_shared) = match self {
            Self::Any => return Ok(()),
            Self::Listed(addrs) => (addrs, false),
            Self::SharedWithKernel(addrs, _) => (addrs, true),
        };
        if claim.automatic || !claim.addrs.iter().all(|addr| addrs.contains(addr)) {
            return Err(AttachRefusal::NotReceived);
        }
        if is_shared && claim.ports == PortClaim::All {
            return Err(AttachRefusal::AddressesOfKernel);
        }
        Ok(())
    }

    /// Redirects the frames of a claim's ports.
    ///
    /// # Errors
    /// The reason for the program, if there are too many, or the kernel refuses; it is reported on
    /// standard error.
    pub(super) fn redirect(&self, claim: &AddressClaim) -> Result<(), AttachRefusal> {
        let (
            Self::SharedWithKernel(_, ports),
            PortClaim::Listed(ranges) | PortClaim::Shared(ranges),
        ) = (self, &claim.ports)
        else {
            return Ok(());
        };
        let of_range = |range: &PortRange| range.first..=range.last;
        // The ranges are a program's: their ports are counted before they are listed.
        let count: usize = ranges.iter().map(|range| of_range(range).len()).sum();
        let max = ListenerPorts::MAX;
        let redirected = if count > max {
            Err(OpenLinkError::TooManyPorts { count, max })
        } else {
            ports.extend(ranges.iter().flat_map(of_range))
        };
        redirected.map_err(|error| {
            eprintln!("outboard: refusing a program: {error}");
            AttachRefusal::NoResources
        })
    }
}

#[cfg(test)]
mod tests {
    use io::confinement::ConfinedFiles;

    use super::*;
    use crate::confinement::ConfinementOptions;

    fn options(link: &str, share_address: bool) -> StackOptions {
        let addr = vec!["10.0.0.1/24".parse().expect("an address")];
        let link = link.parse().expect("a link");
        StackOptions { link, addr, share_address, ..StackOptions::default() }
    }

    fn claim(last: u8, ports: PortClaim) -> AddressClaim {
        AddressClaim::new([[10, 0, 0, last].into()].into(), ports)
    }

    fn listed(ranges: &[(u16, u16)]) -> PortClaim {
        PortClaim::Listed(ranges.iter().map(|&(first, last)| PortRange { first, last }).collect())
    }

    #[test]
    fn xdp_links_receive_the_addresses_that_they_were_opened_with() {
        let any = ReceivedAddresses::of_options(&options("tap:ob0", false), 16).unwrap();
        assert_eq!(any.check(&claim(2, PortClaim::All)), Ok(()));
        let listed = ReceivedAddresses::of_options(&options("xdp:eth0", false), 16).unwrap();
        assert_eq!(listed.check(&claim(1, PortClaim::All)), Ok(()));
        assert_eq!(listed.check(&claim(2, PortClaim::All)), Err(AttachRefusal::NotReceived));
    }

    #[test]
    fn ports_of_the_kernels_addresses_are_redirected() {
        let options = options("xdp:eth0", true);
        let shared = ReceivedAddresses::of_options(&options, 4).unwrap();
        let all = claim(1, PortClaim::All);
        assert_eq!(shared.check(&all), Err(AttachRefusal::AddressesOfKernel));
        let ports = claim(1, listed(&[(80, 81), (443, 443)]));
        assert_eq!(shared.check(&ports), Ok(()));
        assert_eq!(shared.redirect(&ports), Ok(()));
        assert_eq!(options.listen_ports.list(), [80, 81, 443]);
        let many = claim(1, listed(&[(1, 40_000)]));
        assert_eq!(shared.redirect(&many), Err(AttachRefusal::NoResources));
        assert_eq!(options.listen_ports.list(), [80, 81, 443]);
    }

    #[test]
    fn outgoing_connections_need_ports_above_the_kernels() {
        let mut options = options("xdp:eth0", true);
        let refused = ReceivedAddresses::of_options(&options, 5).unwrap_err().to_string();
        assert!(refused.contains("of 4 programs"), "{refused}");
        let user = ConfinementOptions { user: Some("daemon".to_owned()), sandbox: false };
        options.confinement = user.begin(&ConfinedFiles::default()).unwrap();
        let refused = ReceivedAddresses::of_options(&options, 4).unwrap_err().to_string();
        assert!(refused.contains("omit --user"), "{refused}");
    }
}
