//! Connections of listeners for TLS, and of those beside them.

use super::*;

#[test]
fn plain_requests_at_a_port_for_tls_are_told_so() {
    let mut world = World::new();
    let id = world.accept_for(Service::Secure);
    world.receive(id, &get("/a.txt"));
    world.finish_opens();
    assert_eq!(statuses(&world.sent(id)), [200], "over TLS");
    for request in [get("/a.txt"), "POST / HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello".into()] {
        for cut in [0, 1, 20, request.len()] {
            let id = world.accept_for(Service::Secure);
            world.take_tls_off(id);
            world.receive(id, &request[..cut]);
            world.receive(id, &request[cut..]);
            let sent = world.sent(id);
            let text = "400 Bad Request: a plain HTTP request was sent to an HTTPS port\n";
            assert_eq!(responses(&sent), [(400, text.into())]);
            assert!(sent.contains("\r\nConnection: close\r\n") && world.is_shut(id));
        }
    }
    // What is no HTTP either is answered like that elsewhere.
    let id = world.accept_for(Service::Secure);
    world.take_tls_off(id);
    world.receive(id, "SSH-2.0-OpenSSH_9.9\r\n");
    assert_eq!(responses(&world.sent(id)), [(400, "400 Bad Request\n".into())]);
}
