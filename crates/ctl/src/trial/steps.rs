//! The steps of a try: the name, the time and the error of each. In text output each step is printed when it ends.

use std::cell::Cell;
use std::time::{Duration, Instant};

use criswitch_client::terminal::{is_read, plain, wrapped};
use serde::{Serialize, Serializer};

use super::call::TryFailure;

/// The width of the names of steps.
const WIDTH: usize = 18;

/// The name of a step that creates the pod.
pub(super) const CREATE_POD: &str = "create pod";

/// A step that has ended.
#[derive(Serialize)]
pub(super) struct EndedStep {
    pub(super) name: &'static str,
    #[serde(rename = "milliseconds", serialize_with = "serialize_milliseconds")]
    time: Duration,
    error: Option<String>,
}

/// The steps so far.
pub(super) struct Steps {
    prints: bool,
    pub(super) done: Vec<EndedStep>,
    /// The error of the first line that was not printed.
    unprinted: Cell<Option<anyhow::Error>>,
    current: Option<(&'static str, Instant)>,
}

impl Steps {
    /// No steps. If `prints` is set, each step is printed when it ends.
    pub(super) fn new(prints: bool) -> Steps {
        Steps {
            prints,
            done: Vec::new(),
            unprinted: Cell::new(None),
            current: None,
        }
    }

    /// Runs a step and measures its time.
    pub(super) async fn run<T>(
        &mut self,
        name: &'static str,
        work: impl Future<Output = Result<T, TryFailure>>,
    ) -> Result<T, TryFailure> {
        self.current = Some((name, Instant::now()));
        let result = work.await;
        self.end(result.as_ref().err().map(|failure| failure.text.clone()));
        result
    }

    /// Ends the current step, if there is one, because the user interrupted it.
    pub(super) fn interrupt(&mut self) {
        self.end(Some("interrupted".to_owned()));
    }

    fn end(&mut self, error: Option<String>) {
        let Some((name, since)) = self.current.take() else {
            return;
        };
        let step = EndedStep {
            name,
            time: since.elapsed(),
            error,
        };
        self.print(&step.text());
        self.done.push(step);
    }

    /// Prints a line below the steps.
    pub(super) fn say(&self, name: &str, text: &str) {
        self.print(&line(name, text));
    }

    /// Prints a line, wrapped to the width of a terminal.
    pub(super) fn print(&self, line: &str) {
        if self.prints {
            // A failed write must not prevent the removal of the pod.
            let printed = self.printed();
            self.unprinted
                .set(printed.and(is_read(&wrapped(line).into())).err());
        }
    }

    /// # Errors
    /// A line was not printed.
    pub(super) fn printed(&self) -> anyhow::Result<()> {
        self.unprinted.take().map_or(Ok(()), Err)
    }

    pub(super) fn last(&self) -> Option<&EndedStep> {
        self.done.last()
    }

    /// The time of all steps.
    pub(super) fn time(&self) -> Duration {
        self.done.iter().map(|step| step.time).sum()
    }
}

impl EndedStep {
    /// The name of the step and its error; `None` if the step succeeded.
    pub(super) fn failure(&self) -> Option<String> {
        let error = self.error.as_ref()?;
        Some(format!("{}: {error}", self.name))
    }

    fn text(&self) -> String {
        let time = rounded_time(self.time);
        match &self.error {
            None => line(self.name, &time),
            Some(error) => line(self.name, &format!("failed after {time}: {error}")),
        }
    }
}

/// A line about a step or a fact of a try.
fn line(name: &str, text: &str) -> String {
    format!("  {name:WIDTH$}{}\n", plain(text))
}

/// A duration in milliseconds, with their fraction in microseconds.
pub(super) fn milliseconds(time: Duration) -> f64 {
    // `f64` represents the microseconds of a year exactly.
    time.as_micros() as f64 / 1000.0
}

fn serialize_milliseconds<S: Serializer>(time: &Duration, json: S) -> Result<S::Ok, S::Error> {
    json.serialize_f64(milliseconds(*time))
}

/// A duration for people: `312 ms`, `1.25 s`.
pub(super) fn rounded_time(time: Duration) -> String {
    match time.as_millis() {
        0 => format!("{:.1} ms", milliseconds(time)),
        under @ 1..1000 => format!("{under} ms"),
        _ => format!("{:.2} s", time.as_secs_f64()),
    }
}
