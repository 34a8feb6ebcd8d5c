//! Model of the permitted contents of a namespace that one user changes.
//!
//! Versions of changes ascend, and changes of a sector are made in that order. A written sector
//! contains its own index and version. It holds the last completed change or a later one; after the
//! target has lost power, the last durable change or a later one.

use base::Prng;

/// Unit of atomic writes, in bytes.
pub const SECTOR: usize = 512;

#[derive(Clone, Debug)]
struct Sector {
    /// All changes: version, and whether it zeroes the sector.
    changes: Vec<(u64, bool)>,
    answered: u64,
    durable: u64,
}

/// The permitted contents of each sector.
#[derive(Debug)]
pub struct Model {
    sectors: Vec<Sector>,
}

/// A range of sectors: the first, and the count.
pub type Extent = (usize, usize);

/// Fills `out` with the content that a version has from sector `first`.
pub fn fill(version: u64, first: usize, out: &mut [u8]) {
    for (at, sector) in (first as u64..).zip(out.chunks_mut(SECTOR)) {
        let mut rng = Prng::new(version << 24 ^ at);
        for (index, word) in sector.chunks_mut(8).enumerate() {
            let value = match index {
                0 => at,
                1 => version,
                _ => rng.next_u64(),
            };
            word.copy_from_slice(&value.to_le_bytes());
        }
    }
}

/// Returns the word of a sector at `from`, or 0 after its end.
fn word(bytes: &[u8], from: usize) -> u64 {
    let word = bytes.get(from..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |word| u64::from_le_bytes(*word))
}

impl Model {
    /// Returns the model of a namespace of zeros.
    #[must_use]
    pub fn new(sectors: usize) -> Self {
        let sector = Sector { changes: vec![(0, true)], answered: 0, durable: 0 };
        Self { sectors: vec![sector; sectors] }
    }

    fn range(&mut self, (first, count): Extent) -> &mut [Sector] {
        &mut self.sectors[first..first + count]
    }

    /// Notes that a change was submitted.
    pub fn begin(&mut self, version: u64, zero: bool, extent: Extent) {
        for sector in self.range(extent) {
            sector.changes.push((version, zero));
        }
    }

    /// Notes that a change completed successfully.
    pub fn end(&mut self, version: u64, fua: bool, extent: Extent) {
        for sector in self.range(extent) {
            sector.answered = sector.answered.max(version);
            if fua {
                sector.durable = sector.durable.max(version);
            }
        }
    }

    /// Returns the versions that a flush submitted now will make durable.
    #[must_use]
    pub fn answered(&self) -> Vec<u64> {
        self.sectors.iter().map(|sector| sector.answered).collect()
    }

    /// Notes that a flush completed; `answered` is the result of [`Self::answered`] at its
    /// submission.
    pub fn flushed(&mut self, answered: &[u64]) {
        for (sector, answered) in self.sectors.iter_mut().zip(answered) {
            sector.durable = sector.durable.max(*answered);
        }
    }

    /// Notes that the target has lost power.
    pub fn lose_power(&mut self) {
        for sector in &mut self.sectors {
            sector.answered = sector.durable;
        }
    }

    /// Returns the oldest versions that a read submitted now may return.
    #[must_use]
    pub fn oldest(&self, (first, count): Extent) -> Vec<u64> {
        self.sectors[first..first + count].iter().map(|sector| sector.answered).collect()
    }

    /// Returns the version of a sector once all changes are done; `None` for zeros.
    #[must_use]
    pub fn latest(&self, sector: usize) -> Option<u64> {
        let last = self.sectors.get(sector)?.changes.last()?;
        (!last.1).then_some(last.0)
    }

    /// Returns whether no change was submitted since `oldest` was taken that could affect a read.
    #[must_use]
    pub fn is_settled(&self, first: usize, oldest: &[u64]) -> bool {
        let last = |sector: &Sector| sector.changes.last().map_or(0, |change| change.0);
        self.sectors[first..].iter().zip(oldest).all(|(sector, oldest)| last(sector) == *oldest)
    }

    /// Checks the result of a read.
    ///
    /// # Errors
    /// Names a sector with content that is not permitted.
    pub fn check(&self, first: usize, oldest: &[u64], bytes: &[u8]) -> Result<(), String> {
        let mut right = [0; SECTOR];
        for ((at, bytes), oldest) in (first..).zip(bytes.chunks(SECTOR)).zip(oldest) {
            let changes = &self.sectors[at].changes;
            let mut may = changes.iter().filter(|change| change.0 >= *oldest);
            if bytes.iter().all(|byte| *byte == 0) {
                if !may.any(|change| change.1) {
                    return Err(format!("sector {at} has zeros: {changes:?} from {oldest}"));
                }
                continue;
            }
            let [whose, version] = [0, 8].map(|from| word(bytes, from));
            fill(version, at, &mut right);
            if bytes != right {
                return Err(format!("sector {at} is {whose} of version {version}, or torn"));
            }
            if !may.any(|change| *change == (version, false)) {
                return Err(format!("sector {at} has {version}: {changes:?} from {oldest}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_sees_what_is_wrong() {
        let mut model = Model::new(8);
        let mut bytes = [0; 2 * SECTOR];
        let all = (2, 2);
        assert!(model.check(2, &model.oldest(all), &bytes).is_ok());
        model.begin(1, false, all);
        assert!(model.check(2, &model.oldest(all), &bytes).is_ok(), "it may not be there yet");
        let before = model.oldest(all);
        model.end(1, false, all);
        assert!(model.check(2, &model.oldest(all), &bytes).is_err(), "it must be there");
        assert!(model.check(2, &before, &bytes).is_ok(), "it was asked for before");
        fill(1, 2, &mut bytes);
        assert!(model.check(2, &model.oldest(all), &bytes).is_ok());
        assert!(model.check(4, &model.oldest((4, 2)), &bytes).is_err(), "another place");
        fill(2, 2, &mut bytes);
        assert!(model.check(2, &model.oldest(all), &bytes).is_err(), "it was never written");
        fill(1, 2, &mut bytes);
        bytes[700] ^= 1;
        assert!(model.check(2, &model.oldest(all), &bytes).is_err(), "it is torn");
        model.lose_power();
        assert!(model.check(2, &model.oldest(all), &[0; 2 * SECTOR]).is_ok(), "it was not flushed");
        model.end(1, true, (2, 1));
        model.lose_power();
        assert!(model.check(2, &model.oldest(all), &[0; 2 * SECTOR]).is_err(), "it was");
    }
}
