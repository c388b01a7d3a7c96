//! The shutdown of criswitch: calls in flight finish, or end with a status that names the shutdown. No call that
//! reached a backend breaks off.

use super::Case;
use super::time::SLACK;
use crate::simulation::truth::DRAIN;

/// The status text of the shutdown, percent-encoded as in the gRPC header.
const SAID: &str = "criswitch%20is%20shutting%20down";

impl Case<'_> {
    /// Whether the instance that got the call is shutting down.
    pub(super) fn is_ending(&self) -> bool {
        self.truth.ended_at(self.asked.life).is_some()
    }

    /// A killed criswitch may abort any call. A shutdown may abort a call only if the call reached no backend: the
    /// client sent such a call after criswitch sent GOAWAY.
    pub(super) fn broke_off(&self) -> Result<(), String> {
        let killed = self.truth.life != self.asked.life;
        let sent = self.got().next().is_some();
        let wrong = if self.is_ending() { sent } else { !killed };
        self.unless(wrong, "it broke off without a status")
    }

    /// Checks the time of the end: the shutdown ends event streams at once, and other calls only after the shutdown
    /// timeout.
    pub(super) fn ends_with_the_switch(&self) -> Result<(), String> {
        let said = self.reply.text.starts_with(SAID);
        let Some(at) = self.truth.ended_at(self.asked.life) else {
            return self.unless(
                said,
                "the status says that criswitch is shutting down, but it is not",
            );
        };
        let took = self.reply.at.saturating_duration_since(at);
        let late = self.asked.is_events() && took > SLACK;
        self.unless(late, "the event stream did not end at the shutdown")?;
        let early = said && !self.asked.is_events() && took < DRAIN;
        self.unless(
            early,
            "the shutdown ended the call before the shutdown timeout",
        )
    }
}
