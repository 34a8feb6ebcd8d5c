//! Chooses the pool of a request by the requested name and path.
//!
//! Names are compared without their port and in lower case, paths as they were sent: a backend that
//! treats `/%61` as `/a` does so after the choice. Routes select backends; they are no access
//! control.

use super::config::{ProxyListener, ProxyOffloads, ProxyRoute};

/// Destination of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouteTarget {
    /// Index of the pool.
    pub(crate) pool: usize,
    /// Offloads that listener and route permit.
    pub(crate) offloads: ProxyOffloads,
}

/// Returns the destination for a name and a path, both of which may be empty; `None` if neither a
/// route matches nor a default exists.
pub(crate) fn find_target(listener: &ProxyListener, name: &str, path: &str) -> Option<RouteTarget> {
    let fitting = listener.routes.iter().filter_map(|route| {
        let host = host_rank(&route.host, name)?;
        path_fits(&route.path, path).then_some(((host, route.path.len()), route))
    });
    // The first of equals; `max_by_key` would return the last.
    let best = fitting.reduce(|best, next| if next.0 > best.0 { next } else { best });
    match best {
        Some((_, ProxyRoute { pool, offloads, .. })) => {
            Some(RouteTarget { pool: *pool, offloads: listener.offloads.and(*offloads) })
        }
        None => default_target(listener),
    }
}

/// Returns the destination of connections that no route matches.
pub(crate) fn default_target(listener: &ProxyListener) -> Option<RouteTarget> {
    Some(RouteTarget { pool: listener.default?, offloads: listener.offloads })
}

/// Returns the rank of a pattern if it matches a name: exact names rank highest, then patterns with
/// a star by their length, then the empty pattern.
fn host_rank(pattern: &str, name: &str) -> Option<(u8, usize)> {
    if pattern.is_empty() {
        return Some((0, 0));
    }
    match pattern.strip_prefix('*') {
        // `.example`, with at least one byte before it.
        Some(suffix) => {
            let fits = name.len() > suffix.len() && name.ends_with(suffix);
            fits.then_some((1, suffix.len()))
        }
        None => (pattern == name).then_some((2, 0)),
    }
}

/// Returns whether a path matches a prefix: `/a` matches `/a`, `/a/b` and `/a?q`, but not `/ab`.
fn path_fits(prefix: &str, path: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| {
        prefix.is_empty()
            || prefix.ends_with('/')
            || matches!(rest.bytes().next(), None | Some(b'/' | b'?'))
    })
}

/// Returns the name in an authority: without port, in lower case, and without the final dot of a
/// DNS name.
pub(crate) fn normalized_host(authority: &[u8]) -> String {
    let text = String::from_utf8_lossy(authority).to_ascii_lowercase();
    let name = match text.rsplit_once(':') {
        // An IPv6 address keeps its colons and brackets.
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => &text,
    };
    name.strip_suffix('.').unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::config::{ForwardingPolicy, InsertedFields, ProxyMode};

    fn listener(routes: &[(&str, &str)], default: Option<usize>) -> ProxyListener {
        let route = |(pool, (host, path)): (usize, &(&str, &str))| ProxyRoute {
            host: (*host).to_owned(),
            path: (*path).to_owned(),
            pool,
            offloads: ProxyOffloads::ALL,
        };
        ProxyListener {
            addr: None,
            port: 80,
            mode: ProxyMode::Http,
            routes: routes.iter().enumerate().map(route).collect(),
            default,
            insert: InsertedFields::default(),
            policy: ForwardingPolicy::Append,
            keep_alive: true,
            offloads: ProxyOffloads::ALL,
        }
    }

    #[test]
    fn the_most_specific_route() {
        let all = [
            ("", "/img"),
            ("a.example", ""),
            ("*.example", ""),
            ("*.b.example", ""),
            ("a.example", "/api"),
            ("a.example", "/api/v2/"),
            ("a.example", "/api"),
        ];
        let listener = listener(&all, Some(99));
        let find = |name, path| find_target(&listener, name, path).unwrap().pool;
        assert_eq!(find("a.example", "/"), 1);
        assert_eq!(find("c.example", "/img/x"), 2, "the name before the path");
        assert_eq!(find("x.b.example", "/"), 3);
        assert_eq!(find("b.example", "/"), 2);
        assert_eq!(find("example", "/img"), 0);
        assert_eq!(find("example", "/imgs"), 99);
        assert_eq!(find("xample", "/"), 99);
        assert_eq!(find(".example", "/"), 99, "a star stands for something");
        assert_eq!(find("a.example", "/api?x"), 4, "the first of equals");
        assert_eq!(find("a.example", "/apis"), 1);
        assert_eq!(find("a.example", "/api/v2/x"), 5);
        assert_eq!(find("a.example", "/api/v2"), 4);
    }

    #[test]
    fn no_route() {
        assert_eq!(find_target(&listener(&[("a", "")], None), "b", "/"), None);
        let target = RouteTarget { pool: 3, offloads: ProxyOffloads::ALL };
        assert_eq!(find_target(&listener(&[], Some(3)), "", ""), Some(target));
    }

    #[test]
    fn route_and_listener_restrict_offloads() {
        let mut listener = listener(&[("a", ""), ("b", "")], Some(2));
        listener.offloads.setup = false;
        listener.routes[1].offloads.splice = false;
        let offloads = |name| {
            let ProxyOffloads { setup, teardown, splice } =
                find_target(&listener, name, "/").unwrap().offloads;
            (setup, teardown, splice)
        };
        assert_eq!(offloads("a"), (false, true, true));
        assert_eq!(offloads("b"), (false, true, false));
        assert_eq!(offloads("c"), (false, true, true));
    }

    #[test]
    fn names() {
        for (authority, name) in [
            ("A.Example:8080", "a.example"),
            ("a.example.", "a.example"),
            ("a.example.:80", "a.example"),
            ("[fd77::2]:80", "[fd77::2]"),
            ("[fd77::2]", "[fd77::2]"),
            ("", ""),
            ("a:", "a"),
        ] {
            assert_eq!(normalized_host(authority.as_bytes()), name);
        }
    }
}
