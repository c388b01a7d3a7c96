//! Status: what a kubelet takes the node for.

use criswitch::cri;
use prost::Message;

use super::Case;

impl Case<'_> {
    /// A node whose default backend is in order is ready, whatever has become of the others.
    pub(super) fn node(&self) -> Result<(), String> {
        let default = self.table.default.backend;
        if !self.truth.started || !self.truth.relied_upon(default, self.asked.at) {
            return Ok(());
        }
        let status = cri::StatusResponse::decode(self.reply.messages.concat().as_slice());
        let status = status.map_err(|error| error.to_string())?;
        let conditions = status.status.unwrap_or_default().conditions;
        for name in ["RuntimeReady", "NetworkReady"] {
            let met = conditions.iter().any(|it| it.r#type == name && it.status);
            self.unless(!met, &format!("{name} is not true"))?;
        }
        Ok(())
    }
}
