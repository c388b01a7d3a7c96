//! Describes how a later reload with the old files undoes the changes of a reload. Does no I/O.

use criswitch_cri::codec::admin::{Changes, Moved, Retiring, Undo};

use crate::topology::Live;

/// For each change from `before` to `after`, the effect of a later reload with the old files.
pub(crate) fn undo(changes: &Changes, before: &Live, after: &Live) -> Vec<Undo> {
    let added = changes.handlers_added.iter().map(|name| Undo {
        what: format!("handler {name}"),
        complete: true,
        effect: "the handler is removed again; pods that it has by then run on".to_owned(),
    });
    let lost = lost_auto_registered(before, after);
    let removed = changes
        .handlers_removed
        .iter()
        .filter(|name| !lost.contains(name))
        .map(|name| Undo {
            what: format!("handler {name}"),
            complete: true,
            effect: "the handler takes new pods again".to_owned(),
        });
    let all_moved = changes.handlers_moved.iter();
    let moved = all_moved.filter(|moved| !lost.contains(&&moved.name));
    let settings = (!changes.settings.is_empty()).then(|| Undo {
        what: "settings".to_owned(),
        complete: true,
        effect: "the old values apply again".to_owned(),
    });
    added
        .chain(removed)
        .chain(moved.map(of_moved))
        .chain(lost.iter().map(|name| of_lost(name)))
        .chain(changes.default_handler.as_ref().map(of_default))
        .chain(changes.backends_added.iter().map(|name| of_added(name)))
        .chain(changes.backends_retiring.iter().map(of_retiring))
        .chain(changes.backends_removed.iter().map(|name| of_removed(name)))
        .chain(settings)
        .collect()
}

/// The automatically registered handlers that several backends report, that one of these backends keeps in `before`,
/// and that it no longer keeps in `after`. A later reload does not register such a handler again.
fn lost_auto_registered<'l>(before: &'l Live, after: &Live) -> Vec<&'l String> {
    before
        .disputed
        .iter()
        .filter(|it| it.kept_by.is_some())
        .filter(|was| {
            !after
                .disputed
                .iter()
                .any(|is| is.handler == was.handler && is.kept_by == was.kept_by)
        })
        .map(|dispute| &dispute.handler)
        .collect()
}

fn of_lost(name: &str) -> Undo {
    Undo {
        what: format!("handler {name}"),
        complete: false,
        effect: "several backends report the handler, so criswitch does not register it automatically again; add a row \
                 under [handlers]"
            .to_owned(),
    }
}

fn of_moved(Moved { name, from, to }: &Moved) -> Undo {
    Undo {
        what: format!("handler {name}"),
        complete: true,
        effect: format!(
            "new pods start on {from} again; pods started on {to} meanwhile stay there"
        ),
    }
}

fn of_default(Moved { from, .. }: &Moved) -> Undo {
    Undo {
        what: "default_handler".to_owned(),
        complete: true,
        effect: format!(
            "new pods without a RuntimeClass use {from} again; pods started meanwhile stay where they are"
        ),
    }
}

fn of_added(name: &str) -> Undo {
    Undo {
        what: format!("backend {name}"),
        complete: true,
        effect: "the backend is removed again, or, if it has pods by then, when its last pod ends"
            .to_owned(),
    }
}

fn of_retiring(Retiring { name, unnamed, .. }: &Retiring) -> Undo {
    let until = if *unnamed {
        ". If its last pod ends before you undo, its cached lists and counters are lost, and lists omit the backend until \
             it answers"
    } else {
        ""
    };
    Undo {
        what: format!("backend {name}"),
        complete: true,
        effect: format!("the backend keeps its pods and takes new pods again{until}"),
    }
}

fn of_removed(name: &str) -> Undo {
    Undo {
        what: format!("backend {name}"),
        complete: false,
        effect: "the backend is added as a new one: criswitch has deleted its cached lists and its counters, and lists \
                 omit it until it answers"
            .to_owned(),
    }
}
