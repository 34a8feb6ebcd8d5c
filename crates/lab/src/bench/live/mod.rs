//! What live benchmarks share: programs as users run them, each in a network namespace, asked by
//! wrk, or by another client, in turns.
//!
//! [`super::serve_live`], [`super::proxy_live`] and [`super::quic_live`] say which programs, and
//! what is asked for.

pub(in crate::bench) mod lab;
pub(in crate::bench) mod load;
pub(in crate::bench) mod report;
pub(in crate::bench) mod tools;

/// What the client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) struct Row {
    /// Its name on the command line and in the report; the file's name too.
    pub(in crate::bench) name: &'static str,
    /// Bytes of the file.
    pub(in crate::bench) bytes: u64,
    /// Connections at one time.
    pub(in crate::bench) connections: u32,
    /// Whether each request has a connection of its own.
    pub(in crate::bench) close: bool,
    /// Over TLS.
    pub(in crate::bench) tls: bool,
    /// Requests at one time on a connection: more than one with HTTP/3 only.
    pub(in crate::bench) streams: u32,
}

impl Row {
    /// Over plain TCP, with keep-alive.
    pub(in crate::bench) const fn new(name: &'static str, bytes: u64, connections: u32) -> Self {
        Self { name, bytes, connections, close: false, tls: false, streams: 1 }
    }

    /// Over TLS.
    pub(in crate::bench) const fn over_tls(
        name: &'static str,
        bytes: u64,
        connections: u32,
    ) -> Self {
        Self { tls: true, ..Self::new(name, bytes, connections) }
    }
}

/// The middle one; of an even number the mean of both.
pub(in crate::bench) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
        assert!(median(std::iter::empty()).is_nan());
    }
}
