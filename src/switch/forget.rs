//! Forgets a backend whose runtime was removed for good, without a restart.

use crate::backend::Backend;
use crate::backend::state::State;
use crate::backend::unsaved::Unsaved;
use crate::switch::{Switch, reload};
use crate::topology::Live;

/// Forgets the pods, containers and images of a backend that is away. An item that another backend lists passes to that
/// backend. If the configuration does not name the backend, removes it. Otherwise lists omit the backend until it
/// answers.
///
/// # Errors
/// If no backend has this name, if the backend answers or is connecting, or if the state cannot be saved.
pub async fn forget(switch: &Switch, name: &str) -> Result<(), String> {
    let live = switch.live();
    let backend = live
        .backends
        .iter()
        .find(|backend| *backend.name() == *name)
        .ok_or_else(|| unknown(name, &live))?;
    let advice = match backend.connection.link().state {
        State::Ready(_) => Some(
            "answers, so it is not forgotten; remove its pods, or remove its rows from the configuration and reload: criswitch keeps the backend until its pods end",
        ),
        State::Connecting => {
            Some("is connecting; wait until `criswitch status` shows it as down or unresponsive")
        }
        State::Unresponsive(..) | State::Down(_) => None,
    };
    if let Some(advice) = advice {
        return Err(format!("backend {name:?} ({}) {advice}", backend.socket));
    }
    let (pods, containers) = switch.owners().count(backend.id);
    backend.leave();
    let mut changed = switch.owners().forget_backend(backend.id);
    changed.insert(backend.id);
    let changed = live.among(&changed);
    changed.iter().for_each(|it| it.saving.note_change());
    switch.question.forget(backend.id);
    let saved = Unsaved::from_iter(changed).saved().await;
    tracing::warn!(
        backend = name,
        pods,
        containers,
        "backend forgotten on request"
    );
    reload::remove_unneeded(switch);
    saved.map_err(|status| status.message().to_owned())
}

fn unknown(name: &str, live: &Live) -> String {
    let names = live
        .backends
        .iter()
        .map(|backend: &std::sync::Arc<Backend>| backend.name())
        .collect::<Vec<_>>()
        .join(", ");
    format!("no backend is named {name:?}; the backends are: {names}")
}
