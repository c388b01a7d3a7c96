//! The end of the switch: what is in flight finishes, or ends with a status that says so, and nothing breaks off.

use super::Case;
use super::time::SLACK;
use crate::simulation::truth::DRAIN;

/// What the switch says of it, as gRPC writes it in a header.
const SAID: &str = "criswitch%20is%20shutting%20down";

impl Case<'_> {
    /// Whether the switch that got it has been told to end.
    pub(super) fn is_ending(&self) -> bool {
        self.truth.ended_at(self.asked.life).is_some()
    }

    /// A switch that is killed takes its calls along; one that ends has told the client before not to send any more.
    pub(super) fn broke_off(&self) -> Result<(), String> {
        let killed = self.truth.life != self.asked.life;
        let sent = self.got().next().is_some();
        let wrong = if self.is_ending() { sent } else { !killed };
        self.unless(wrong, "it broke off without a status")
    }

    /// Events end at once, other calls when they have had their time.
    pub(super) fn ends_with_the_switch(&self) -> Result<(), String> {
        let said = self.reply.text.starts_with(SAID);
        let Some(at) = self.truth.ended_at(self.asked.life) else {
            return self.unless(said, "the switch is not at its end");
        };
        let took = self.reply.at.saturating_duration_since(at);
        let late = self.asked.is_events() && took > SLACK;
        self.unless(late, "it has gone on at the end of the switch")?;
        let early = said && !self.asked.is_events() && took < DRAIN;
        self.unless(early, "it had no time to finish")
    }
}
