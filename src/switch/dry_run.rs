//! The changes that a reload would make now. Changes nothing: no backend connects, no state is saved, no outcome is
//! remembered.

use criswitch_config::Config;
use criswitch_config::address::Identities;
use criswitch_cri::codec::admin::{Changes, Problem, Undo};

use crate::switch::{Switch, reload};
use crate::topology::diff;
use crate::topology::undo::undo;

/// The outcome of a dry run.
#[derive(Debug, Default)]
pub(crate) struct ReloadPlan {
    /// The changes; `None` if the files have problems. If keys need a restart, the changes without these keys.
    pub(crate) changes: Option<Changes>,
    /// The problems for which the reload would be rejected.
    pub(crate) problems: Vec<Problem>,
    /// The changed keys that only a start reads.
    pub(crate) next_start: Vec<String>,
    /// For each change, the effect of a later reload with the old files.
    pub(crate) undo: Vec<Undo>,
}

impl ReloadPlan {
    /// Whether the reload would change anything. A rejected reload changes nothing.
    pub(crate) fn would_change(&self) -> bool {
        let changes = self.changes.as_ref().filter(|_| self.problems.is_empty());
        changes.is_some_and(|changes| !diff::has_only_warnings(changes))
    }
}

/// Reads the configuration files, and computes the changes as a reload does. Returns `None` if the file system of the
/// files or sockets does not answer.
pub(crate) async fn plan(switch: &Switch) -> Option<ReloadPlan> {
    let path = switch.live().config.path.clone();
    let known = reload::known_sockets(&switch.live());
    let read = switch.dry_runs.run(move || {
        let loaded = Config::load(&path);
        let identities = Identities::of(reload::sockets(known, &loaded));
        (loaded, identities)
    });
    let (loaded, identities) = read.await?;
    Some(match loaded {
        Ok(config) => of_config(switch, config, &identities),
        Err(problems) => ReloadPlan {
            problems: problems.messages(),
            ..ReloadPlan::default()
        },
    })
}

fn of_config(switch: &Switch, config: Config, identities: &Identities) -> ReloadPlan {
    let before = switch.live();
    let problems = reload::fixed_keys(&before.config, &config);
    // Use a copy of the ids, because the reload itself will issue the same ids.
    let mut ids = switch.reloads().ids.clone();
    let next = reload::next(switch, &before, config, identities, &mut ids);
    let changes = reload::changes(&switch.question, &switch.owners(), &before, &next);
    ReloadPlan {
        problems,
        next_start: diff::next_start(&before.config, &next.live.config),
        undo: undo(&changes, &before, &next.live),
        changes: Some(changes),
    }
}
