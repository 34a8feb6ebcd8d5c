//! From how many bytes on a connection is worth an offload: `Config::offload_bytes_min`, measured.
//!
//! Each object is fetched on a connection of its own, of which the server's host does all, or the
//! device has it from its first byte on. What is saved grows with the bytes; what it costs to add a
//! connection to the device and to take it away again does not.

use std::path::Path as FsPath;

use serde_json::{Value, json};

use super::super::io_tcp::make_files;
use super::{Path, QuicArgs, SET_BYTES, Setting, median};
use cli::Failure;

/// Connections to measure over.
pub(super) const CONNECTIONS: u64 = 400;
/// Connections at one time.
const CONCURRENT: u32 = 8;
/// Bytes of an object.
const SIZES: [u64; 5] = [4096, 16_384, 65_536, 262_144, 1_048_576];

/// Measures, and gives where the lines cross.
pub(super) fn run(args: &QuicArgs, folder: &FsPath, repeats: usize) -> Result<Value, Failure> {
    let mut points = Vec::new();
    if !args.json {
        println!("\n{:>9} {:>17} {:>17}", "object", "software c/conn", "offloaded c/conn");
    }
    for bytes in SIZES {
        let files = make_files(folder, bytes, SET_BYTES)?;
        let each = |path| -> Result<f64, Failure> {
            let setting = Setting { once: true, ..Setting::new(path, CONCURRENT, bytes) };
            let m = median(setting, &files, folder, repeats)?;
            Ok(m.server.host_cycles as f64 / m.objects as f64)
        };
        let (software, offloaded) = (each(Path::Software)?, each(Path::File)?);
        if !args.json {
            println!("{bytes:>9} {software:>17.0} {offloaded:>17.0}");
        }
        points.push((bytes, software, offloaded));
    }
    let rows: Vec<Value> = points
        .iter()
        .map(|(bytes, software, offloaded)| {
            json!({
                "object_bytes": bytes,
                "software_cycles_per_connection": software,
                "offloaded_cycles_per_connection": offloaded,
            })
        })
        .collect();
    Ok(json!({ "break_even_bytes": break_even(&points), "rows": rows }))
}

/// Where the offload begins to be cheaper, on a line between two sizes; none where it never is.
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
