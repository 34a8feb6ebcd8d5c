//! Fields at the offsets of the specification, and round trips.

use super::*;
use crate::nvme::nqn::Nqn;
use alloc::vec::Vec;
use proptest::prelude::*;

/// Strategy for a page of arbitrary bytes.
fn page() -> impl Strategy<Value = [u8; BYTES]> {
    proptest::collection::vec(any::<u8>(), BYTES).prop_map(|bytes| get(&bytes, 0))
}

#[test]
fn a_controller_at_its_offsets() {
    let mut bytes = [0; BYTES];
    let mut controller = IdentifyController::parse(&bytes);
    controller.sn = AsciiField::new("0123456789abcdef0123456789");
    controller.mn = AsciiField::new("Outb\u{f6}ard");
    controller.mdts = 8;
    controller.cntlid = 0x0102;
    controller.ver = crate::nvme::fabrics::version::V2_0;
    controller.kind = ControllerType::Io;
    controller.kas = 10;
    controller.sqes = 0x66;
    controller.nn = 3;
    controller.vwc = vwc::PRESENT | vwc::FLUSH_ALL;
    controller.sgls = sgls::SUPPORTED | sgls::OFFSET | sgls::TRANSPORT;
    controller.subnqn = Some(Nqn::discovery());
    controller.ioccsz = (64 + 8192) / 16;
    controller.write(&mut bytes);
    assert_eq!(IdentifyController::parse(&bytes), controller);
    assert_eq!(&bytes[4..32], b"0123456789abcdef0123Outb?ard");
    assert_eq!((bytes[63], bytes[64]), (b' ', 0));
    assert_eq!(controller.mn.as_str(), "Outb?ard");
    assert_eq!(bytes[77..84], [8, 2, 1, 0, 0, 2, 0]);
    assert_eq!((bytes[111], bytes[320], bytes[512], bytes[516], bytes[525]), (1, 10, 0x66, 3, 7));
    assert_eq!(bytes[536..540], [1, 0, 0x30, 0]);
    assert_eq!(&bytes[768..804], b"nqn.2014-08.org.nvmexpress.discovery".as_slice());
    assert_eq!(bytes[1792..1794], [4, 2]);
}

#[test]
fn a_namespace_at_its_offsets() {
    let mut bytes = [0; BYTES];
    let mut namespace = IdentifyNamespace::new(0x1122_3344_5566, 12);
    namespace.nguid = [7; 16];
    namespace.dlfeat = 9;
    namespace.preferred = [1, 2, 3, 4, 5];
    namespace.write(&mut bytes);
    assert_eq!(IdentifyNamespace::parse(&bytes), namespace);
    assert_eq!(bytes[..8], [0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0, 0]);
    assert_eq!((bytes[33], bytes[64], bytes[72]), (9, 1, 5));
    assert_eq!((&bytes[104..120], bytes[120]), ([7; 16].as_slice(), 0));
    assert_eq!(bytes[128..136], [0, 0, 12, 0, 0, 0, 0, 0]);
    assert_eq!(namespace.format().map(|format| format.shift), Some(12));
    namespace.flbas = 1;
    assert_eq!(namespace.format(), None);
}

#[test]
fn descriptors() {
    let mut bytes = [0xee; BYTES];
    let all = [
        NamespaceDescriptor::Uuid([3; 16]),
        NamespaceDescriptor::Nguid([4; 16]),
        NamespaceDescriptor::Csi(0),
    ];
    NamespaceDescriptor::write_all(&all, &mut bytes);
    assert_eq!(bytes[..6], [3, 16, 0, 0, 3, 3]);
    assert_eq!(bytes[40..46], [4, 1, 0, 0, 0, 0]);
    assert!(NamespaceDescriptor::parse_all(&bytes).eq(all));
    bytes[1] = 15;
    assert_eq!(NamespaceDescriptor::parse_all(&bytes).count(), 0, "out of step");
    assert_eq!(NamespaceDescriptor::parse_all(&[0xff; BYTES]).count(), 0);
}

#[test]
fn lists() {
    let mut bytes = [0xee; BYTES];
    write_namespaces(1, 1..=3, &mut bytes);
    assert_eq!(bytes[..12], [2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    assert!(namespaces(&bytes).eq([2, 3]));
    write_namespaces(0, 1..=2000, &mut bytes);
    assert_eq!(namespaces(&bytes).count(), NAMESPACES_MAX);
    write_controllers(5, [1, 5, 9].into_iter(), &mut bytes);
    assert_eq!(bytes[..8], [2, 0, 5, 0, 9, 0, 0, 0]);
    assert!(controllers(&bytes).eq([5, 9]));
    write_controllers(0, 0..5000, &mut bytes);
    assert_eq!(controllers(&bytes).count(), CONTROLLERS_MAX);
    assert_eq!(controllers(&[0xff; BYTES]).count(), CONTROLLERS_MAX, "never more than there are");
    write_command_sets(&mut bytes);
    assert_eq!(command_sets(&bytes).collect::<Vec<_>>(), [1]);
}

proptest! {
    #[test]
    fn pages_are_read_as_written(page in page()) {
        let mut again = [0; BYTES];
        let controller = IdentifyController::parse(&page);
        controller.write(&mut again);
        prop_assert_eq!(IdentifyController::parse(&again), controller);
        let namespace = IdentifyNamespace::parse(&page);
        namespace.write(&mut again);
        prop_assert_eq!(IdentifyNamespace::parse(&again), namespace);
        let independent = IndependentNamespace::parse(&page);
        independent.write(&mut again);
        prop_assert_eq!(IndependentNamespace::parse(&again), independent);
        let limits = IdentifyControllerNvm::parse(&page);
        limits.write(&mut again);
        prop_assert_eq!(IdentifyControllerNvm::parse(&again), limits);
        let descriptors = NamespaceDescriptor::parse_all(&page).collect::<Vec<_>>();
        NamespaceDescriptor::write_all(&descriptors, &mut again);
        prop_assert_eq!(NamespaceDescriptor::parse_all(&again).collect::<Vec<_>>(), descriptors);
    }
}
