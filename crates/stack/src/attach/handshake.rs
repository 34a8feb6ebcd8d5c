//! The messages before the first descriptor, from both sides.

use std::io::{Error as IoError, ErrorKind, Result as IoResult};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use abi::Capabilities;
use abi::attach::{AttachGrant, AttachRefusal, AttachReply, AttachRequest};
use abi::layout::{
    ATTACH_BYTES_MAX, AttachFault, decode_attach_reply, decode_attach_request, encode_attach_reply,
    encode_attach_request,
};
use abi::region::SharedRegion;
use base::Duration;
use io::attachment::{AttachmentSocket, PeerProcess};
use io::notify::Poller;
use io::shared_region::{MappedRegion, SharedMemoryError};
use io::shared_ring::{SharedRingConsumer, SharedRingMemory, SharedRingProducer};
use node::remote::CarrierRegion;
use wire::LinkAddress;

use super::address::DeviceAddress;
use super::channel::AttachedChannel;
use super::device_target::DeviceTarget;
use super::ethernet_channel::EthernetChannel;
use super::shared_channel::{RING_BYTES, SharedMemoryChannel};

/// Longest time for the device's answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);
/// Longest time for the rest of a program's request, which was sent as a whole.
const REST_TIME_MAX: Duration = Duration::from_millis(10);
/// Longest time for the answer of a device on another machine, from the first frame on.
const ETHERNET_TIME_MAX: Duration = Duration::from_secs(1);
/// Length of a program's region in bytes: as many as a device registers by default.
const REGION_BYTES: usize = 256 << 20;
/// As [`REGION_BYTES`], in the memory of a device on another machine.
const DEVICE_REGION_BYTES: usize = 64 << 20;
/// Smallest MTU of a link: the packet that every host takes (RFC 791 section 3.2).
const MTU_MIN: u16 = 576;

/// Reason for which a program is not attached to a device.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    /// No process listens at the path, or the user may not connect.
    #[error("cannot connect: {0}")]
    Connect(IoError),
    /// The device ended, or sent something else.
    #[error("no valid answer: {0}")]
    Answer(IoError),
    /// The device is of another version.
    #[error("it is another version of outboard: {0}")]
    Version(AttachFault),
    /// The device refuses.
    #[error("refused: {0}")]
    Refused(AttachRefusal),
    /// The device cannot take the place of the first one.
    #[error("it has another link address, or fewer offloads")]
    Unsuitable,
    /// The rings of the device cannot be used, or there is no memory for the region.
    #[error(transparent)]
    Memory(SharedMemoryError),
}

impl AttachError {
    /// Returns whether there is a device that works, though not for this program. A device that
    /// does not answer is about to end.
    pub(super) const fn is_there(&self) -> bool {
        !matches!(self, Self::Connect(_) | Self::Answer(_))
    }
}

/// An attachment, as the host thread needs it.
pub(super) struct DeviceArrival {
    pub(super) grant: AttachGrant,
    pub(super) channel: AttachedChannel,
    /// Memory in which the device places data.
    pub(super) region: CarrierRegion,
}

/// A program's request, and the memory in which the device places data for it, if any.
pub(super) struct ProgramRequest {
    pub(super) request: AttachRequest,
    pub(super) region: Option<Arc<dyn SharedRegion>>,
}

/// Attaches to a device, if it can take the place of one with the capabilities `required`.
pub(super) fn attach(
    device: &DeviceTarget,
    request: &AttachRequest,
    required: Option<&Capabilities>,
) -> Result<DeviceArrival, AttachError> {
    match (&device.address, &device.sockets) {
        (DeviceAddress::Unix(path), _) => attach_at_path(path, request, required),
        (DeviceAddress::Ethernet { mac, .. }, Some(sockets)) => {
            let channel = EthernetChannel::connect(sockets, *mac).map_err(AttachError::Connect)?;
            attach_over_ethernet(channel, request, required)
        }
        (DeviceAddress::Ethernet { .. }, None) => unreachable!("its sockets were opened"),
    }
}

/// Attaches over a session that has begun.
fn attach_over_ethernet(
    mut channel: EthernetChannel,
    request: &AttachRequest,
    required: Option<&Capabilities>,
) -> Result<DeviceArrival, AttachError> {
    channel.send_message(&encode_attach_request(request));
    let received = channel.receive_message(ETHERNET_TIME_MAX);
    let reply = received.map_err(|error| match error.kind() {
        ErrorKind::TimedOut => AttachError::Connect(error),
        _ => AttachError::Answer(error),
    })?;
    let grant = read_reply(&reply, request, required)?;
    let channel = AttachedChannel::Ethernet(Box::new(channel));
    Ok(DeviceArrival { grant, channel, region: CarrierRegion::OfDevice(DEVICE_REGION_BYTES) })
}

/// Attaches to the device at a path. The device gets a region of its own: a former one may still
/// write to that which it has.
pub(super) fn attach_at_path(
    path: &Path,
    request: &AttachRequest,
    required: Option<&Capabilities>,
) -> Result<DeviceArrival, AttachError> {
    let socket = AttachmentSocket::connect(path).map_err(AttachError::Connect)?;
    let region = Arc::new(MappedRegion::create(REGION_BYTES).map_err(AttachError::Memory)?);
    socket.send(&encode_attach_request(request), &[region.as_fd()]).map_err(AttachError::Answer)?;
    let (bytes, fds) =
        socket.receive(ATTACH_BYTES_MAX, ANSWER_TIME_MAX).map_err(AttachError::Answer)?;
    let grant = read_reply(&bytes, request, required)?;
    let Ok([ops, events]) = <[OwnedFd; 2]>::try_from(fds) else {
        return Err(AttachError::Answer(IoError::other("rings are missing")));
    };
    let memory = |fd| SharedRingMemory::attach(fd, RING_BYTES).map_err(AttachError::Memory);
    let (out, into) = (memory(ops)?, memory(events)?);
    socket.begin_doorbells().map_err(AttachError::Answer)?;
    let (out, into) = (SharedRingProducer::new(out), SharedRingConsumer::new(into));
    let channel = AttachedChannel::Shared(SharedMemoryChannel::new(out, into, socket));
    Ok(DeviceArrival { grant, channel, region: CarrierRegion::Shared(region) })
}

/// Reads the answer of a device, and checks that it suits the program.
fn read_reply(
    bytes: &[u8],
    request: &AttachRequest,
    required: Option<&Capabilities>,
) -> Result<AttachGrant, AttachError> {
    let grant = match decode_attach_reply(bytes) {
        Ok(AttachReply::Attached(grant)) => *grant,
        Ok(AttachReply::Refused(reason)) => return Err(AttachError::Refused(reason)),
        Err(fault) => return Err(AttachError::Version(fault)),
    };
    if !is_plausible(&grant.capabilities) || !fits(&grant, request) {
        return Err(AttachError::Answer(IoError::other("impossible capabilities or ports")));
    }
    if required.is_some_and(|required| !is_enough(&grant.capabilities, required)) {
        return Err(AttachError::Unsuitable);
    }
    Ok(grant)
}

/// Returns whether the ports of a grant are those of the request: all, a range, or the former one.
fn fits(grant: &AttachGrant, request: &AttachRequest) -> bool {
    let is_range = grant.outgoing.is_none_or(|ports| 0 < ports.first && ports.first <= ports.last);
    is_range && (request.outgoing.is_none() || grant.outgoing == request.outgoing)
}

/// Returns whether a host can work with the numbers of these capabilities.
fn is_plausible(capabilities: &Capabilities) -> bool {
    let Capabilities { transmit_bytes_max, mtu, mac, .. } = *capabilities;
    mtu >= MTU_MIN && transmit_bytes_max >= u32::from(mtu) && mac[0] & 1 == 0 && mac != [0; 6]
}

/// Returns whether a device can take the place of one with the capabilities `required`. Sizes of
/// tables may differ: a device refuses what does not fit, as it does in any case.
pub(super) fn is_enough(capabilities: &Capabilities, required: &Capabilities) -> bool {
    let l5o = match (&capabilities.l5o, &required.l5o) {
        (_, Err(_)) => true,
        (Err(_), Ok(_)) => false,
        (Ok(got), Ok(need)) => {
            got.resync == need.resync
                && (got.tls_tx || !need.tls_tx)
                && (got.tls_rx || !need.tls_rx)
                && (got.nvme_tcp.tx || !need.nvme_tcp.tx)
                && (got.nvme_tcp.rx || !need.nvme_tcp.rx)
                && (got.inspect || !need.inspect)
        }
    };
    l5o && capabilities.mac == required.mac
        && capabilities.transmit_bytes_max >= required.transmit_bytes_max
        && (capabilities.file.is_ok() || required.file.is_err())
        && (capabilities.setup.is_ok() || required.setup.is_err())
        && (capabilities.teardown.is_ok() || required.teardown.is_err())
        && (capabilities.splice.is_ok() || required.splice.is_err())
        && (capabilities.quic.is_ok() || required.quic.is_err())
}

/// Reason for which a request is malformed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestFault {
    /// The message.
    #[error(transparent)]
    Message(AttachFault),
    /// The region.
    #[error(transparent)]
    Region(SharedMemoryError),
    /// More descriptors than that of a region come with it.
    #[error("too many descriptors")]
    Descriptors,
}

/// A program that has connected.
pub(super) enum ProgramConnection {
    /// A process of this machine.
    Unix(AttachmentSocket),
    /// A program of another machine.
    Ethernet(Box<EthernetChannel>),
}

impl From<UnixStream> for ProgramConnection {
    fn from(stream: UnixStream) -> Self {
        Self::Unix(AttachmentSocket::new(stream))
    }
}

impl From<EthernetChannel> for ProgramConnection {
    fn from(channel: EthernetChannel) -> Self {
        Self::Ethernet(Box::new(channel))
    }
}

impl ProgramConnection {
    /// Returns the descriptor that polls readable when something has arrived.
    pub(super) fn fd(&self) -> RawFd {
        match self {
            Self::Unix(socket) => socket.as_raw_fd(),
            Self::Ethernet(channel) => channel.fd(),
        }
    }

    /// Returns whether a message has arrived. To be called when [`Self::fd`] is readable, and after
    /// [`Self::sleep_limit`].
    ///
    /// # Errors
    /// If the program is gone.
    pub(super) fn has_message(&mut self) -> IoResult<bool> {
        match self {
            Self::Unix(socket) => {
                let mut poller = Poller::new();
                poller.add(socket.as_raw_fd());
                poller.wait(Some(Duration::ZERO)).map(|ready| ready > 0)
            }
            Self::Ethernet(channel) => {
                if channel.advance() {
                    return Err(ErrorKind::ConnectionAborted.into());
                }
                channel.prepare_sleep();
                Ok(channel.has_work())
            }
        }
    }

    /// Returns the time until [`Self::has_message`] is to be called.
    pub(super) fn sleep_limit(&self) -> Option<Duration> {
        match self {
            Self::Unix(_) => None,
            Self::Ethernet(channel) => channel.sleep_limit(),
        }
    }

    /// Receives the request, of which a part has arrived.
    ///
    /// # Errors
    /// If the program is gone, or has not sent a whole message.
    pub(super) fn receive_request(&mut self) -> IoResult<Result<ProgramRequest, RequestFault>> {
        match self {
            Self::Unix(socket) => receive_request(socket),
            Self::Ethernet(channel) => {
                let bytes = channel.receive_message(Duration::ZERO)?;
                let request = decode_attach_request(&bytes).map_err(RequestFault::Message);
                Ok(request.and_then(|request| {
                    let region = MappedRegion::create(DEVICE_REGION_BYTES);
                    let region = Arc::new(region.map_err(RequestFault::Region)?);
                    Ok(ProgramRequest { request, region: Some(region) })
                }))
            }
        }
    }

    /// Refuses the program. Returns it if the answer may have to be sent again: it ends the session
    /// when it has the answer.
    pub(super) fn refuse(mut self, reason: AttachRefusal) -> Option<Self> {
        let reply = encode_attach_reply(&AttachReply::Refused(reason));
        match &mut self {
            Self::Unix(socket) => {
                // A program that is gone needs no answer.
                let _ = socket.send(&reply, &[]);
                None
            }
            Self::Ethernet(channel) => {
                channel.send_message(&reply);
                Some(self)
            }
        }
    }

    /// Returns the origin of the program.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub(super) fn origin(&self) -> IoResult<ProgramOrigin> {
        match self {
            Self::Unix(socket) => socket.peer_process().map(ProgramOrigin::Process),
            Self::Ethernet(channel) => Ok(ProgramOrigin::Station(channel.peer())),
        }
    }

    /// Sends the program the answer, with the rings if it has none.
    ///
    /// # Errors
    /// If there is no memory or descriptor for the rings, or if the program is gone.
    pub(super) fn accept(self, grant: AttachGrant) -> IoResult<AttachedChannel> {
        match self {
            Self::Unix(socket) => accept(socket, grant).map(AttachedChannel::Shared),
            Self::Ethernet(mut channel) => {
                let reply = AttachReply::Attached(Box::new(grant));
                channel.send_message(&encode_attach_reply(&reply));
                Ok(AttachedChannel::Ethernet(channel))
            }
        }
    }
}

/// Origin of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramOrigin {
    /// A process of this machine.
    Process(PeerProcess),
    /// A station with this link address.
    Station([u8; 6]),
}

impl std::fmt::Display for ProgramOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Process(process) => write!(f, "program {}", process.pid),
            Self::Station(mac) => write!(f, "the program at {}", LinkAddress(*mac)),
        }
    }
}

/// Receives the request of a process that has connected.
fn receive_request(socket: &AttachmentSocket) -> IoResult<Result<ProgramRequest, RequestFault>> {
    let (bytes, mut fds) = socket.receive(ATTACH_BYTES_MAX, REST_TIME_MAX)?;
    let region = fds.pop();
    if !fds.is_empty() {
        return Ok(Err(RequestFault::Descriptors));
    }
    let request = match decode_attach_request(&bytes) {
        Ok(request) => request,
        Err(fault) => return Ok(Err(RequestFault::Message(fault))),
    };
    let region = region.map(|fd| MappedRegion::attach(fd, REGION_BYTES)).transpose();
    Ok(match region {
        Ok(region) => {
            let region = region.map(|region| Arc::new(region) as Arc<dyn SharedRegion>);
            Ok(ProgramRequest { request, region })
        }
        Err(error) => Err(RequestFault::Region(error)),
    })
}

/// Creates the rings for a process, and sends it the answer.
fn accept(socket: AttachmentSocket, grant: AttachGrant) -> IoResult<SharedMemoryChannel> {
    let create = || SharedRingMemory::create(RING_BYTES).map_err(IoError::other);
    let (ops, events) = (create()?, create()?);
    let reply = encode_attach_reply(&AttachReply::Attached(Box::new(grant)));
    socket.send(&reply, &[ops.as_fd(), events.as_fd()])?;
    socket.begin_doorbells()?;
    let (out, into) = (SharedRingProducer::new(events), SharedRingConsumer::new(ops));
    Ok(SharedMemoryChannel::new(out, into, socket))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::BorrowedFd;
    use std::os::unix::fs::FileExt as _;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::thread;

    use abi::Refusal;
    use abi::attach::{AddressClaim, PortClaim, PortRange};
    use abi::layout::{ATTACH_MAGIC, LayoutFault};
    use node::channel::CarrierFault;
    use node::remote::RemoteHostEnd;
    use tempfile::TempDir;

    use super::super::attachment::{Attachment, AttachmentLoss};
    use super::*;

    fn grant() -> AttachGrant {
        let (mac, none) = ([2, 0, 0, 0, 0, 1], Refusal::Disabled);
        let capabilities = Capabilities::without_engines(mac, 1500, 65_416, none);
        AttachGrant { capabilities, outgoing: None }
    }

    fn request() -> AttachRequest {
        let claim = AddressClaim::new([[10, 0, 0, 1].into()].into(), PortClaim::All);
        AttachRequest { root: None, claim, outgoing: None }
    }

    fn socket() -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nic");
        (folder, path)
    }

    /// Attaches to a device that answers with this message and descriptors. Returns the error.
    fn attach_to(message: &[u8], fds: &[BorrowedFd<'_>]) -> String {
        let (_folder, path) = socket();
        let listener = UnixListener::bind(&path).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let device = AttachmentSocket::new(listener.accept().unwrap().0);
                assert!(receive_request(&device).unwrap().is_ok());
                device.send(message, fds).unwrap();
            });
            attach_at_path(&path, &request(), None).map(|_| ()).unwrap_err().to_string()
        })
    }

    #[test]
    fn a_hostile_device_is_refused() {
        let ring = || SharedRingMemory::create(RING_BYTES).unwrap();
        let (ops, events) = (ring(), ring());
        let both = [ops.as_fd(), events.as_fd()];
        let attached = |change: fn(&mut AttachGrant)| {
            let mut grant = grant();
            change(&mut grant);
            encode_attach_reply(&AttachReply::Attached(Box::new(grant)))
        };
        let good = attached(|_| {});
        for impossible in [
            attached(|it| it.capabilities.mtu = 100),
            attached(|it| it.capabilities.transmit_bytes_max = 1000),
            attached(|it| it.capabilities.mac[0] = 3),
            attached(|it| it.capabilities.mac = [0; 6]),
            attached(|it| it.outgoing = Some(PortRange { first: 0, last: 9 })),
            attached(|it| it.outgoing = Some(PortRange { first: 9, last: 8 })),
        ] {
            let refused = attach_to(&impossible, &both);
            assert_eq!(refused, "no valid answer: impossible capabilities or ports");
        }
        assert_eq!(attach_to(&good, &[]), "no valid answer: rings are missing");
        assert_eq!(attach_to(&good, &both[..1]), "no valid answer: rings are missing");
        let file = tempfile::tempfile().unwrap();
        let unsealed = attach_to(&good, &[ops.as_fd(), file.as_fd()]);
        assert_eq!(unsealed, "the shared memory has no seals");
        let large = SharedRingMemory::create(RING_BYTES * 2).unwrap();
        let refused = attach_to(&good, &[ops.as_fd(), large.as_fd()]);
        assert!(refused.starts_with("the shared memory has"), "{refused}");
        let refusal = encode_attach_reply(&AttachReply::Refused(AttachRefusal::Full));
        assert_eq!(attach_to(&refusal, &[]), "refused: it serves as many programs as it can");
        let mut other = good.clone();
        other[ATTACH_MAGIC.len()] += 1;
        assert!(attach_to(&other, &both).contains("another version of outboard: layout version"));
        assert!(attach_to(b"hello", &[]).contains("not a message of Outboard"));
    }

    /// Attaches to a device that then writes these bytes to its ring of events, from the first
    /// descriptor on, and the index after them.
    fn attach_to_writer(bytes: &[u8], tail: u32) -> Attachment<RemoteHostEnd<AttachedChannel>> {
        let (_folder, path) = socket();
        let listener = UnixListener::bind(&path).unwrap();
        let (channel, _device) = thread::scope(|scope| {
            let device = scope.spawn(|| {
                let socket = AttachmentSocket::new(listener.accept().unwrap().0);
                assert!(receive_request(&socket).unwrap().is_ok());
                let events = SharedRingMemory::create(RING_BYTES).unwrap();
                let ops = SharedRingMemory::create(RING_BYTES).unwrap();
                let ring = File::from(events.as_fd().try_clone_to_owned().unwrap());
                ring.write_all_at(bytes, 4096).unwrap();
                ring.write_all_at(&tail.to_le_bytes(), 0).unwrap();
                let reply = encode_attach_reply(&AttachReply::Attached(Box::new(grant())));
                socket.send(&reply, &[ops.as_fd(), events.as_fd()]).unwrap();
                socket
            });
            (attach_at_path(&path, &request(), None).unwrap().channel, device.join().unwrap())
        });
        let mut attachment = Attachment::new().unwrap();
        attachment.attach(RemoteHostEnd::new(channel, CarrierRegion::Absent));
        attachment
    }

    /// A device that breaks the rules is left in the same turn: the thread does not sleep on a
    /// fault, though nothing is left to receive.
    #[test]
    fn a_faulty_device_is_left_before_the_thread_sleeps() {
        let unknown = CarrierFault::Descriptor(LayoutFault::UnknownTag);
        for (bytes, tail, fault) in [
            // An index that is no multiple of eight, and an event of an unknown kind.
            (&[][..], 4, CarrierFault::Channel),
            (&[1, 0, 0, 0, 99, 0, 0, 0][..], 8, unknown),
        ] {
            let mut device = attach_to_writer(bytes, tail);
            assert!(device.has_work());
            assert!(device.end().unwrap().pop_event().is_none());
            assert!(device.has_work(), "{fault}");
            assert!(!device.end().unwrap().has_op_room());
            let loss = device.leave_if_lost().map(|(loss, _)| loss);
            assert_eq!(loss, Some(AttachmentLoss::Fault(fault)));
            assert!(device.leave_if_lost().is_none() && !device.has_work());
        }
    }

    /// The end of the other process is noticed by a thread that sleeps, and by one that does not.
    #[test]
    fn the_end_of_a_device_is_noticed() {
        for sleeps in [true, false] {
            let (_folder, path) = socket();
            let listener = UnixListener::bind(&path).unwrap();
            let mut channel = thread::scope(|scope| {
                scope.spawn(|| {
                    let socket = AttachmentSocket::new(listener.accept().unwrap().0);
                    assert!(receive_request(&socket).unwrap().is_ok());
                    drop(accept(socket, grant()).unwrap());
                });
                attach_at_path(&path, &request(), None).unwrap().channel
            });
            if sleeps {
                channel.prepare_sleep();
                channel.finish_sleep(true);
                assert!(channel.advance());
            } else {
                assert!((0..1000).any(|_| channel.advance()));
            }
        }
    }
}
