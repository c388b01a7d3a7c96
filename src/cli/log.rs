//! Where log lines go and what they look like. Only the switch's own are written.

use std::fmt;
use std::io::{self, IsTerminal};

use criswitch::config::{LogConfig, LogFormat, LogLevels};
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

/// The log's levels, which can change while it is written.
pub(super) struct LogControl(reload::Handle<Targets, Registry>);

/// Writes lines to standard error from now on. The format stays as it is until the process ends.
pub(super) fn start(config: &LogConfig) -> LogControl {
    let (filter, handle) = reload::Layer::new(Targets::new());
    let lines = lines(config.format);
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .init();
    let control = LogControl(handle);
    control.set(&config.levels);
    control
}

impl LogControl {
    /// Writes lines of these levels from now on.
    pub(super) fn set(&self, levels: &LogLevels) {
        // Fails only when nothing is written any more.
        self.0.reload(targets(levels)).ok();
    }
}

/// The switch's own lines, no library's: what h2 and hyper tell at TRACE is about frames and headers, so that nobody
/// could say of it what it never holds. Calls carry secrets.
fn targets(levels: &LogLevels) -> Targets {
    let modules = levels.modules.iter();
    let modules = modules.map(|(module, level)| (format!("criswitch::{module}"), *level));
    Targets::new()
        .with_target("criswitch", levels.all)
        .with_targets(modules)
}

fn lines<S>(format: LogFormat) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    match format {
        LogFormat::Auto if stderr_is_journal() => self::lines(LogFormat::Journald),
        LogFormat::Auto | LogFormat::Text => lines.with_ansi(io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .boxed(),
        LogFormat::Journald => {
            let text = tracing_subscriber::fmt::format()
                .without_time()
                .with_level(false);
            lines.with_ansi(false).event_format(Prefixed(text)).boxed()
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

/// Lines that begin with their syslog priority, as `sd-daemon(3)` has it.
struct Prefixed<F>(F);

impl<S, N, F> FormatEvent<S, N> for Prefixed<F>
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
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}

fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}
