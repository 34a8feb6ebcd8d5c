//! Medians and confidence intervals of repeated runs.

use base::Prng;

/// Resamples of a bootstrap.
const RESAMPLES: usize = 2_000;
/// Fewest repetitions for which an interval is stated.
pub(super) const REPETITIONS_MIN: usize = 3;

/// The ratio of two medians, with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RatioEstimate {
    pub(super) ratio: f64,
    /// Percentile bootstrap (Efron and Tibshirani 1993, section 13.3); `None` if one side has fewer
    /// than [`REPETITIONS_MIN`] repetitions.
    pub(super) interval: Option<(f64, f64)>,
}

/// Returns the ratio of the medians of `b` and `a`; `None` if it is not a finite number.
pub(super) fn ratio_of_medians(a: &[f64], b: &[f64]) -> Option<RatioEstimate> {
    let median = |values: &[f64]| crate::bench::median(values.iter().copied());
    let ratio = median(b) / median(a);
    if !ratio.is_finite() {
        return None;
    }
    let is_enough = a.len().min(b.len()) >= REPETITIONS_MIN;
    let interval = is_enough.then(|| {
        // Always the same seed: equal results have equal intervals.
        let mut prng = Prng::new(1);
        let mut resample = |values: &[f64]| {
            let draw = |_| values[usize::try_from(prng.below(values.len() as u64)).unwrap_or(0)];
            crate::bench::median((0..values.len()).map(draw).collect::<Vec<_>>().into_iter())
        };
        let mut ratios: Vec<f64> = (0..RESAMPLES).map(|_| resample(b) / resample(a)).collect();
        ratios.sort_by(f64::total_cmp);
        (ratios[RESAMPLES / 40], ratios[RESAMPLES - 1 - RESAMPLES / 40])
    });
    Some(RatioEstimate { ratio, interval })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_enclose_the_ratio() {
        let a: Vec<f64> = (0..20).map(|n| 100.0 + f64::from(n % 5)).collect();
        let b: Vec<f64> = a.iter().map(|value| value * 1.5).collect();
        let estimate = ratio_of_medians(&a, &b).unwrap();
        let (low, high) = estimate.interval.unwrap();
        assert_eq!(estimate.ratio, 1.5);
        assert!(low < 1.5 && 1.5 < high && high - low < 0.06, "{low} {high}");
        assert_eq!(ratio_of_medians(&a, &b), Some(estimate), "the same again");
    }

    #[test]
    fn few_values_have_no_interval() {
        let estimate = RatioEstimate { ratio: 2.0, interval: None };
        assert_eq!(ratio_of_medians(&[1.0], &[2.0]), Some(estimate));
        assert_eq!(ratio_of_medians(&[0.0], &[2.0]), None);
        assert_eq!(ratio_of_medians(&[], &[2.0]), None);
        let same = ratio_of_medians(&[1.0; 3], &[1.0; 3]).unwrap();
        assert_eq!(same.interval, Some((1.0, 1.0)));
    }
}
