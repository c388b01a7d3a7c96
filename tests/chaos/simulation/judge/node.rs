//! Status: the state of the node that a kubelet sees.

use std::collections::HashSet;

use criswitch_cri::codec::cri;
use prost::Message;

use super::Case;

impl Case<'_> {
    /// Checks that the node is ready if its default backend is healthy, and that the node's handlers are the handlers
    /// of the table.
    pub(super) fn node(&self) -> Result<(), String> {
        let status = cri::StatusResponse::decode(self.reply.messages.concat().as_slice())
            .map_err(|error| error.to_string())?;
        let shown: HashSet<&str> = status
            .runtime_handlers
            .iter()
            .map(|it| it.name.as_str())
            .collect();
        let right = self.tables().any(|table| {
            let rows = table.handlers.iter().map(|row| row.name.as_str());
            shown == rows.chain([""]).collect()
        });
        self.unless(
            !right,
            &format!("Status has different handlers than the table: {shown:?}"),
        )?;
        let relied = |backend| self.truth.relied_upon(backend, self.asked.at);
        if !self.truth.started || !self.default_backends().all(relied) {
            return Ok(());
        }
        let conditions = status.status.unwrap_or_default().conditions;
        for name in ["RuntimeReady", "NetworkReady"] {
            let met = conditions.iter().any(|it| it.r#type == name && it.status);
            self.unless(!met, &format!("{name} is not true"))?;
        }
        Ok(())
    }
}
