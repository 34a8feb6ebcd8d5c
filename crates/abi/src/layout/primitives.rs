//! Codec of numbers, lists, addresses, times and buffers.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ops::Range;

use base::{Duration, Instant};
use bytes::Bytes;
use patterns::{PATTERNS_MAX, PatternSet};
use smallvec::SmallVec;
use zeroize::Zeroizing;

use super::{
    DESCRIPTOR_BYTES_MAX, Decoder, DescriptorCodec, EncodeFault, Encoder, LayoutFault, LayoutTable,
    MemoryRange, PatternSetName,
};
use crate::aligned::PAGE_BYTES;
use crate::nvme_tcp::DdpBuffer;
use crate::quic::QuicConnectionId;
use crate::splice::SpliceSide;
use crate::{PacketBuf, PacketHeader};

macro_rules! layout_integer {
    ($($type:ident)+) => {$(
        impl DescriptorCodec for $type {
            #[inline]
            fn encode(&mut self, to: &mut Encoder<'_>) {
                to.put(&self.to_le_bytes());
            }

            #[inline]
            fn decode(from: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
                Ok(Self::from_le_bytes(from.take_array()?))
            }

            fn describe(_: &mut LayoutTable) -> String {
                stringify!($type).into()
            }
        }
    )+};
}

layout_integer!(u8 u16 u32 u64 i64);

impl DescriptorCodec for bool {
    #[inline]
    fn encode(&mut self, to: &mut Encoder<'_>) {
        to.put(&[u8::from(*self)]);
    }

    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
        match from.take_array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(LayoutFault::UnknownTag),
        }
    }

    fn describe(_: &mut LayoutTable) -> String {
        "bool".into()
    }
}

/// Numbers of queues and positions, 64 bits.
impl DescriptorCodec for usize {
    #[inline]
    fn encode(&mut self, to: &mut Encoder<'_>) {
        (*self as u64).encode(to);
    }

    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
        Self::try_from(u64::decode(from)?).map_err(|_| LayoutFault::OutOfRange)
    }

    fn describe(_: &mut LayoutTable) -> String {
        "u64".into()
    }
}

impl DescriptorCodec for () {
    #[inline]
    fn encode(&mut self, _: &mut Encoder<'_>) {}

    #[inline]
    fn decode(_: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
        Ok(())
    }

    fn describe(_: &mut LayoutTable) -> String {
        "nothing".into()
    }
}

impl<T: DescriptorCodec> DescriptorCodec for Option<T> {
    #[inline]
    fn encode(&mut self, to: &mut Encoder<'_>) {
        self.is_some().encode(to);
        if let Some(value) = self {
            value.encode(to);
        }
    }

    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
        bool::decode(from)?.then(|| T::decode(from)).transpose()
    }

    fn describe(table: &mut LayoutTable) -> String {
        format!("Option<{}>", T::describe(table))
    }
}

impl<T: DescriptorCodec, E: DescriptorCodec> DescriptorCodec for Result<T, E> {
    #[inline]
    fn encode(&mut self, to: &mut Encoder<'_>) {
        self.is_err().encode(to);
        match self {
            Ok(value) => value.encode(to),
            Err(error) => error.encode(to),
        }
    }

    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
        Ok(if bool::decode(from)? { Err(E::decode(from)?) } else { Ok(T::decode(from)?) })
    }

    fn describe(table: &mut LayoutTable) -> String {
        format!("Result<{}, {}>", T::describe(table), E::describe(table))
    }
}

impl<T: DescriptorCodec> DescriptorCodec for Box<T> {
    #[inline]
    fn encode(&mut self, to: &mut Encoder<'_>) {
        (**self).encode(to);
    }

    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
        T::decode(from).map(Self::new)
    }

    fn describe(table: &mut LayoutTable) -> String {
        T::describe(table)
    }
}

impl<T: DescriptorCodec> DescriptorCodec for Box<[T]> {
    #[inline]
    fn encode(&mut self, to: &mut Encoder<'_>) {
        to.put_count(self.len());
        self.iter_mut().for_each(|item| item.encode(to));
    }

    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
        let count = from.take_count()?;
        (0..count).map(|_| T::decode(from)).collect::<Result<Vec<T>, _>>().map(Into::into)
    }

    fn describe(table: &mut LayoutTable) -> String {
        format!("[{}]", T::describe(table))
    }
}

impl<A: smallvec::Array> DescriptorCodec for SmallVec<A>
where
    A::Item: DescriptorCodec,
{
    #[inline]
    fn encode(&mut self, to: &mut Encoder<'_>) {
        to.put_count(self.len());
        self.iter_mut().for_each(|item| item.encode(to));
    }

    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
        let mut items = Self::new();
        for _ in 0..from.take_count()? {
            items.push(A::Item::decode(from)?);
        }
        Ok(items)
    }

    fn describe(table: &mut LayoutTable) -> String {
        format!("[{}]", A::Item::describe(table))
    }
}

impl<const N: usize> DescriptorCodec for [u8; N] {
    #[inline]
    fn encode(&mut self, to: &mut Encoder<'_>) {
        to.put(&*self);
    }

    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
        from.take_array()
    }

    fn describe(_: &mut LayoutTable) -> String {
        format!("[u8; {N}]")
    }
}

macro_rules! layout_pair {
    ($($type:ident)+) => {$(
        impl DescriptorCodec for [$type; 2] {
            #[inline]
            fn encode(&mut self, to: &mut Encoder<'_>) {
                self.iter_mut().for_each(|item| item.encode(to));
            }

            #[inline]
            fn decode(from: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
                Ok([$type::decode(from)?, $type::decode(from)?])
            }

            fn describe(table: &mut LayoutTable) -> String {
                format!("[{}; 2]", $type::describe(table))
            }
        }
    )+};
}

layout_pair!(u16 u64 SpliceSide);

impl<const N: usize> DescriptorCodec for Zeroizing<[u8; N]> {
    #[inline]
    fn encode(&mut self, to: &mut Encoder<'_>) {
        to.put(&**self);
    }

    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
        from.take_array().map(Self::new)
    }

    fn describe(_: &mut LayoutTable) -> String {
        format!("[u8; {N}]")
    }
}

impl<T: DescriptorCodec> DescriptorCodec for Range<T> {
    #[inline]
    fn encode(&mut self, to: &mut Encoder<'_>) {
        self.start.encode(to);
        self.end.encode(to);
    }

    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
        Ok(T::decode(from)?..T::decode(from)?)
    }

    fn describe(table: &mut LayoutTable) -> String {
        format!("Range<{}>", T::describe(table))
    }
}

/// Nanoseconds.
impl DescriptorCodec for Duration {
    #[inline]
    fn encode(&mut self, to: &mut Encoder<'_>) {
        self.as_nanos().encode(to);
    }

    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
        u64::decode(from).map(Self::from_nanos)
    }

    fn describe(_: &mut LayoutTable) -> String {
        "ns u64".into()
    }
}

/// Nanoseconds of the device's clock.
impl DescriptorCodec for Instant {
    #[inline]
    fn encode(&mut self, to: &mut Encoder<'_>) {
        self.as_nanos().encode(to);
    }

    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
        u64::decode(from).map(Self::from_nanos)
    }

    fn describe(_: &mut LayoutTable) -> String {
        "ns u64".into()
    }
}

/// The version, 4 or 6, and the address in network byte order.
impl DescriptorCodec for IpAddr {
    #[inline]
    fn encode(&mut self, to: &mut Encoder<'_>) {
        match self {
            Self::V4(addr) => {
                to.put(&[4]);
                to.put(&addr.octets());
            }
            Self::V6(addr) => {
                to.put(&[6]);
                to.put(&addr.octets());
            }
        }
    }

    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
        match from.take_array()? {
            [4] => Ok(Self::V4(Ipv4Addr::from(from.take_array::<4>()?))),
            [6] => Ok(Self::V6(Ipv6Addr::from(from.take_array::<16>()?))),
            _ => Err(LayoutFault::UnknownTag),
        }
    }

    fn describe(_: &mut LayoutTable) -> String {
        "IpAddr".into()
    }
}

/// Length, offsets of the network and the transport header, bytes.
impl DescriptorCodec for PacketHeader {
    #[inline]
    fn encode(&mut self, to: &mut Encoder<'_>) {
        for number in [self.len(), self.l3(), self.l4()] {
            to.put(&[u8::try_from(number).unwrap_or(u8::MAX)]);
        }
        to.put(self.as_slice());
    }

    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
        let [len, l3, l4] = from.take_array()?;
        let bytes = from.take(len.into())?;
        Self::from_bytes(bytes, l3.into(), l4.into()).map_err(|_| LayoutFault::OutOfRange)
    }

    fn describe(_: &mut LayoutTable) -> String {
        "PacketHeader".into()
    }
}

/// Length and bytes.
impl DescriptorCodec for QuicConnectionId {
    #[inline]
    fn encode(&mut self, to: &mut Encoder<'_>) {
        let bytes = self.as_slice();
        to.put(&[u8::try_from(bytes.len()).unwrap_or(u8::MAX)]);
        to.put(bytes);
    }

    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
        let [len] = from.take_array()?;
        Self::new(from.take(len.into())?).ok_or(LayoutFault::OutOfRange)
    }

    fn describe(_: &mut LayoutTable) -> String {
        "QuicConnectionId".into()
    }
}

/// 0 and the number under which both sides know the set, or 1 and the list of its patterns, each a
/// list of bytes.
impl DescriptorCodec for Arc<PatternSet> {
    fn encode(&mut self, to: &mut Encoder<'_>) {
        match to.memory.name_patterns(self) {
            PatternSetName::Known(mut number) => {
                to.put(&[0]);
                number.encode(to);
            }
            PatternSetName::New => {
                to.put(&[1]);
                to.put_count(self.patterns().len());
                for pattern in self.patterns() {
                    to.put_count(pattern.len());
                    to.put(pattern);
                }
            }
        }
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
        let set = match from.take_array()? {
            [0] => {
                let number = u32::decode(from)?;
                from.memory.known_patterns(number)
            }
            [1] => {
                let count = from.take_count()?;
                let mut patterns = Vec::with_capacity(count.min(PATTERNS_MAX));
                for _ in 0..count {
                    let len = from.take_count()?;
                    patterns.push(from.take(len)?);
                }
                patterns::check_limits(&patterns).map_err(|_| LayoutFault::OutOfRange)?;
                from.memory.new_patterns(&patterns)
            }
            _ => return Err(LayoutFault::UnknownTag),
        };
        set.ok_or(LayoutFault::BadMemory)
    }

    fn describe(_: &mut LayoutTable) -> String {
        "PatternSet".into()
    }
}

impl DescriptorCodec for Bytes {
    #[inline]
    fn encode(&mut self, to: &mut Encoder<'_>) {
        let named = to.memory.name_bytes(core::mem::take(self));
        put_buffer(to, named.as_ref().copied().map_err(|bytes| &bytes[..]));
    }

    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
        match take_buffer(from)? {
            DescribedBuffer::Named(range) => from.memory.bytes(range),
            DescribedBuffer::Inline(bytes) => from.memory.copy_bytes(bytes),
        }
        .ok_or(LayoutFault::BadMemory)
    }

    fn describe(_: &mut LayoutTable) -> String {
        "Memory".into()
    }
}

impl DescriptorCodec for PacketBuf {
    #[inline]
    fn encode(&mut self, to: &mut Encoder<'_>) {
        match to.memory.name_frame(core::mem::replace(self, Self::empty())) {
            Ok(range) => put_buffer(to, Ok(range)),
            Err(frame) => {
                put_buffer(to, Err(frame.as_slice()));
                to.memory.take_copied(frame);
            }
        }
    }

    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
        match take_buffer(from)? {
            DescribedBuffer::Named(range) => from.memory.frame(range),
            DescribedBuffer::Inline(bytes) => from.memory.copy_frame(bytes),
        }
        .ok_or(LayoutFault::BadMemory)
    }

    fn describe(_: &mut LayoutTable) -> String {
        "Memory".into()
    }
}

impl DescriptorCodec for DdpBuffer {
    #[inline]
    fn encode(&mut self, to: &mut Encoder<'_>) {
        let named = match self {
            Self::Pages(pages) => Err(pages.as_slice()),
            Self::Shared(range) => match u32::try_from(range.len()) {
                Ok(len) => {
                    let (region, offset) = (MemoryRange::REGISTERED, range.offset() as u64);
                    Ok(MemoryRange { region, offset, len })
                }
                Err(_) => return to.fail(EncodeFault::TooLong),
            },
        };
        put_buffer(to, named);
    }

    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Self, LayoutFault> {
        let described = take_buffer(from)?;
        let len = match &described {
            DescribedBuffer::Named(range) => range.len as usize,
            DescribedBuffer::Inline(bytes) => bytes.len(),
        };
        if len == 0 || len % PAGE_BYTES != 0 {
            return Err(LayoutFault::OutOfRange);
        }
        match described {
            DescribedBuffer::Named(range) => from.memory.shared_buffer(range).map(Self::Shared),
            DescribedBuffer::Inline(bytes) => from.memory.copy_buffer(bytes).map(Self::Pages),
        }
        .ok_or(LayoutFault::BadMemory)
    }

    fn describe(_: &mut LayoutTable) -> String {
        "PagedMemory".into()
    }
}

/// A buffer as a descriptor describes it.
enum DescribedBuffer<'a> {
    Named(MemoryRange),
    Inline(&'a [u8]),
}

/// Writes the name of a buffer, or its bytes if it has none.
fn put_buffer(to: &mut Encoder<'_>, named: Result<MemoryRange, &[u8]>) {
    match named {
        Ok(MemoryRange { region, offset, len }) => {
            debug_assert_ne!(region, MemoryRange::INLINE, "reserved");
            to.put(&region.to_le_bytes());
            to.put(&len.to_le_bytes());
            to.put(&offset.to_le_bytes());
        }
        Err(bytes) => {
            let len = u32::try_from(bytes.len()).ok();
            let Some(len) = len.filter(|_| bytes.len() <= DESCRIPTOR_BYTES_MAX) else {
                return to.fail(EncodeFault::TooLong);
            };
            to.put(&MemoryRange::INLINE.to_le_bytes());
            to.put(&len.to_le_bytes());
            to.put(bytes);
        }
    }
}

fn take_buffer<'a>(from: &mut Decoder<'a>) -> Result<DescribedBuffer<'a>, LayoutFault> {
    let (region, len) = (u32::decode(from)?, u32::decode(from)?);
    if region == MemoryRange::INLINE {
        let len = usize::try_from(len).map_err(|_| LayoutFault::OutOfRange)?;
        return from.take(len).map(DescribedBuffer::Inline);
    }
    Ok(DescribedBuffer::Named(MemoryRange { region, offset: u64::decode(from)?, len }))
}
