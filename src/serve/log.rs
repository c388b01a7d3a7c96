//! The destination and the formats of log lines. Lines of libraries are not written.

use std::fmt;
use std::io::{self, IsTerminal};
use std::panic::PanicHookInfo;

use criswitch::telemetry::log_queue::{LogQueue, LogWriter};
use criswitch_config::{LogConfig, LogFormat, LogLevels};
use criswitch_cri::error_text::without_numbers;
use criswitch_platform::process;
use serde_json::{Map, Value};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, reload};

pub(super) struct Log {
    /// The levels, which a reload can change.
    levels: reload::Handle<Targets, Registry>,
    /// The lines that are not written yet.
    pub(super) queue: LogQueue,
}

/// Installs the logger of the process. Lines wait in a queue until [`Log::write`] starts the thread that writes them. A
/// reload does not change the format.
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
    /// Sets the levels of the lines that are logged.
    pub(super) fn set(&self, levels: &LogLevels) {
        // This fails only if the subscriber no longer exists, and then nothing is logged anyway.
        self.levels.reload(targets(levels)).ok();
    }

    /// Starts a thread that writes the queued lines to standard error, until the returned writer is dropped.
    pub(super) fn write(&self) -> io::Result<LogWriter> {
        self.queue.write_to(process::log_output()?, |lines| {
            tracing::warn!(lines, "log lines were dropped: standard error was not read");
        })
    }
}

/// Logs the place of a panic, because a direct write to standard error could block. The message is omitted, because it
/// may quote a call's secrets.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map(ToString::to_string);
    tracing::error!(place, "criswitch panicked; please report it");
}

/// Logs only criswitch's lines. Calls carry secrets, and h2 and hyper log frames and headers at TRACE.
fn targets(levels: &LogLevels) -> Targets {
    // A module belongs to the library or to the program, or is a crate.
    let modules = levels.modules.iter().flat_map(|(module, level)| {
        ["criswitch::", "criswitchd::", "criswitch_"]
            .map(|place| (format!("{place}{module}"), *level))
    });
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
        LogFormat::Auto if process::stderr_is_journal() => self::lines(LogFormat::Journald, queue),
        LogFormat::Auto | LogFormat::Text => {
            let colours = io::stderr().is_terminal();
            let text = tracing_subscriber::fmt::format().with_ansi(colours);
            lines
                .with_ansi(colours)
                .event_format(Remade(text, unchanged))
                .boxed()
        }
        LogFormat::Json => {
            let json = tracing_subscriber::fmt::format()
                .json()
                .flatten_event(true)
                .with_span_list(false);
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

/// Formats a line with the inner format, removes the numbers of the operating system's errors, then changes the line
/// with the function.
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
        let text = without_numbers(&text);
        writer.write_str(&remade(*event.metadata().level(), &text).ok_or(fmt::Error)?)
    }
}

fn unchanged(_: Level, text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// Puts the syslog priority before the line, in the format of `sd-daemon(3)`.
fn prefixed(level: Level, text: &str) -> Option<String> {
    Some(format!("<{}>{text}", priority(level)))
}

/// Moves the call's fields from the object `span` to the top level of the JSON line, where collectors look for
/// `trace_id` and `span_id`.
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
