//! Where log lines go and what they look like. Only criswitch's own are written.

use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::panic::PanicHookInfo;

use criswitch::config::{LogConfig, LogFormat, LogLevels};
use criswitch::telemetry::log_queue::{LogQueue, LogWriter};
use serde_json::{Map, Value};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, reload};

/// What systemd sets for a process whose output it gives to the journal: device and inode of that output.
const JOURNAL: &str = "JOURNAL_STREAM";

/// The log of the process.
pub(super) struct Log {
    /// What is logged, which can change.
    levels: reload::Handle<Targets, Registry>,
    /// Lines that wait to be written.
    pub(super) queue: LogQueue,
}

/// Keeps log lines from now on, for [`Log::write`]. The format stays as it is until the process ends.
pub(super) fn start(config: &LogConfig) -> Log {
    let (filter, levels) = reload::Layer::new(Targets::new());
    let queue = LogQueue::default();
    tracing_subscriber::registry()
        .with(filter)
        .with(lines(config.format, queue.clone()))
        .init();
    std::panic::set_hook(Box::new(log_panic));
    let log = Log { levels, queue };
    log.set(&config.levels);
    log
}

impl Log {
    /// Logs lines of these levels from now on.
    pub(super) fn set(&self, levels: &LogLevels) {
        // Fails only when nothing is logged any more.
        self.levels.reload(targets(levels)).ok();
    }

    /// Writes the lines to standard error, from a thread of its own, until what this returns is dropped.
    pub(super) fn write(&self) -> io::Result<LogWriter> {
        // The lock of `io::stderr` would be held as long as nobody reads.
        let stderr = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        self.queue.write_to(stderr, |lines| {
            tracing::warn!(lines, "log lines were dropped: standard error was not read");
        })
    }
}

/// Logs where the process panicked, instead of a write to standard error that could block. The message is omitted: it
/// may quote what a call carries.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map(ToString::to_string);
    tracing::error!(place, "criswitch panicked; please report it");
}

/// criswitch's own lines, no library's: what h2 and hyper tell at TRACE is about frames and headers, so that nobody
/// could say of it what it never holds. Calls carry secrets.
fn targets(levels: &LogLevels) -> Targets {
    let modules = levels.modules.iter();
    let modules = modules.map(|(module, level)| (format!("criswitch::{module}"), *level));
    Targets::new()
        .with_target("criswitch", levels.all)
        .with_targets(modules)
}

fn lines<S>(format: LogFormat, queue: LogQueue) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let lines = tracing_subscriber::fmt::layer().with_writer(queue.clone());
    match format {
        LogFormat::Auto if stderr_is_journal() => self::lines(LogFormat::Journald, queue),
        LogFormat::Auto | LogFormat::Text => lines.with_ansi(io::stderr().is_terminal()).boxed(),
        LogFormat::Json => {
            let json = tracing_subscriber::fmt::format().json();
            let json = json.flatten_event(true).with_span_list(false);
            lines.json().event_format(Remade(json, flat)).boxed()
        }
        LogFormat::Journald => {
            let text = tracing_subscriber::fmt::format()
                .without_time()
                .with_level(false);
            lines
                .with_ansi(false)
                .event_format(Remade(text, prefixed))
                .boxed()
        }
    }
}

fn stderr_is_journal() -> bool {
    let Some(journal) = std::env::var_os(JOURNAL) else {
        return false;
    };
    let stat = rustix::fs::fstat(io::stderr());
    stat.is_ok_and(|stat| *journal == *format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Lines of the inner format, made into others.
struct Remade<F>(F, fn(Level, &str) -> Option<String>);

impl<S, N, F> FormatEvent<S, N> for Remade<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let Remade(inner, remade) = self;
        let mut text = String::new();
        inner.format_event(context, Writer::new(&mut text), event)?;
        writer.write_str(&remade(*event.metadata().level(), &text).ok_or(fmt::Error)?)
    }
}

/// A line that begins with its syslog priority, as `sd-daemon(3)` has it.
fn prefixed(level: Level, text: &str) -> Option<String> {
    Some(format!("<{}>{text}", priority(level)))
}

/// A line of JSON with the fields of the call beside those of the line, where collectors look for `trace_id` and
/// `span_id`. The inner format has the fields of the call, and its name, as `span`.
fn flat(_: Level, text: &str) -> Option<String> {
    let mut line: Map<String, Value> = serde_json::from_str(text).ok()?;
    if let Some(Value::Object(mut span)) = line.remove("span") {
        span.remove("name");
        span.append(&mut line);
        line = span;
    }
    Some(format!("{}\n", Value::Object(line)))
}

fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}
