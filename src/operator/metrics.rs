//! Serves the metrics page for Prometheus over a Unix socket or a network address. The page is made for each request,
//! on a different thread from the one that serves calls. A failure here must not end or delay a call.

mod families;
mod samples;
mod seen;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use criswitch_config::MetricsListen;
use criswitch_cri::error_text::error_chain;
use criswitch_platform::file_work::{FileWork, NO_ANSWER};
use criswitch_platform::listen::{Acceptor, BindError, Bound};
use criswitch_platform::passed::{Opened, PassedError, PassedSocket, Purpose};
use http::{HeaderValue, Method, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use prometheus::{TEXT_FORMAT, TextEncoder};
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::errors;
use crate::limits::flood::Io;
use crate::switch::Switch;
use crate::telemetry::log_limit::AcceptFailures;

pub use families::{FAMILIES, FamilyRow};
pub use samples::MetricKind;
use samples::Samples;
use seen::Seen;

/// The content type of OpenMetrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The path of the metrics page.
const PATH: &str = "/metrics";
/// The limit on clients that read metrics at the same time. A further client takes the place of the oldest one.
const MAX_READERS: usize = 8;
/// The shortest time between two accepted readers, so that readers which connect without a pause do not delay calls.
const READER_INTERVAL: Duration = Duration::from_millis(20);
/// How long a reader may take, from its connection to the last byte of the page.
const READER_LIMIT: Duration = Duration::from_secs(5);
/// How long a reader may take to send the head of its request.
const HEAD_LIMIT: Duration = Duration::from_secs(1);
/// The largest head of a request, in bytes. hyper allows no smaller limit.
const MAX_REQUEST: usize = 8 << 10;
/// How long readers share a page. A page counts the pods of each handler, and meanwhile no call can use the owners, so
/// that readers which ask again and again do not delay calls.
pub const PAGE_AGE: Duration = Duration::from_secs(1);
/// The time between two attempts to bind the address.
const RETRY: Duration = Duration::from_secs(30);

/// Why metrics cannot be served at an address.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error(transparent)]
    Socket(#[from] BindError),
    #[error("{NO_ANSWER}")]
    NoAnswer,
    #[error(
        "cannot listen on {address}; stop the process that listens there, or change `[metrics] listen`; under systemd, \
         enable criswitch-metrics.socket instead"
    )]
    Tcp {
        address: SocketAddr,
        source: io::Error,
    },
}

/// An open listener for readers of metrics.
enum MetricsSocket {
    Socket(Bound),
    /// A Unix socket that systemd passed. systemd owns the file of the socket.
    Passed(Acceptor),
    Tcp(TcpListener),
}

/// Serves metrics of `switch` until the returned task is dropped: on the socket that systemd passed, else at the
/// configured address.
pub fn keep_serving(
    switch: &Arc<Switch>,
    passed: Option<Result<PassedSocket, PassedError>>,
) -> JoinSet<Infallible> {
    let passed = passed.and_then(or_log);
    let mut task = JoinSet::new();
    let place = switch.live().config.metrics.clone();
    if passed.is_some() || place.is_some() {
        task.spawn(serve_somewhere(Arc::clone(switch), passed, place));
    }
    task
}

async fn serve_somewhere(
    switch: Arc<Switch>,
    passed: Option<PassedSocket>,
    place: Option<MetricsListen>,
) -> Infallible {
    let passed = match passed {
        Some(passed) => unless_elsewhere(passed, place.clone()).await,
        None => None,
    };
    match (passed, place) {
        (Some(passed), _) => serve_passed(switch, passed).await,
        (None, Some(place)) => serve(switch, place).await,
        (None, None) => std::future::pending().await,
    }
}

/// The socket that systemd passed; `None` if `place` is a different address. Reads the disk, because symbolic links may
/// give one socket two paths.
async fn unless_elsewhere(
    passed: PassedSocket,
    place: Option<MetricsListen>,
) -> Option<PassedSocket> {
    let compared = tokio::task::spawn_blocking(move || at_place(passed, place.as_ref()));
    compared.await.ok()?
}

/// The socket that systemd passed. If its address differs from `place`, logs an error and returns `None`.
fn at_place(passed: PassedSocket, place: Option<&MetricsListen>) -> Option<PassedSocket> {
    let is_there = match place {
        None => true,
        Some(MetricsListen::Socket(socket)) => passed.is_at(socket.path()),
        Some(MetricsListen::Tcp(address)) => passed.is_at_address(*address),
    };
    match place {
        Some(place) if !is_there => or_log(Err(passed.instead_of(place, Purpose::Metrics))),
        _ => Some(passed),
    }
}

fn or_log(socket: Result<PassedSocket, PassedError>) -> Option<PassedSocket> {
    socket
        .inspect_err(|error| {
            tracing::error!(
                cause = error_chain(error),
                "metrics are not served: the socket that was passed for metrics is unusable"
            );
        })
        .ok()
}

async fn serve_passed(switch: Arc<Switch>, passed: PassedSocket) -> Infallible {
    let listen = passed.place();
    match MetricsSocket::passed(passed) {
        Ok(socket) => {
            tracing::info!(%listen, socket_activated = true, "serving metrics");
            socket.serve(switch).await
        }
        Err(error) => {
            tracing::error!(%listen, %error, "metrics are not served");
            std::future::pending().await
        }
    }
}

/// Serves at the configured address. If the address cannot be bound, retries until it can: criswitch must serve pods
/// even without metrics.
async fn serve(switch: Arc<Switch>, place: MetricsListen) -> Infallible {
    let mut reported = false;
    let files = FileWork::default();
    let socket = loop {
        match MetricsSocket::open(&place, &files).await {
            Ok(socket) => break socket,
            Err(error) if !reported => {
                let cause = error_chain(&error);
                tracing::error!(listen = %place, cause, "metrics are not served; criswitch tries again every {RETRY:?}");
                reported = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(RETRY).await;
    };
    tracing::info!(listen = %place, "serving metrics");
    socket.serve(switch).await
}

impl MetricsSocket {
    async fn open(place: &MetricsListen, files: &FileWork) -> Result<MetricsSocket, OpenError> {
        match place {
            MetricsListen::Socket(socket) => {
                let socket = socket.clone();
                let bound = files.run(move || Bound::at(socket.path(), &[])).await;
                Ok(MetricsSocket::Socket(bound.ok_or(OpenError::NoAnswer)??))
            }
            MetricsListen::Tcp(address) => {
                let address = *address;
                TcpListener::bind(address)
                    .await
                    .map(MetricsSocket::Tcp)
                    .map_err(|source| OpenError::Tcp { address, source })
            }
        }
    }

    fn passed(passed: PassedSocket) -> io::Result<MetricsSocket> {
        Ok(match passed.open()? {
            Opened::Unix(socket) => MetricsSocket::Passed(socket),
            Opened::Tcp(socket) => MetricsSocket::Tcp(socket),
        })
    }

    async fn serve(self, switch: Arc<Switch>) -> Infallible {
        let pages = Arc::new(Pages {
            switch,
            last: Mutex::default(),
        });
        let mut readers = JoinSet::new();
        let mut oldest_first = VecDeque::<AbortHandle>::new();
        let mut failing = AcceptFailures::default();
        loop {
            tokio::select! {
                reader = self.accept() => {
                    match reader {
                        Ok(reader) => {
                            failing.succeeded();
                            oldest_first.retain(|reader| !reader.is_finished());
                            if oldest_first.len() == MAX_READERS && let Some(oldest) = oldest_first.pop_front() {
                                oldest.abort();
                            }
                            let page = answer(reader, Arc::clone(&pages));
                            oldest_first.push_back(readers.spawn(tokio::time::timeout(READER_LIMIT, page)));
                        }
                        Err(error) => if let Some(omitted) = failing.failed() {
                            tracing::warn!(%error, omitted, "cannot accept a metrics connection");
                        },
                    }
                    tokio::time::sleep(READER_INTERVAL).await;
                }
                Some(_) = readers.join_next() => {}
            }
        }
    }

    /// Accepts the next reader.
    async fn accept(&self) -> io::Result<Box<dyn Io>> {
        Ok(match self {
            MetricsSocket::Socket(bound) => Box::new(bound.socket.accept().await?),
            MetricsSocket::Passed(socket) => Box::new(socket.accept().await?),
            MetricsSocket::Tcp(socket) => Box::new(socket.accept().await?.0),
        })
    }
}

/// Answers one request and closes the connection, so that a reader does not count towards [`MAX_READERS`] for long.
async fn answer(stream: Box<dyn Io>, pages: Arc<Pages>) {
    let service = service_fn(move |request: http::Request<Incoming>| {
        let (pages, own) = (Arc::clone(&pages), Arc::clone(&pages));
        async move {
            let watchers = &pages.switch.watchers;
            let reply = watchers.run_serialized(move || reply(&request, &own));
            reply.await.ok_or_else(errors::no_state)
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .keep_alive(false)
        .max_buf_size(MAX_REQUEST)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(cause = error_chain(&error), "a metrics connection broke");
    }
}

fn reply(request: &http::Request<Incoming>, pages: &Pages) -> http::Response<Full<Bytes>> {
    let mut accepted = request
        .headers()
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|kinds| kinds.to_str().ok());
    let is_open = accepted.any(|kinds| kinds.contains("application/openmetrics-text"));
    let (status, kind, body) = match (request.method(), request.uri().path()) {
        (_, path) if path != PATH => (StatusCode::NOT_FOUND, "text/plain", format!("see {PATH}\n")),
        (&Method::GET | &Method::HEAD, _) => match pages.page() {
            Ok(page) if is_open => (StatusCode::OK, OPEN_METRICS, open_metrics(&page)),
            Ok(page) => (StatusCode::OK, TEXT_FORMAT, page.to_string()),
            Err(error) => {
                let text = format!("{error}\n");
                (StatusCode::INTERNAL_SERVER_ERROR, "text/plain", text)
            }
        },
        _ => (StatusCode::METHOD_NOT_ALLOWED, "text/plain", String::new()),
    };
    let mut reply = http::Response::new(Full::from(body));
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    reply
}

/// The page for the readers of a socket.
struct Pages {
    switch: Arc<Switch>,
    /// The last page and its time.
    last: Mutex<Option<(Instant, Arc<str>)>>,
}

impl Pages {
    /// The last page if it is younger than [`PAGE_AGE`], else a new one.
    fn page(&self) -> prometheus::Result<Arc<str>> {
        let mut last = self.last.lock();
        if let Some((at, page)) = &*last
            && at.elapsed() < PAGE_AGE
        {
            return Ok(Arc::clone(page));
        }
        let page: Arc<str> = page(&self.switch)?.into();
        *last = Some((Instant::now(), Arc::clone(&page)));
        Ok(page)
    }
}

/// Converts a page in Prometheus' text format to OpenMetrics, which names the family of a counter without `_total` and
/// ends the page with the line `# EOF` (OpenMetrics 1.0).
fn open_metrics(page: &str) -> String {
    page.lines()
        .map(open_metrics_line)
        .chain(["# EOF\n".to_owned()])
        .collect()
}

fn open_metrics_line(line: &str) -> String {
    let mut words = line.splitn(4, ' ');
    let (Some("#"), Some(what), Some(name), Some(rest)) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return format!("{line}\n");
    };
    let family = FAMILIES.iter().find(|family| family.name == name);
    match family.map(|family| family.kind) {
        Some(MetricKind::Counter) => {
            let name = name.trim_end_matches("_total");
            format!("# {what} {name} {rest}\n")
        }
        _ => format!("{line}\n"),
    }
}

/// All metrics of `switch`, in Prometheus' text format.
///
/// # Errors
/// The `prometheus` library cannot encode the metrics.
pub fn page(switch: &Switch) -> prometheus::Result<String> {
    let seen = Seen::now(switch);
    let families = FAMILIES.iter().filter_map(|family| {
        let mut samples = Samples::new(family.kind, family.labels);
        (family.read)(&seen, &mut samples);
        samples.into_family(family.name, family.help)
    });
    TextEncoder::new().encode_to_string(&families.collect::<Vec<_>>())
}
