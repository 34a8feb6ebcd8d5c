//! The types of the contract, with their fields in the order of the layout.
//!
//! A change here is a change of the layout: it needs another [`super::LAYOUT_VERSION`], which the
//! test `the_published_layout_is_this_one` demands.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use core::net::IpAddr;
use core::ops::Range;

use base::{Duration, Instant, SeqNum};
use bytes::Bytes;
use patterns::PatternSet;
use smallvec::SmallVec;
use wire::tls::{TlsRecordRun, TlsRecordVersion};
use wire::{Endpoint, Tuple};
use zeroize::Zeroizing;

use super::declare::{layout_enum, layout_number, layout_struct};
use super::{Decoder, DescriptorCodec, EncodeFault, Encoder, LayoutFault, LayoutTable};
use crate::attach::{
    AddressClaim, AttachGrant, AttachRefusal, AttachReply, AttachRequest, ClaimedQueue, PortClaim,
    PortRange, RootIdentity,
};
use crate::count::{CountRequest, FlowCounts, FlowTraffic};
use crate::crypto::{NONCE_BYTES, Suite};
use crate::decompress::{
    DecodeFault, DecodeProgress, DecompressId, DecompressJob, DecompressLimits, DecompressOutcome,
    DecompressRequest, Decompressed,
};
use crate::inspect::{InspectClaims, InspectState, InspectedContent, InspectedRange, RangeMatch};
use crate::l5o::{
    L5oContent, L5oCreate, L5oDecrypted, L5oDirection, L5oId, L5oLimits, L5oRefused, L5oState,
    RecordRange, ResyncMode, ResyncRequest, RxMetadata, StreamClaims, TlsState,
};
use crate::link::RxFrame;
use crate::nvme_tcp::{
    DdpBuffer, DdpId, DdpPlacement, DdpSetup, DdpTeardownDone, NvmeRxClaims, NvmeTcpLimits,
    NvmeTcpState, PduDataSource, PduRange, TlsCarrier,
};
use crate::quic::{
    QuicAdd, QuicConnectionId, QuicDecrypted, QuicDirection, QuicFailure, QuicId, QuicKeys,
    QuicLimits, QuicProtect, QuicRekey, QuicReorderBounds, QuicRouteChange, QuicRouteKey,
    QuicStatus, QuicSteering, QuicTxPacket,
};
use crate::setup::{
    CookieSecret, Established, HandshakeSegment, ListenId, SetupLimits, SetupListen,
};
use crate::splice::{
    Splice, SpliceClosed, SpliceEnd, SpliceId, SpliceLimits, SpliceSide, SpliceTimestamps,
};
use crate::steering::{SegmentHandOver, SteeredFrame, SteeringReason};
use crate::teardown::{
    ClosingState, LateData, Teardown, TeardownDone, TeardownLimits, TeardownRefused,
};
use crate::{
    Capabilities, Checksum, DeviceLoad, Event, FileAccess, FileExtent, FileFault, FileId, FileKind,
    FileLimits, FileOpened, FileStat, FlowId, Op, PacketBuf, PacketHeader, ReceivedFrame, Refusal,
    Transmit, TransmitDone, TransmitOutcome, TransmitPart, TransmitParts, TsvalPosition,
};

layout_number! {
    FlowId(u64) FileId(u32) L5oId(u64) DdpId(u32) QuicId(u64) ListenId(u32) SpliceId(u64)
    DecompressId(u64) SeqNum(u32) CookieSecret([u64; 2])
}

layout_enum! {
    Op {
        1 Transmit(transmit: Transmit),
        2 Cancel { flow: FlowId },
        3 FileOpen { file: FileId, path: Box<[u8]>, access: FileAccess },
        4 FileInvalidate { file: FileId, offset: u64, len: u64 },
        5 FileClose { file: FileId },
        6 FileAck(extent: FileExtent),
        7 L5oCreate(create: Box<L5oCreate>),
        8 L5oDestroy { context: L5oId },
        9 L5oResyncRxResp { context: L5oId, tcpsn: SeqNum, number: Option<u64> },
        10 DdpSetup(setup: Box<DdpSetup>),
        11 DdpTeardown { context: L5oId, tag: u16 },
        12 Listen(listen: Box<SetupListen>),
        13 Unlisten { listener: ListenId },
        14 Teardown(teardown: Box<Teardown>),
        15 Return(frame: SteeredFrame),
        16 HandOver(segment: SegmentHandOver),
        17 ReleaseEntries(entries: Box<[usize]>),
        18 Splice(splice: Box<Splice>),
        19 SpliceStart { id: SpliceId, packets: Box<[RxFrame]> },
        20 Unsplice { id: SpliceId },
        21 QuicAdd(add: Box<QuicAdd>),
        22 QuicRekey(rekey: Box<QuicRekey>),
        23 QuicRoute(change: Box<QuicRouteChange>),
        24 QuicRemove { quic: QuicId },
        25 CountFlow { tuple: Box<Tuple>, request: CountRequest },
        26 Decompress(request: Box<DecompressRequest>),
        27 Quiesce,
        28 ExtendClaim(claim: Box<AddressClaim>),
    }
    Event {
        1 Received(frame: ReceivedFrame),
        2 TransmitDone(done: TransmitDone),
        3 FileOpened(opened: FileOpened),
        4 FileChanged(file: FileId),
        5 L5oResyncRxReq { context: L5oId, flow: FlowId, request: ResyncRequest },
        6 L5oRefused(refused: L5oRefused),
        7 DdpTeardownDone(done: Box<DdpTeardownDone>),
        8 ListenRefused { listener: ListenId, reason: Refusal },
        9 TeardownDone(done: TeardownDone),
        10 TeardownRefused(refused: TeardownRefused),
        11 Spliced { id: SpliceId, result: Result<(), Refusal> },
        12 SpliceClosed(closed: Box<SpliceClosed>),
        13 QuicStatus(status: QuicStatus),
        14 FlowCounted { tuple: Box<Tuple>, result: Result<FlowCounts, Refusal> },
        15 Decompressed(decompressed: Box<Decompressed>),
        16 Load(load: DeviceLoad),
        17 LinkChanged { mtu: u16 },
        18 Quiesced,
        19 Reset,
        20 ClaimExtended { result: Result<(), AttachRefusal> },
    }
}

// Transmits and files.
layout_struct! {
    Transmit {
        flow: FlowId, header: PacketHeader, segment_size: u16, parts: TransmitParts,
        timestamp: Option<TsvalPosition>, echo: Option<u32>, retransmission: bool,
        quic: Option<Box<QuicProtect>>,
    }
    TsvalPosition { offset: u8, sub_ms_us: u16 }
    TransmitDone { flow: FlowId, tag: u32, delay: Duration, outcome: TransmitOutcome }
    FileExtent { file: FileId, offset: u64, len: u32 }
    FileOpened { file: FileId, result: Result<FileStat, FileFault> }
    FileStat { kind: FileKind, size: u64, modified_s: i64, modified_ns: u32, version: u64 }
    DeviceLoad { permille: u16, high: bool }
}

layout_enum! {
    TransmitPart {
        1 Host(bytes: Bytes),
        2 File(extent: FileExtent),
        3 Records(records: Box<RecordRange>),
        4 Pdu(pdu: Box<PduRange>),
    }
    TransmitOutcome { 0 Sent, 1 Dropped(fault: FileFault) }
    FileAccess { 0 Content, 1 Namespace }
    FileKind { 0 Regular, 1 Block, 2 Directory, 3 Other }
    FileFault {
        1 NotFound,
        2 Denied,
        3 BadPath,
        4 Io,
        5 Unavailable,
        6 Changed,
        7 BadExtent,
        8 NoSpace,
        9 Exists,
        10 FlowFailed,
        11 Refused(reason: Refusal),
    }
    Refusal {
        1 Disabled,
        2 NotSupported,
        3 TableFull,
        4 Encrypted,
        5 UnknownProtocol,
        6 KeysChangeTooOften,
        7 DoesNotFit,
        8 OptionsDiffer,
        9 Ended,
        10 Overloaded,
        11 DeviceReset,
        12 Unanswered,
    }
}

// Received frames and addresses.
layout_struct! {
    ReceivedFrame {
        packet: PacketBuf, checksum: Checksum, flow_hash: u32, segment_size: u16,
        metadata: RxMetadata, handshake: Option<HandshakeSegment>,
        quic: Option<Box<QuicDecrypted>>, teardowns_taken: u32, steered: SteeringReason,
    }
    RxFrame { packet: PacketBuf, checksum: Checksum, segment_size: u16 }
    SegmentHandOver { queue: usize, tuple: Tuple, frame: SteeredFrame }
    SteeredFrame { frame: RxFrame, reason: SteeringReason }
    Endpoint { addr: IpAddr, port: u16 }
    Tuple { local: Endpoint, remote: Endpoint }
    FlowCounts { received: FlowTraffic, sent: FlowTraffic }
    FlowTraffic { frames: u64, bytes: u64, last: Option<Instant> }
}

layout_enum! {
    Checksum { 0 Good, 1 Partial, 2 Bad, 3 Unchecked }
    SteeringReason { 0 Current, 1 Former, 2 Returned, 3 TornDown }
    CountRequest { 0 Start, 1 Report, 2 Stop }
}

// TLS, NVMe/TCP and inspection.
layout_struct! {
    L5oCreate {
        context: L5oId, flow: FlowId, direction: L5oDirection, tcpsn: SeqNum, state: L5oState,
    }
    TlsState {
        version: TlsRecordVersion, suite: Suite, key: Zeroizing<[u8; 32]>,
        iv: [u8; NONCE_BYTES], number: u64,
    }
    RecordRange {
        context: L5oId, content: L5oContent, prefix: u32, number: u64, kind: u8,
        run: TlsRecordRun, skip: u32, len: u32,
    }
    TlsRecordRun { content_bytes: u64, record_content_bytes: u32, overhead: u32 }
    L5oDecrypted {
        context: L5oId, range: Range<u32>, number: u64, offset: u32, message_len: u32,
        explicit_nonce: [u8; 8], verified: Range<u64>,
    }
    RxMetadata { decrypted: Option<L5oDecrypted>, stream: Option<Box<StreamClaims>> }
    L5oRefused { context: L5oId, flow: FlowId, reason: Refusal }
    NvmeTcpState {
        header_digest: bool, data_digest: bool, pdu_bytes_max: u32, tls: Option<TlsCarrier>,
    }
    TlsCarrier { context: L5oId, first_record: u64, skip: u32 }
    DdpSetup {
        context: L5oId, flow: FlowId, tag: u16, id: DdpId, offset: u32, len: u32, filled: u32,
        buffer: DdpBuffer,
    }
    DdpTeardownDone {
        context: L5oId, flow: FlowId, tag: u16, id: DdpId, buffer: DdpBuffer,
        refused: Option<Refusal>,
    }
    NvmeRxClaims {
        context: Option<L5oId>, placements: SmallVec<[DdpPlacement; 2]>,
        summed: SmallVec<[Range<u32>; 1]>, verified: SmallVec<[SeqNum; 2]>,
        inspected: Option<InspectClaims>,
    }
    DdpPlacement { range: Range<u32>, id: DdpId, offset: u32 }
    PduRange {
        context: L5oId, number: u64, header: Bytes, data_len: u32, data: PduDataSource,
        prefix: u32, skip: u32, len: u32,
    }
    InspectState { patterns: Arc<PatternSet>, content: InspectedContent }
    RangeMatch { pattern: u16, end: u32 }
    InspectedRange {
        range: Range<u32>, before: u32, after: u32, matches: SmallVec<[RangeMatch; 1]>,
    }
    InspectClaims { context: L5oId, ranges: SmallVec<[InspectedRange; 1]> }
}

layout_enum! {
    L5oDirection { 0 Transmit, 1 Receive(tuple: Tuple) }
    L5oState {
        1 Tls(state: TlsState),
        2 NvmeTcp(state: NvmeTcpState),
        3 Inspect(state: InspectState),
    }
    L5oContent { 1 Host(bytes: Bytes), 2 File(extent: FileExtent), 3 Pdu(pdu: Box<PduRange>) }
    StreamClaims { 1 NvmeTcp(claims: NvmeRxClaims), 2 Inspected(claims: InspectClaims) }
    ResyncRequest {
        1 Scan { tcpsn: SeqNum },
        2 AsyncStart { tcpsn: SeqNum, len: u32 },
        3 AsyncEnd { tcpsn: SeqNum },
        4 AsyncCancel,
    }
    PduDataSource { 1 Host(bytes: Bytes), 2 File(extent: FileExtent) }
    InspectedContent { 0 Stream, 1 TlsContent, 2 NvmeData }
    Suite { 0 Aes128Gcm, 1 Aes256Gcm, 2 ChaCha20Poly1305 }
    TlsRecordVersion { 0 Tls12, 1 Tls13 }
}

// QUIC.
layout_struct! {
    QuicAdd {
        quic: QuicId, flow: FlowId, direction: QuicDirection, suite: Suite,
        header_key: Zeroizing<[u8; 32]>, keys: QuicKeys, next_packet_number: u64,
    }
    QuicReorderBounds { packets: u16, bytes: u32, time: Duration }
    QuicKeys { phase: bool, key: Zeroizing<[u8; 32]>, iv: [u8; NONCE_BYTES] }
    QuicRekey { quic: QuicId, keys: QuicKeys }
    QuicRouteChange { quic: QuicId, route: QuicRouteKey, add: bool }
    QuicProtect { quic: QuicId, packets: SmallVec<[Option<QuicTxPacket>; 1]> }
    QuicTxPacket { begin: u16, pn_offset: u8, pn_len: u8, number: u64 }
    QuicDecrypted { quic: QuicId, numbers: SmallVec<[u64; 2]> }
    QuicStatus { quic: QuicId, flow: FlowId, failure: QuicFailure }
}

layout_enum! {
    QuicDirection {
        0 Transmit,
        1 Receive { routes: SmallVec<[QuicRouteKey; 2]>, reorder: Option<QuicReorderBounds> },
    }
    QuicRouteKey { 1 Id { port: u16, id: QuicConnectionId }, 2 Tuple(tuple: Tuple) }
    QuicFailure { 1 Refused(reason: Refusal), 2 NotEncrypted }
}

// Connections: set-up, tear-down, splicing.
layout_struct! {
    SetupListen {
        listener: ListenId, addrs: Box<[IpAddr]>, port: u16, window: u16, window_scale: u8,
        mss: [u16; 2], sack: bool, ecn: bool, defer_accept: bool, secret: CookieSecret,
    }
    Established {
        listener: ListenId, peer_mss: u16, peer_scale: Option<u8>, sack: bool, ecn: bool,
    }
    Teardown {
        flow: FlowId, header: PacketHeader, timestamp: Option<TsvalPosition>, una: SeqNum,
        nxt: SeqNum, edge: SeqNum, peer_scale: u8, mss: u16, mss_after_timeouts: u16,
        parts: TransmitParts, rcv_nxt: SeqNum, state: ClosingState, rto: Duration,
        time_wait: Duration, contexts: SmallVec<[L5oId; 2]>, late_data: LateData,
    }
    TeardownRefused { teardown: Box<Teardown>, reason: Refusal }
    TeardownDone { closed: u32, reset: u32, timed_out: u32 }
    Splice { id: SpliceId, sides: [SpliceSide; 2], idle_timeout: Duration }
    SpliceSide {
        tuple: Tuple, next_hop_mac: [u8; 6], snd_nxt: SeqNum, rcv_nxt: SeqNum, peer_scale: u8,
        own_scale: u8, peer_window: u32, own_window: u32, mss: u16, sack: bool, ecn: bool,
        timestamps: Option<SpliceTimestamps>,
    }
    SpliceTimestamps { tsval: u32, ts_recent: u32 }
    SpliceClosed { id: SpliceId, bytes: [u64; 2], packets: [u64; 2], end: SpliceEnd }
}

layout_enum! {
    HandshakeSegment { 1 First(established: Established), 2 Later }
    ClosingState { 0 FinWait1, 1 FinWait2, 2 Closing, 3 LastAck }
    LateData { 0 Reset, 1 Discard { bytes_max: u32 } }
    SpliceEnd { 0 Closed, 1 Reset(side: u8), 2 IdleTimeout, 3 Unspliced }
}

// Decompression: the request has a layout, its job has none.
layout_struct! {
    DecompressRequest { id: DecompressId, job: DecompressJob }
    Decompressed { id: DecompressId, job: DecompressJob, outcome: DecompressOutcome }
    DecodeProgress { consumed: usize, produced: usize, is_complete: bool }
}

layout_enum! {
    DecompressOutcome {
        0 Done(progress: DecodeProgress),
        1 Failed(fault: DecodeFault),
        2 Refused(reason: Refusal),
    }
    DecodeFault { 0 Malformed, 1 WindowTooLarge }
}

// Attachment of a program.
layout_struct! {
    AttachRequest {
        root: Option<RootIdentity>, claim: AddressClaim, outgoing: Option<PortRange>,
    }
    PortRange { first: u16, last: u16 }
    AddressClaim {
        addrs: Box<[IpAddr]>, ports: PortClaim, queue: Option<ClaimedQueue>, automatic: bool,
    }
    ClaimedQueue { seed: u64, index: u8, queues: u8, quic: Option<QuicSteering> }
    QuicSteering { port: u16, id_bytes: u8, key: u64, queues: u32 }
    AttachGrant { capabilities: Capabilities, outgoing: Option<PortRange> }
    Capabilities {
        transmit_bytes_max: u32, mtu: u16, mac: [u8; 6], file: Result<FileLimits, Refusal>,
        l5o: Result<L5oLimits, Refusal>, setup: Result<SetupLimits, Refusal>,
        teardown: Result<TeardownLimits, Refusal>, splice: Result<SpliceLimits, Refusal>,
        quic: Result<QuicLimits, Refusal>, decompress: Result<DecompressLimits, Refusal>,
    }
    FileLimits { files_max: u32 }
    L5oLimits {
        contexts_max: u32, resync: ResyncMode, tls_tx: bool, tls_rx: bool,
        nvme_tcp: NvmeTcpLimits, inspect: bool,
    }
    NvmeTcpLimits {
        tx: bool, rx: bool, buffers_max: u32, buffer_bytes_max: u64, io_threshold: u32,
    }
    SetupLimits { listeners_max: u32 }
    TeardownLimits { flows_max: u32, bytes_max: u32 }
    SpliceLimits { pairs_max: u32 }
    QuicLimits { entries_max: u32, waiting_max: u32 }
    DecompressLimits { buffer_bytes_max: u32 }
}

layout_enum! {
    RootIdentity { 0 Directory { device: u64, inode: u64 }, 1 Named(name: Box<[u8]>) }
    PortClaim { 0 All, 1 Listed(ports: Box<[PortRange]>), 2 Shared(ports: Box<[PortRange]>) }
    AttachReply { 0 Attached(grant: Box<AttachGrant>), 1 Refused(reason: AttachRefusal) }
    AttachRefusal {
        0 Full, 1 UnknownRoot, 2 NoResources, 3 BadRequest, 4 Claimed, 5 ReservedPort,
        6 AddressesOfKernel, 7 NotReceived, 8 OtherAutomatic,
    }
    ResyncMode { 0 StreamScan, 1 NextHint, 2 Async }
}

impl DescriptorCodec for DecompressJob {
    fn encode(&mut self, to: &mut Encoder<'_>) {
        to.fail(EncodeFault::NotPortable);
    }

    fn decode(_: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
        Err(LayoutFault::NotPortable)
    }

    fn describe(_: &mut LayoutTable) -> String {
        "(no layout)".into()
    }
}
