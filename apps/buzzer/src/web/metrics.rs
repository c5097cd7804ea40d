//! Metrics in Prometheus' text format.

use axum::extract::{MatchedPath, Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use prometheus::core::{AtomicU64, GenericCounter};
use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::Instrument;

/// What a counter is at.
pub type Read = Box<dyn Fn() -> u64 + Send + Sync>;

/// Counters of what is below: name, what it counts, and what it is at, read when metrics are asked for.
pub type Counters = Vec<(&'static str, &'static str, Read)>;

/// Upper bounds of times, seconds.
const BOUNDS: [f64; 12] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0];

/// How long a request took to come, in an answer to it: that is the visitor's affair, and no part of the time to answer.
#[derive(Clone, Copy)]
pub(super) struct Came(pub(super) Duration);

pub(super) struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    seconds: HistogramVec,
    under_way: IntGauge,
    /// Taken by one at a time: what two add at once is too much.
    below: Mutex<Vec<(GenericCounter<AtomicU64>, Read)>>,
}

impl Metrics {
    pub(super) fn new(counters: Counters) -> Result<Metrics, prometheus::Error> {
        let registry = Registry::new();
        let requests = IntCounterVec::new(
            Opts::new("buzzer_requests_total", "Requests, by route, method and status."),
            &["route", "method", "status"],
        )?;
        let seconds = HistogramVec::new(
            HistogramOpts::new(
                "buzzer_request_seconds",
                "Time to answer a request that is there to its end, by route.",
            )
            .buckets(BOUNDS.to_vec()),
            &["route"],
        )?;
        let under_way =
            IntGauge::new("buzzer_requests_under_way", "Requests that are not answered yet.")?;
        registry.register(Box::new(requests.clone()))?;
        registry.register(Box::new(seconds.clone()))?;
        registry.register(Box::new(under_way.clone()))?;
        let mut below = Vec::new();
        for (name, help, read) in counters {
            let counter = GenericCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            below.push((counter, read));
        }
        let below = Mutex::new(below);
        Ok(Metrics { registry, requests, seconds, under_way, below })
    }
}

/// A request that is not answered yet; it ends also where whoever asked does not wait for it.
struct UnderWay<'a>(&'a IntGauge);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Counts a request.
pub(super) async fn count(
    State(metrics): State<Arc<Metrics>>,
    request: Request,
    next: Next,
) -> Response {
    let (since, method) = (Instant::now(), request.method().clone());
    let path = request.extensions().get::<MatchedPath>().cloned();
    let route = path.as_ref().map_or("none", MatchedPath::as_str);
    metrics.under_way.inc();
    let under_way = UnderWay(&metrics.under_way);
    let span = tracing::info_span!("request", route, %method);
    let response = next.run(request).instrument(span).await;
    drop(under_way);
    let came = response.extensions().get::<Came>().map_or(Duration::ZERO, |came| came.0);
    let (status, took) = (response.status(), since.elapsed().saturating_sub(came));
    metrics.seconds.with_label_values(&[route]).observe(took.as_secs_f64());
    // Of methods there are as many as anybody invents.
    let known = ["GET", "HEAD", "POST", "PUT", "DELETE"].contains(&method.as_str());
    let method = if known { method.as_str() } else { "other" };
    metrics.requests.with_label_values(&[route, method, status.as_str()]).inc();
    tracing::debug!(
        route,
        method,
        status = status.as_u16(),
        took_us = took.as_micros() as u64,
        "answered"
    );
    response
}

pub(super) async fn answer(State(metrics): State<Arc<Metrics>>) -> Response {
    for (counter, read) in &*metrics.below.lock().unwrap_or_else(PoisonError::into_inner) {
        counter.inc_by(read().saturating_sub(counter.get()));
    }
    match TextEncoder::new().encode_to_string(&metrics.registry.gather()) {
        Ok(text) => ([(CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
