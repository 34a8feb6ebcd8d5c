//! Listeners of the set-up offload: queues, addresses, limits, and cookies still valid when a
//! listener closes.

use abi::setup::{ListenId, SetupListen};
use abi::{Event, Op, Refusal};
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::{Duration, SeqNum};
use core::net::IpAddr;
use testkit::PLAIN_LINK;

use super::frames::MAC;
use super::rig::Rig;
use super::setup::{
    SetupOutcome, ack, deliver, listen, local, moved, rig, rig_with, send_syn, syn, tuple,
};
use crate::DeviceConfig;

/// Adds a listener; returns the refusal, if any.
fn try_listen(rig: &mut Rig, queue: usize, listen: SetupListen) -> Result<(), Refusal> {
    let name = listen.listener;
    rig.op(queue, Op::Listen(Box::new(listen)));
    match rig.events.pop() {
        None => Ok(()),
        Some((to, Event::ListenRefused { listener, reason: why })) => {
            assert_eq!((to, listener), (queue, name));
            Err(why)
        }
        other => panic!("{other:?}"),
    }
}

fn unlisten(rig: &mut Rig, queue: usize, id: u32) {
    rig.op(queue, Op::Unlisten { listener: ListenId(id) });
}

fn on_port(id: u32, port: u16) -> SetupListen {
    SetupListen { port, ..listen(id) }
}

fn listener_of(fate: &SetupOutcome) -> Option<(usize, u32)> {
    match fate {
        SetupOutcome::Established(queue, established) => Some((*queue, established.listener.0)),
        _ => None,
    }
}

/// Makes a handshake from a port of the peer; returns the queue and the listener of the connection.
fn connect(rig: &mut Rig, port: u16) -> Option<(usize, u32)> {
    let tuple = tuple(4, port);
    let syn_ack = send_syn(rig, &tuple, &syn(&tuple));
    listener_of(&deliver(rig, &tuple, &ack(&tuple, &syn_ack), b""))
}

#[test]
fn each_queue_has_its_own_listener_for_a_port() {
    let mut rig = rig_with(2, 4, PLAIN_LINK);
    assert_eq!(try_listen(&mut rig, 0, listen(5)), Ok(()));
    // Only the first queue listens: SYNs that RSS assigns to the other go to its host.
    let mut queues = [0; 2];
    for port in 1..=64 {
        let tuple = tuple(4, port);
        match deliver(&mut rig, &tuple, &syn(&tuple), b"") {
            SetupOutcome::Answered(_) => queues[0] += 1,
            SetupOutcome::Passed(1) => queues[1] += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(queues.iter().all(|&n| n > 10), "{queues:?}");
    assert_eq!(rig.counter("setup_syns_answered"), queues[0]);
    // Numbers of listeners are local to a queue.
    assert_eq!(try_listen(&mut rig, 1, SetupListen { mss: [1000, 1000], ..listen(5) }), Ok(()));
    for id in [5, 77] {
        unlisten(&mut rig, 1, 5);
        assert_eq!(try_listen(&mut rig, 1, listen(id)), Ok(()));
        let seen: Vec<_> = (1..=64).map(|port| connect(&mut rig, port).unwrap()).collect();
        assert!(seen.contains(&(0, 5)) && seen.contains(&(1, id)));
        assert!(seen.iter().all(|&(queue, name)| name == if queue == 0 { 5 } else { id }));
        unlisten(&mut rig, 1, id);
        assert_eq!(try_listen(&mut rig, 1, listen(5)), Ok(()));
    }
}

/// The published code had one listener, for one IPv4 address and port.
#[test]
fn many_listeners_and_all_their_addresses() {
    let mut rig = rig_with(1, 2_000, PLAIN_LINK);
    let addrs: Box<[IpAddr]> =
        [local(4), local(6), [10, 77, 0, 9].into(), [192, 168, 1, 1].into()].into();
    for id in 0..2_000_u16 {
        let listen = SetupListen { addrs: addrs.clone(), ..on_port(id.into(), 1 + id) };
        assert_eq!(try_listen(&mut rig, 0, listen), Ok(()));
    }
    assert_eq!(rig.counter("setup_listeners"), 2_000);
    for (id, addr) in (0..2_000_u16).flat_map(|id| addrs.iter().map(move |&a| (id, a))) {
        if id % 37 != 0 {
            continue;
        }
        let mut tuple = tuple(if addr.is_ipv4() { 4 } else { 6 }, 40_000);
        (tuple.local.addr, tuple.local.port) = (addr, 1 + id);
        let syn_ack = send_syn(&mut rig, &tuple, &syn(&tuple));
        let fate = deliver(&mut rig, &tuple, &ack(&tuple, &syn_ack), b"");
        assert_eq!(listener_of(&fate), Some((0, u32::from(id))));
    }
    // Neither another address of the device nor another port.
    moved(&mut rig);
    let mut elsewhere = [tuple(4, 40_000), tuple(4, 40_000), tuple(6, 40_000)];
    elsewhere[0].local.addr = [10, 77, 0, 8].into();
    elsewhere[1].local.port = 2_001;
    elsewhere[2].local.addr = [0xfd77, 0, 0, 0, 0, 0, 0, 9].into();
    for tuple in elsewhere {
        assert_eq!(deliver(&mut rig, &tuple, &syn(&tuple), b""), SetupOutcome::Passed(0));
    }
    assert_eq!(moved(&mut rig), [""; 0]);
}

#[test]
fn invalid_listeners_are_refused() {
    let mut rig = rig(listen(9));
    let fits = Err(Refusal::DoesNotFit);
    let none = SetupListen { addrs: [].into(), ..on_port(1, 81) };
    let many = SetupListen { addrs: alloc::vec![local(4); 65].into(), ..on_port(1, 81) };
    let scale = SetupListen { window_scale: 15, ..on_port(1, 81) };
    let partly = SetupListen { addrs: [[10, 0, 0, 1].into(), local(6)].into(), ..listen(1) };
    let cases = [on_port(1, 0), none, many, scale, on_port(9, 81), listen(1), partly];
    for (at, listen) in cases.into_iter().enumerate() {
        assert_eq!(try_listen(&mut rig, 0, listen), fits, "{at}");
    }
    assert_eq!(moved(&mut rig), ["setup_refused +7", "setup_listeners +1"]);
    let mut tuple = tuple(4, 40_000);
    tuple.local.addr = [10, 0, 0, 1].into();
    assert_eq!(deliver(&mut rig, &tuple, &syn(&tuple), b""), SetupOutcome::Passed(0));
    // A duplicate address counts once.
    let twice = SetupListen { addrs: [local(4), local(4)].into(), ..on_port(1, 81) };
    assert_eq!(try_listen(&mut rig, 0, twice), Ok(()));
    unlisten(&mut rig, 0, 1);
    unlisten(&mut rig, 0, 1);
    unlisten(&mut rig, 0, 12_345);
    assert_eq!(rig.counter("setup_listeners"), 1);
}

#[test]
fn a_full_table_refuses_and_forgets_closed_ones_first() {
    let mut rig = rig_with(2, 3, PLAIN_LINK);
    for id in 0..3 {
        let port = u16::try_from(80 + id).unwrap();
        assert_eq!(try_listen(&mut rig, 0, on_port(id, port)), Ok(()));
    }
    let full = Err(Refusal::TableFull);
    assert_eq!(try_listen(&mut rig, 1, on_port(3, 83)), full);
    unlisten(&mut rig, 0, 1);
    assert_eq!(rig.counter("setup_listeners_closed"), 1);
    assert_eq!(try_listen(&mut rig, 1, on_port(3, 83)), Ok(()));
    assert_eq!(rig.counter("setup_listeners_closed"), 0);
    assert_eq!(try_listen(&mut rig, 1, on_port(4, 84)), full);
    assert_eq!(rig.counter("setup_listeners"), 3);
    // Opening and closing repeatedly needs no memory.
    for id in 10..1_000 {
        unlisten(&mut rig, 1, if id == 10 { 3 } else { id - 1 });
        assert_eq!(try_listen(&mut rig, 1, on_port(id, 83)), Ok(()));
        assert!(rig.counter("setup_listeners") + rig.counter("setup_listeners_closed") <= 3);
    }
}

#[test]
fn sent_cookies_stay_valid_after_close() {
    let (mut rig, tuple) = (rig(listen(9)), tuple(4, 40_000));
    let good = ack(&tuple, &send_syn(&mut rig, &tuple, &syn(&tuple)));
    unlisten(&mut rig, 0, 9);
    assert_eq!((rig.counter("setup_listeners"), rig.counter("setup_listeners_closed")), (0, 1));
    moved(&mut rig);
    assert_eq!(
        deliver(&mut rig, &tuple, &syn(&tuple), b""),
        SetupOutcome::Passed(0),
        "no new ones"
    );
    assert_eq!(moved(&mut rig), [""; 0]);
    rig.now = base::Instant::from_millis(191_999);
    assert_eq!(listener_of(&deliver(&mut rig, &tuple, &good, b"")), Some((0, 9)));
    // Nothing is left once no cookie is valid.
    rig.now += Duration::from_millis(1);
    moved(&mut rig);
    assert_eq!(deliver(&mut rig, &tuple, &good, b""), SetupOutcome::Passed(0));
    assert_eq!(moved(&mut rig), [""; 0], "no listener");
    assert_eq!(rig.counter("setup_listeners_closed"), 0);
    assert!(rig.device.engines.setup.as_ref().unwrap().is_idle());
}

#[test]
fn a_port_that_opens_again_takes_the_cookies_over() {
    let (mut rig, tuple) = (rig(listen(9)), tuple(4, 40_000));
    let good = ack(&tuple, &send_syn(&mut rig, &tuple, &syn(&tuple)));
    unlisten(&mut rig, 0, 9);
    let plain = SetupListen { sack: false, addrs: [local(4)].into(), ..listen(10) };
    assert_eq!(try_listen(&mut rig, 0, plain), Ok(()));
    let SetupOutcome::Established(0, established) = deliver(&mut rig, &tuple, &good, b"") else {
        panic!("it counts")
    };
    assert_eq!((established.listener, established.sack), (ListenId(10), false));
    // The old listener still has its other address, and its removal does not affect the new one.
    let v6 = super::setup::tuple(6, 40_000);
    assert_eq!(deliver(&mut rig, &v6, &syn(&v6), b""), SetupOutcome::Passed(0));
    rig.now = base::Instant::from_millis(192_000);
    assert_eq!(connect(&mut rig, 7), Some((0, 10)));
    assert_eq!(rig.counter("setup_listeners_closed"), 0);
}

#[test]
fn a_reset_forgets_the_listeners_and_keeps_the_keys() {
    let (mut rig, tuple) = (rig(listen(9)), tuple(4, 40_000));
    let good = ack(&tuple, &send_syn(&mut rig, &tuple, &syn(&tuple)));
    rig.device.reset();
    rig.collect();
    rig.events.clear();
    assert_eq!(deliver(&mut rig, &tuple, &syn(&tuple), b""), SetupOutcome::Passed(0));
    assert_eq!(deliver(&mut rig, &tuple, &good, b""), SetupOutcome::Passed(0));
    assert_eq!(try_listen(&mut rig, 0, listen(2)), Ok(()));
    assert_eq!(listener_of(&deliver(&mut rig, &tuple, &good, b"")), Some((0, 2)));
}

#[test]
fn a_disabled_engine_refuses() {
    let mut config = DeviceConfig::new(MAC);
    config.setup = None;
    let mut rig = Rig::with(config, PLAIN_LINK);
    assert_eq!(rig.device.capabilities().setup, Err(Refusal::Disabled));
    assert_eq!(try_listen(&mut rig, 0, listen(1)), Err(Refusal::Disabled));
    unlisten(&mut rig, 0, 1);
    let tuple = tuple(4, 40_000);
    assert_eq!(deliver(&mut rig, &tuple, &syn(&tuple), b""), SetupOutcome::Passed(0));
    let reply = super::setup::segment(&tuple, wire::tcp::TcpFlags::ACK, SeqNum(1), SeqNum(1));
    assert_eq!(deliver(&mut rig, &tuple, &reply, b""), SetupOutcome::Passed(0));
}
