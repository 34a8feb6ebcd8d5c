//! Predictions for the papers' set-ups beside their results (`model/validation.toml`).

use serde::Deserialize;

use super::{HardwareProfile, ResourceDemand, bounds, built_in_profiles};

/// A prediction and the paper's result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Prediction {
    pub(crate) paper: String,
    /// Figure or table: `fig-7`.
    pub(crate) item: String,
    pub(crate) what: String,
    pub(crate) unit: String,
    pub(crate) predicted: f64,
    pub(crate) published: f64,
    /// Numbers of the paper that the prediction uses.
    pub(crate) inputs: String,
    /// Resource that bounds the rate, or the method.
    pub(crate) reason: String,
}

impl Prediction {
    /// Returns the error in percent of the published result.
    pub(crate) fn error_percent(&self) -> f64 {
        (self.predicted / self.published - 1.0) * 100.0
    }
}

/// Returns the mean and the greatest absolute error in percent; `None` without predictions.
pub(crate) fn errors_of(predictions: &[Prediction]) -> Option<(f64, f64)> {
    let errors: Vec<f64> = predictions.iter().map(|one| one.error_percent().abs()).collect();
    let worst = errors.iter().copied().reduce(f64::max)?;
    Some((errors.iter().sum::<f64>() / errors.len() as f64, worst))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ValidationFile {
    prediction: Vec<PublishedResult>,
}

/// A result of a paper, and the method of its prediction.
#[derive(Debug, Deserialize)]
struct PublishedResult {
    paper: String,
    item: String,
    what: String,
    unit: String,
    published: f64,
    inputs: String,
    #[serde(flatten)]
    method: PredictionMethod,
}

/// A method of prediction.
#[derive(Debug, Deserialize)]
#[serde(tag = "method", rename_all = "kebab-case")]
enum PredictionMethod {
    /// The lowest bound of a machine's resources, times `scale`.
    Bound {
        profile: String,
        nics: Option<u32>,
        host_cores: Option<f64>,
        demand: ResourceDemand,
        scale: f64,
    },
    /// A rate after this share of the cycles was removed.
    Speedup { base: f64, removed: f64 },
    /// A rate of one core, times the number of cores.
    Scaling { base: f64, cores: f64 },
    /// Rates of parts that work independently.
    Sum { rates: Vec<f64> },
}

impl PredictionMethod {
    /// Returns the prediction, and the resource or the step that it follows from; `None` if there
    /// is no such profile.
    fn predict(&self, profiles: &[HardwareProfile]) -> Option<(f64, String)> {
        Some(match self {
            Self::Bound { profile, nics, host_cores, demand, scale } => {
                let named = profiles.iter().find(|one| one.name == *profile)?;
                let profile = named.clone().with_nics(nics.unwrap_or(named.nic.count));
                let cores = host_cores.unwrap_or_else(|| f64::from(profile.host.cores));
                let first = *bounds(&profile, cores, demand).first()?;
                (first.units_per_s * scale, first.resource.name().to_owned())
            }
            Self::Speedup { base, removed } => {
                let reason = format!("{:.1} % of the cycles removed", removed * 100.0);
                (base / (1.0 - removed), reason)
            }
            Self::Scaling { base, cores } => (base * cores, format!("{cores} cores")),
            Self::Sum { rates } => (rates.iter().sum(), "sum".to_owned()),
        })
    }
}

/// Returns all predictions.
///
/// # Panics
/// If the embedded file is invalid, which a test excludes.
pub(crate) fn predictions() -> Vec<Prediction> {
    let file: ValidationFile =
        toml::from_str(include_str!("../../model/validation.toml")).expect("checked by a test");
    let profiles = built_in_profiles();
    let prediction = |result: PublishedResult| {
        let (predicted, reason) = result.method.predict(&profiles).expect("checked by a test");
        let PublishedResult { paper, item, what, unit, published, inputs, .. } = result;
        Prediction { paper, item, what, unit, predicted, published, inputs, reason }
    };
    let mut predictions: Vec<_> = file.prediction.into_iter().map(prediction).collect();
    predictions.sort_by(|a, b| (&a.paper, &a.item).cmp(&(&b.paper, &b.item)));
    predictions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predictions_are_those_of_the_model() {
        let predictions = predictions();
        assert!(predictions.len() >= 18);
        let of = |what: &str| {
            let found = predictions.iter().find(|one| one.what.starts_with(what)).unwrap();
            (found.predicted, found.reason.as_str())
        };
        assert_eq!(of("IO-TCP, one host core"), (80.0, "disks"));
        let (passes, reason) = of("IO-TCP on one BlueField-2");
        assert!((passes - 25.6 / 4.3 * 8.0).abs() < 1e-9 && reason == "NIC memory bandwidth");
        let (scaled, _) = of("Redis on AccelTCP, eight");
        assert!((scaled - 3.52).abs() < 1e-9);
        let (faster, _) = of("TLS offload, sender");
        assert!((faster - 1.0 / 0.26).abs() < 1e-9);
        assert_eq!(of("L3 forwarding").1, "line rate");
    }

    #[test]
    fn errors_are_relative_to_the_paper() {
        let mut predictions = predictions();
        predictions.truncate(2);
        for (prediction, predicted) in predictions.iter_mut().zip([90.0, 130.0]) {
            (prediction.predicted, prediction.published) = (predicted, 100.0);
        }
        let (mean, worst) = errors_of(&predictions).unwrap();
        assert!((mean - 20.0).abs() < 1e-9 && (worst - 30.0).abs() < 1e-9);
        assert_eq!(errors_of(&[]), None);
    }
}
