//! Acts on what criswitch learned from a reply. Only this module retires backends, publishes a routing table and logs
//! because of a reply.

use bytes::Bytes;
use tonic::Status;

use crate::backend::Backend;
use crate::backend::unsaved::Unsaved;
use crate::switch::learn::Learned;
use crate::switch::{Switch, reload, saved};

/// Acts on what criswitch `learned` from a reply of `backend`. Returns the message for the client, if it differs from
/// the reply, and the backends whose changes the message may show.
///
/// # Errors
/// Why the reply cannot be used. Whatever was learned before the fault still counts.
pub(crate) fn act(
    switch: &Switch,
    backend: &Backend,
    learned: Learned,
) -> Result<(Option<Bytes>, Unsaved), Status> {
    let live = switch.live();
    learned.log(&live, backend);
    let changed = live.among(&learned.save);
    changed
        .iter()
        .for_each(|backend| backend.saving.note_change());
    if learned.retire {
        saved::complete(switch, backend);
        reload::remove_unneeded(switch);
    }
    if learned.republish {
        reload::auto_register(switch);
    }
    Ok((learned.message?, changed.into_iter().collect()))
}
