//! Number of bytes from which offload of a connection pays: a measurement for
//! `Config::offload_bytes_min`.
//!
//! Each object is downloaded on a connection of its own. Either the server's host does all the
//! work, or the connection is offloaded from its first byte. The saving grows with the object's
//! size; the cost of adding a connection to the device and removing it does not.

use serde_json::{Value, json};

use super::{QuicPath, QuicRow, QuicSetting};

/// Connections to measure over.
pub(super) const CONNECTIONS: u64 = 400;
/// Concurrent connections.
const CONCURRENT: u32 = 8;
/// Object sizes in bytes.
const SIZES: [u64; 5] = [4096, 16_384, 65_536, 262_144, 1_048_576];

/// Returns the settings: each size by the host and by the device.
pub(super) fn groups() -> Vec<Vec<QuicSetting>> {
    let group = |bytes| {
        let setting = |path| QuicSetting {
            connection_per_object: true,
            ..QuicSetting::new(path, CONCURRENT, bytes)
        };
        [QuicPath::Software, QuicPath::File].map(setting).into()
    };
    SIZES.map(group).into()
}

/// Returns the cost per connection of each size, and the break-even size.
pub(super) fn find(rows: &[QuicRow]) -> Value {
    let pairs = rows.chunks_exact(2);
    let points: Vec<(u64, f64, f64)> = pairs
        .map(|pair| {
            (
                pair[0].setting.object_bytes,
                pair[0].figures.host_per_object(),
                pair[1].figures.host_per_object(),
            )
        })
        .collect();
    let row = |&(bytes, software, offloaded): &(u64, f64, f64)| {
        json!({
            "object_bytes": bytes,
            "software_cycles_per_connection": software,
            "offloaded_cycles_per_connection": offloaded,
        })
    };
    let rows: Vec<Value> = points.iter().map(row).collect();
    json!({ "break_even_bytes": break_even(&points), "rows": rows })
}

/// Returns the size from which offload is cheaper, interpolated between two measured sizes; `None`
/// if it never is.
fn break_even(points: &[(u64, f64, f64)]) -> Option<f64> {
    let saved =
        |&(bytes, software, offloaded): &(u64, f64, f64)| (bytes as f64, software - offloaded);
    let mut before: Option<(f64, f64)> = None;
    for (bytes, gain) in points.iter().map(saved) {
        if gain >= 0.0 {
            return Some(match before {
                Some((at, loss)) => at + (bytes - at) * -loss / (gain - loss),
                None => bytes,
            });
        }
        before = Some((bytes, gain));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_cross() {
        assert_eq!(break_even(&[(10, 5.0, 7.0), (20, 9.0, 7.0)]), Some(15.0));
        assert_eq!(break_even(&[(10, 7.0, 5.0)]), Some(10.0));
        assert_eq!(break_even(&[(10, 5.0, 7.0)]), None);
    }
}
