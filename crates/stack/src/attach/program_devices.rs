//! The devices that a program may attach to.
//!
//! All queues of a program use one of them at a time, the same one, because the frames of all
//! arrive there. Each queue has a thread that attaches ([`super::program`]); they share this.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abi::Capabilities;
use abi::attach::{AttachRefusal, AttachRequest};
use base::Duration;
use cli::Failure;
use io::clock::MonotonicClock;

use super::address::DeviceAddress;
use super::device_target::DeviceTarget;
use super::handshake::{self, DeviceArrival};
use super::{AttachError, NicAddress};

/// Time between two attempts to attach, or to send a claim for which there was no room.
pub(super) const RETRY: Duration = Duration::from_millis(10);
/// Longest time to wait at the start for a device that has not noticed yet that an earlier program
/// with the same claim has ended.
const CLAIMED_TIME_MAX: Duration = Duration::from_secs(1);

/// The devices of a program, shared by its queues.
#[derive(Clone)]
pub(crate) struct ProgramDevices(Arc<Mutex<DeviceChoice>>);

/// State of the choice.
struct DeviceChoice {
    devices: Vec<DeviceTarget>,
    /// Position of the device to try first: the one of the last attachment.
    next: usize,
    queues: usize,
    /// Queues that are attached.
    attached: usize,
}

impl ProgramDevices {
    /// Opens the sockets that lead to the devices, for a program with this number of queues.
    ///
    /// # Errors
    /// If an interface cannot be opened; the message says what to do.
    pub(crate) fn open(address: &NicAddress, queues: usize) -> Result<Self, Failure> {
        let open = |address| DeviceTarget::open(address, queues);
        let devices = address.devices().iter().map(open).collect::<Result<_, _>>()?;
        let choice = DeviceChoice { devices, next: 0, queues, attached: 0 };
        Ok(Self(Arc::new(Mutex::new(choice))))
    }

    fn choice(&self) -> MutexGuard<'_, DeviceChoice> {
        // A panic cannot leave the choice half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches a queue for the first time. Waits for a device that has not noticed yet that an
    /// earlier program with the same claim has ended.
    ///
    /// # Errors
    /// If no device takes the program.
    pub(super) fn attach_first(&self, request: &AttachRequest) -> Result<DeviceArrival, Failure> {
        let clock = MonotonicClock::new();
        let until = clock.now() + CLAIMED_TIME_MAX;
        loop {
            let (address, error) = match self.choice().attach(request, None) {
                Ok(arrival) => return Ok(arrival),
                Err(failed) => failed,
            };
            let is_claimed = matches!(
                error,
                AttachError::Refused(AttachRefusal::Claimed | AttachRefusal::OtherAutomatic)
            );
            if !is_claimed || clock.now() >= until {
                return Err(failure(&address, &error));
            }
            io::clock::sleep(RETRY);
        }
    }

    /// Attaches a queue that has lost its device, to one with the capabilities of the first.
    ///
    /// # Errors
    /// If no device takes the program.
    pub(super) fn attach_again(
        &self,
        request: &AttachRequest,
        required: &Capabilities,
    ) -> Result<DeviceArrival, AttachError> {
        let mut choice = self.choice();
        let arrival = choice.attach(request, Some(required)).map_err(|(_, error)| error)?;
        if choice.attached == choice.queues {
            eprintln!("outboard: attached to the device at {}", choice.current());
        }
        Ok(arrival)
    }

    /// Notes that a queue has lost its device.
    pub(super) fn note_loss(&self) {
        let mut choice = self.choice();
        if choice.attached == choice.queues {
            let lost = choice.current();
            eprintln!("outboard: the device at {lost} is gone; connections wait for another one");
        }
        choice.attached -= 1;
    }
}

impl DeviceChoice {
    /// Returns the address of the device of the last attachment.
    fn current(&self) -> &DeviceAddress {
        &self.devices[self.next].address
    }

    /// Tries each device once, or only the one that other queues are attached to. Attaches to the
    /// first one that takes the program and has the required capabilities.
    ///
    /// # Errors
    /// Returns the address and the error of a device that is there, or else of the first one.
    fn attach(
        &mut self,
        request: &AttachRequest,
        required: Option<&Capabilities>,
    ) -> Result<DeviceArrival, (DeviceAddress, AttachError)> {
        let mut failed = None;
        let candidates = if self.attached == 0 { self.devices.len() } else { 1 };
        for offset in 0..candidates {
            let index = (self.next + offset) % self.devices.len();
            match handshake::attach(&self.devices[index], request, required) {
                Ok(arrival) => {
                    self.next = index;
                    self.attached += 1;
                    return Ok(arrival);
                }
                Err(error) => {
                    let first =
                        failed.as_ref().map(|(_, first): &(_, AttachError)| first.is_there());
                    if first.is_none_or(|first| !first && error.is_there()) {
                        failed = Some((index, error));
                    }
                }
            }
        }
        let Some((index, error)) = failed else {
            unreachable!("an address has at least one device")
        };
        Err((self.devices[index].address.clone(), error))
    }
}

fn failure(address: &DeviceAddress, error: &AttachError) -> Failure {
    let advice = match error {
        AttachError::Connect(_) => match address {
            DeviceAddress::Unix(_) => "start `outboard nic --listen PATH` first",
            DeviceAddress::Ethernet { .. } => {
                "start `outboard nic --listen-ether IF` there first, and see that both interfaces \
                 are up"
            }
        },
        AttachError::Answer(_) | AttachError::Memory(_) => "see its messages",
        AttachError::Version(_) => "run the same version of both",
        AttachError::Refused(AttachRefusal::UnknownRoot) => {
            "start it with --root NAME=DIR for this directory (see --nic-root), or omit file from \
             --offload"
        }
        AttachError::Refused(AttachRefusal::Claimed) => {
            "use another address, or --share-address for both programs"
        }
        AttachError::Refused(AttachRefusal::Full) => {
            "stop another program, or raise --max-programs; each queue of a program counts"
        }
        AttachError::Refused(AttachRefusal::ReservedPort) => "listen on lower ports",
        AttachError::Refused(AttachRefusal::AddressesOfKernel) => "use --share-address",
        AttachError::Refused(AttachRefusal::NotReceived) => {
            "start it with --addr CIDR for each address"
        }
        AttachError::Refused(AttachRefusal::OtherAutomatic) => {
            "only one program may have --addr dhcp or slaac; name the addresses of this one"
        }
        AttachError::Refused(AttachRefusal::BadRequest) => {
            "see --addr; a program has at most 16 addresses, and listens on at most 64 ports"
        }
        AttachError::Refused(AttachRefusal::NoResources) => "see its messages",
        AttachError::Unsuitable => "start another device",
    };
    Failure::Unavailable(format!("device {address}: {error}; {advice}"))
}
