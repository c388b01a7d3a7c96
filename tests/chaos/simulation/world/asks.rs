//! Makes a call from a step of a schedule, with the current ids, images and handlers.

use std::sync::Arc;
use std::time::Duration;

use criswitch_cri::rpc::{Goes, ImageRule, Kind, Merge};
use tokio::time::Instant;

use super::World;
use crate::simulation::client::{self, Call};
use crate::simulation::filter::{Filter, Narrow, Takes};
use crate::simulation::judge::Asked;
use crate::simulation::plan::{IMAGES, On, Op};
use crate::simulation::truth::{APPS, Creating, Streamed, labels, uid};

impl World {
    pub(super) fn ask(&self, op: &Op) -> Asked {
        let filter = self.filter(op);
        let names = if filter.is_empty() {
            self.names(op)
        } else {
            filter.names().to_owned()
        };
        let handler = match (&op.row.goes, op.handler) {
            (Goes::Image(..), Some(which)) => self.a_handler(op.on, which as usize),
            _ => String::new(),
        };
        let image_for = match (&op.row.goes, op.pod) {
            (Goes::Image(_, rule), Some(which)) if handler.is_empty() && is_for_pods(rule) => {
                self.a_uid(On::Existing, which as usize)
            }
            _ => String::new(),
        };
        let silent = self.runtimes.iter().filter(|runtime| runtime.is_silent());
        let mut truth = self.truth();
        let (id, begun) = truth.begin_call();
        if op.row.name == "UpdateRuntimeConfig" {
            truth.updates.begin();
        }
        if matches!(op.row.merge(), Some(Merge::Streamed(..))) {
            truth.streamed.push(Streamed {
                call: id,
                ended: None,
            });
        }
        let name = format!("{}-{id}", truth.seed);
        if matches!(op.row.goes, Goes::Handler(_)) {
            truth.creating.push(Creating {
                call: id,
                uid: uid(&name),
                settled: None,
            });
        }
        // The call may name the pod by a short id.
        let pods = truth.things.iter().filter(|it| it.kind == Kind::Pod);
        let mut named = pods.filter(|pod| !names.is_empty() && pod.id.starts_with(&names));
        // Only a call that creates a container names a pod here. Another call may name a handler, and a pod's id may
        // begin with the handler's name.
        let names_pod = matches!(op.row.goes, Goes::OwnerWithImage(_));
        let pod = named.next().filter(|_| names_pod);
        let pod = pod.map_or_else(|| uid(&name), |pod| pod.uid.clone());
        let labels = labels(&pod, &name);
        let message = if filter.is_empty() {
            let message = client::message(op.row, &names, &name);
            client::with_labels(op.row, message, &pod, labels)
        } else {
            filter.request(op.row)
        };
        let message = client::of_pod(op.row, message, &image_for);
        Asked {
            call: Call {
                id,
                row: op.row,
                message: client::of_handler(op.row, message, &handler),
                uid: image_for,
                names,
                handler,
                filter,
                timeout: op.timeout_ms.map(Duration::from_millis),
                arrived: Arc::default(),
            },
            begun,
            life: truth.life,
            at: Instant::now(),
            places: truth.tables.places,
            silent: silent.map(|runtime| runtime.at).collect(),
        }
    }

    /// The id, image or handler that a call names; empty for a list of everything.
    fn names(&self, op: &Op) -> String {
        let which = op.which as usize;
        match &op.row.goes {
            Goes::Handler(_) => self.a_handler(op.on, which),
            Goes::Owner(kind, ..) => self.an_id(*kind, op.on, which),
            Goes::OwnerWithImage(_) => self.an_id(Kind::Pod, op.on, which),
            Goes::All(..) | Goes::Image(_, ImageRule::List(_)) | Goes::Default => String::new(),
            Goes::Image(..) => format!("image-{}", which % IMAGES as usize),
        }
    }

    /// The name of a handler of the current table, or an empty name. [`On::Gone`] means a handler of any table so far.
    fn a_handler(&self, on: On, which: usize) -> String {
        let truth = self.truth();
        let eras = &truth.tables.eras;
        let table = match on {
            On::Nothing => return "nosuch".to_owned(),
            On::Gone => &eras[which % eras.len()].table,
            _ => truth.tables.now(),
        };
        let named = table.handlers.get(which % (table.handlers.len() + 1));
        named.map_or(String::new(), |handler| handler.name.clone())
    }

    fn filter(&self, op: &Op) -> Filter {
        let (which, narrow) = (op.which as usize, op.narrow);
        let mut filter = Filter::default();
        let Some(takes) = Takes::of(op.row) else {
            return filter;
        };
        if narrow.by_id() {
            filter.id = self.an_id(takes.kind(), op.on, which);
        }
        if narrow.by_pod() && takes.kind() == Kind::Container {
            filter.pod = self.an_id(Kind::Pod, op.on, which);
        }
        if narrow.by_state() && takes.has_states() {
            let states = if takes == Takes::Pods { 2 } else { 3 };
            filter.state = Some((op.which % states).cast_signed());
        }
        if narrow.by_label() {
            filter.wants_app(APPS[which % APPS.len()]);
        }
        if narrow == Narrow::Uid {
            filter.wants_uid(&self.a_uid(op.on, which));
        }
        filter
    }

    fn a_uid(&self, on: On, which: usize) -> String {
        let id = self.an_id(
            Kind::Pod,
            if on == On::Short { On::Existing } else { on },
            which,
        );
        let truth = self.truth();
        truth
            .thing(Kind::Pod, &id)
            .map_or(id, |pod| pod.uid.clone())
    }

    fn an_id(&self, kind: Kind, on: On, which: usize) -> String {
        let truth = self.truth();
        let gone = on == On::Gone;
        let things = truth.things.iter();
        let ids: Vec<_> = things
            .filter(|thing| thing.kind == kind && thing.gone.is_some() == gone)
            .map(|thing| thing.id.as_str())
            .collect();
        match ids.get(which.checked_rem(ids.len()).unwrap_or(0)) {
            Some(id) if on == On::Short => id[..8].to_owned(),
            Some(id) if on != On::Nothing => (*id).to_owned(),
            _ => "nothing".to_owned(),
        }
    }
}

/// Whether the kubelet sends image calls of this kind for a pod.
fn is_for_pods(rule: &ImageRule) -> bool {
    matches!(rule, ImageRule::Find(_) | ImageRule::Pull(_))
}
