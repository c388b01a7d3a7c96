//! A model of criswitch's owners of pods and containers: a plain list of rows. Each query searches the whole list.

use std::collections::{BTreeSet, HashSet};

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use criswitch::ownership::{Claim, Mark, Named, Owners, PodNames};
use criswitch_config::BackendId;
use criswitch_cri::codec::cri;
use criswitch_cri::rpc::{Kind, SEEN_ANNOTATION};
use prost::Message;

use super::messages;

/// The ids of the backends in the table of the model.
pub const ALL: [BackendId; 4] = [
    BackendId::new(0),
    BackendId::new(1),
    BackendId::new(2),
    BackendId::new(3),
];

/// criswitch's owners, and the rows of the model, which must give the same results.
#[derive(Default)]
pub struct Model {
    pub owners: Owners,
    rows: Vec<Row>,
    /// Each removed id, with the moment of its removal and its owner.
    removed: Vec<(String, u64, Option<BackendId>)>,
    moments: u64,
    marks: Vec<(Mark, u64)>,
    wholes: Vec<Whole>,
}

/// A full list of pods or containers, with the moment when criswitch learned it.
struct Whole {
    kind: Kind,
    backend: BackendId,
    learned: u64,
}

/// A pod or container of the model.
struct Row {
    kind: Kind,
    id: String,
    backend: BackendId,
    created: bool,
    /// Another backend that lists the id, and the moment of that backend's last list with the id.
    next: Option<(BackendId, u64)>,
    first: u64,
    learned: u64,
    names: PodNames,
    /// The moment when the item was created through criswitch. 0 if the item is known from lists only.
    made: u64,
    pod: String,
}

impl Model {
    /// A model after a few random steps.
    pub fn grown(u: &mut Unstructured<'_>) -> Result<Model> {
        let mut model = Model::default();
        for _ in 0..u.int_in_range(0..=8)? {
            model.step(u)?;
        }
        Ok(model)
    }

    pub fn step(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let backend = ALL[u.int_in_range(0..=ALL.len() - 1)?];
        match u.int_in_range(0..=7)? {
            0 => self.own_pod(u, backend)?,
            1 => self.own_container(u, backend)?,
            2 => self.forget(u)?,
            3 => self.marks.push((self.owners.mark(), self.moments)),
            4 => self.forget_missing(u, backend)?,
            5 => self.list_containers(u, backend)?,
            _ => self.list_pods(u, backend)?,
        }
        Ok(())
    }

    fn own_pod(&mut self, u: &mut Unstructured<'_>, backend: BackendId) -> Result<()> {
        let id = messages::text(u)?;
        let names = PodNames {
            uid: messages::text(u)?,
            seen: messages::text(u)?,
            ..PodNames::default()
        };
        let (mark, asked) = self.asked(u)?;
        let claim = self.owners.own_pod(&id, backend, names.clone(), mark).claim;
        let wanted = self.claim(Kind::Pod, &id, backend, asked);
        assert_eq!(claim, wanted);
        if claim.is_none() && !self.was_removed(&id, asked) {
            self.create(Kind::Pod, id, backend, names, String::new());
        }
        Ok(())
    }

    fn own_container(&mut self, u: &mut Unstructured<'_>, backend: BackendId) -> Result<()> {
        let (id, pod) = (messages::text(u)?, messages::text(u)?);
        let (mark, asked) = self.asked(u)?;
        let owned = self.owners.own_container(&id, backend, (&pod, None), mark);
        let claim = owned.claim;
        let wanted = self.claim(Kind::Container, &id, backend, asked);
        assert_eq!(claim, wanted);
        let was_removed = self.was_removed(&id, asked) || self.was_removed(&pod, asked);
        if claim.is_none() && !was_removed {
            self.create(Kind::Container, id, backend, PodNames::default(), pod);
        }
        Ok(())
    }

    /// The claim that rejects a create: another backend created the id, or listed it before the call.
    fn claim(&self, kind: Kind, id: &str, backend: BackendId, asked: u64) -> Option<Claim> {
        // An item that criswitch learned no later than the first full list of the item's backend may be of any age, so
        // it counts as old.
        let is_old = |row: &Row| {
            let first = self.wholes_of(kind, row.backend).next();
            first.is_none_or(|first| row.first <= first.learned)
        };
        let was_there = |row: &Row| row.created || row.first <= asked || is_old(row);
        let is_anothers = |row: &&Row| row.id == id && was_there(row) && row.backend != backend;
        let row = self.of(kind).find(is_anothers)?;
        Some(Claim {
            id: id.to_owned(),
            owner: row.backend,
        })
    }

    fn create(&mut self, kind: Kind, id: String, backend: BackendId, names: PodNames, pod: String) {
        self.moments += 1;
        self.rows.retain(|row| (row.kind, &row.id) != (kind, &id));
        self.rows.push(Row {
            kind,
            id,
            backend,
            created: true,
            next: None,
            first: self.moments,
            learned: self.moments,
            names: PodNames {
                ready: true,
                ..names
            },
            made: self.moments,
            pod,
        });
    }

    fn forget(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let (kind, id) = (kind(u)?, messages::text(u)?);
        self.owners.forget(kind, &id);
        self.moments += 1;
        let (gone, kept) = std::mem::take(&mut self.rows).into_iter().partition(|row| {
            let of_it = kind == Kind::Pod && row.kind == Kind::Container && row.pod == id;
            (row.kind, &row.id) == (kind, &id) || of_it
        });
        self.rows = kept;
        let gone: Vec<Row> = gone;
        let its = gone.iter().find(|row| (row.kind, &row.id) == (kind, &id));
        let owner = its.map(|row| row.backend);
        let moment = self.moments;
        let gone = gone
            .into_iter()
            .map(|row| (row.id, moment, Some(row.backend)));
        self.removed.push((id, moment, owner));
        self.removed.extend(gone);
        Ok(())
    }

    fn forget_missing(&mut self, u: &mut Unstructured<'_>, backend: BackendId) -> Result<()> {
        let kind = kind(u)?;
        let (mark, asked) = self.asked(u)?;
        self.owners.forget_missing(kind, backend, mark);
        self.moments += 1;
        self.wholes.push(Whole {
            kind,
            backend,
            learned: self.moments,
        });
        let pods = self.lack(backend, asked, |row| row.kind == kind);
        if kind == Kind::Pod {
            self.lack(backend, asked, |row| {
                row.kind == Kind::Container && pods.contains(&row.pod)
            });
        }
        Ok(())
    }

    /// The full lists of a backend, oldest first.
    fn wholes_of(&self, kind: Kind, backend: BackendId) -> impl Iterator<Item = &Whole> {
        let wholes = self.wholes.iter();
        wholes.filter(move |whole| (whole.kind, whole.backend) == (kind, backend))
    }

    /// Removes the rows that match `these` and that the backend has not listed since `asked`. Returns the ids of the
    /// removed rows.
    fn lack(
        &mut self,
        backend: BackendId,
        asked: u64,
        these: impl Fn(&Row) -> bool,
    ) -> Vec<String> {
        for row in self.rows.iter_mut().filter(|row| these(row)) {
            row.forget_missing(backend, asked);
        }
        let gone = |row: &&mut Row| these(row) && row.backend == backend && row.learned <= asked;
        let gone = self.rows.extract_if(.., |row| gone(&row));
        gone.map(|row| row.id).collect()
    }

    /// The moment when a list was asked for: a marked moment, or now.
    fn asked(&self, u: &mut Unstructured<'_>) -> Result<(Mark, u64)> {
        match self.marks.as_slice() {
            [] => Ok((self.owners.mark(), self.moments)),
            marks => Ok(*u.choose(marks)?),
        }
    }

    fn list_pods(&mut self, u: &mut Unstructured<'_>, backend: BackendId) -> Result<()> {
        let mut items = Vec::new();
        for _ in 0..u.int_in_range(1..=3)? {
            items.push(listed_pod(u)?);
        }
        let (mark, asked) = self.asked(u)?;
        let list = cri::ListPodSandboxResponse {
            items: items.clone(),
        };
        let wanted = items.iter().map(|pod| pod.id.clone());
        let seen = items.iter().map(|pod| {
            let seen = pod.annotations.get(SEEN_ANNOTATION);
            let names = PodNames {
                uid: pod.metadata.clone().unwrap_or_default().uid,
                seen: seen.cloned().unwrap_or_default(),
                handler: pod.runtime_handler.clone(),
                ready: pod.state == cri::PodSandboxState::SandboxReady as i32,
                ..PodNames::default()
            };
            (names, String::new())
        });
        let seen: Vec<_> = wanted.zip(seen).collect();
        self.list(
            u,
            Kind::Pod,
            backend,
            &list.encode_to_vec(),
            (mark, asked),
            seen,
        )
    }

    fn list_containers(&mut self, u: &mut Unstructured<'_>, backend: BackendId) -> Result<()> {
        let mut containers = Vec::new();
        for _ in 0..u.int_in_range(1..=3)? {
            containers.push(cri::Container {
                id: messages::text(u)?,
                pod_sandbox_id: messages::text(u)?,
                ..Default::default()
            });
        }
        let asked = self.asked(u)?;
        let list = cri::ListContainersResponse {
            containers: containers.clone(),
        };
        let seen: Vec<_> = containers
            .into_iter()
            .map(|container| {
                let pod = container.pod_sandbox_id;
                (container.id, (PodNames::default(), pod))
            })
            .collect();
        self.list(
            u,
            Kind::Container,
            backend,
            &list.encode_to_vec(),
            asked,
            seen,
        )
    }

    /// Learns a list, and checks that the client gets only the items that the backend owns. criswitch must reject a
    /// list that ends with an incomplete item.
    fn list(
        &mut self,
        u: &mut Unstructured<'_>,
        kind: Kind,
        backend: BackendId,
        list: &[u8],
        (mark, asked): (Mark, u64),
        seen: Vec<(String, (PodNames, String))>,
    ) -> Result<()> {
        self.moments += 1;
        if u.ratio(1, 8)? {
            let broken = [list, &[1 << 3 | 2]].concat();
            let learned = self.owners.learn(kind, backend, &broken, mark);
            assert!(learned.is_err());
            return Ok(());
        }
        let learned = self.owners.learn(kind, backend, list, mark).unwrap();
        for (id, more) in &seen {
            self.see(kind, id, backend, asked, more.clone());
        }
        let mut before = HashSet::new();
        let own: Vec<_> = seen
            .iter()
            .filter(|(id, (_, pod))| {
                let is_known = self.of(kind).any(|row| row.id == *id);
                let is_shown = self.is_shown(kind, id, pod, (backend, asked));
                is_shown && (!is_known || before.insert(id))
            })
            .map(|(id, _)| id.as_str())
            .collect();
        let list = Bytes::copy_from_slice(list);
        let of_backend = self
            .owners
            .without_foreign_items(kind, backend, &list, mark)
            .unwrap();
        let shown = of_backend.unwrap_or(list);
        let items = criswitch_cri::codec::protobuf::all_bytes(&shown, &[1])
            .unwrap()
            .into_iter();
        let shown: Vec<_> = items
            .map(|item| criswitch_cri::codec::protobuf::string(item, &[1]).unwrap())
            .collect();
        assert_eq!(shown, own);
        assert_eq!(learned.dropped, seen.len() - own.len());
        Ok(())
    }

    /// Learns an item of a list.
    fn see(
        &mut self,
        kind: Kind,
        id: &str,
        backend: BackendId,
        asked: u64,
        (names, pod): (PodNames, String),
    ) {
        let learned = self.moments;
        let removed = self.was_removed(id, asked);
        let owner_of_pod = self.pod_of(kind, &pod).map(|row| row.backend);
        let is_in_others_pod = owner_of_pod.is_some_and(|owner| owner != backend);
        let mut rows = self.rows.iter_mut();
        match rows.find(|row| (row.kind, row.id.as_str()) == (kind, id)) {
            Some(row) if row.backend == backend && is_in_others_pod => {}
            Some(row) if row.backend == backend => {
                let is_new = std::mem::replace(&mut row.learned, learned) != learned;
                if is_new {
                    row.names.ready = names.ready;
                    if row.made > 0 {
                        row.names.handler = names.handler;
                    }
                }
            }
            Some(row) => row.next = Some((backend, learned)),
            None if is_in_others_pod || removed => {}
            None => self.rows.push(Row {
                kind,
                id: id.to_owned(),
                backend,
                created: false,
                next: None,
                first: learned,
                learned,
                names,
                made: 0,
                pod,
            }),
        }
    }

    /// The pod of a container.
    fn pod_of(&self, kind: Kind, pod: &str) -> Option<&Row> {
        let mut pods = self.of(Kind::Pod);
        pods.find(|row| kind == Kind::Container && row.id == pod)
    }

    /// Whether the client sees an item in the list of `backend` that criswitch asked for at `asked`. The client does
    /// not see the items of other backends.
    fn is_shown(
        &self,
        kind: Kind,
        id: &str,
        pod: &str,
        (backend, asked): (BackendId, u64),
    ) -> bool {
        let is_anothers = |row: &Row| row.backend != backend;
        let row = self.of(kind).find(|row| row.id == id);
        let is_removed = || {
            let owner = self.removed_at(id, asked);
            row.is_none() && owner.is_some_and(|owner| owner != backend)
        };
        !self.pod_of(kind, pod).is_some_and(is_anothers)
            && !row.is_some_and(is_anothers)
            && !is_removed()
    }

    /// The owner of an id that was removed since `asked`. If the id was removed several times, the first removal
    /// counts.
    fn removed_at(&self, id: &str, asked: u64) -> Option<BackendId> {
        let mut removed = self.removed.iter();
        removed.find(|(gone, at, _)| gone == id && *at > asked)?.2
    }

    fn was_removed(&self, id: &str, asked: u64) -> bool {
        let mut removed = self.removed.iter();
        removed.any(|(gone, at, _)| gone == id && *at > asked)
    }

    fn of(&self, kind: Kind) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.kind == kind)
    }

    pub fn find(&self, kind: Kind, id: &str) -> Option<BackendId> {
        let mut rows = self.of(kind).filter(|row| row.id == id);
        rows.next().map(|row| row.backend)
    }

    /// The pods or containers with an id prefix, sorted by id.
    pub fn with_prefix(&self, kind: Kind, prefix: &str) -> Vec<(&str, BackendId)> {
        let rows = self.of(kind).filter(|row| row.id.starts_with(prefix));
        let mut found: Vec<_> = rows.map(|row| (row.id.as_str(), row.backend)).collect();
        found.sort_by_key(|(id, _)| *id);
        found
    }

    /// The backends with a pod of this uid, in the order of the table.
    pub fn with_uid(&self, uid: &str) -> Vec<BackendId> {
        let has = |backend: &BackendId| {
            self.of(Kind::Pod)
                .any(|row| row.backend == *backend && row.names.uid == uid)
        };
        ALL.into_iter().filter(has).collect()
    }

    /// The pod whose names match `has_name`. `routes` says whether the table routes a handler to a backend.
    pub fn named(
        &self,
        has_name: impl Fn(&PodNames) -> bool,
        routes: impl Fn(&str, BackendId) -> bool,
    ) -> Named {
        let has_it = |row: &&Row| has_name(&row.names);
        let mut rows: Vec<&Row> = self.of(Kind::Pod).filter(has_it).collect();
        let created = rows.iter().filter(|row| row.created);
        let last = created.map(|row| row.made).max();
        if last.is_some() {
            rows.retain(|row| row.created && Some(row.made) == last);
        }
        if rows.iter().any(|row| row.names.ready) {
            rows.retain(|row| row.names.ready);
        }
        let fits = |row: &Row| {
            let handler = &row.names.handler;
            handler.is_empty() || routes(handler, row.backend)
        };
        if rows.iter().any(|row| fits(row)) {
            rows.retain(|row| fits(row));
        }
        let all: BTreeSet<_> = rows.iter().map(|row| row.backend).collect();
        let all: Vec<_> = all.into_iter().collect();
        match all.as_slice() {
            [] => Named::NoPod,
            [backend] => Named::One {
                backend: *backend,
                id: rows.iter().map(|row| row.id.clone()).min().unwrap(),
                created: last.is_some(),
            },
            _ => Named::Several(all),
        }
    }

    /// The backends with ready pods, in ascending order.
    pub fn ready(&self) -> Vec<BackendId> {
        let rows = self.of(Kind::Pod).filter(|row| row.names.ready);
        let owners: BTreeSet<_> = rows.map(|row| row.backend).collect();
        owners.into_iter().collect()
    }

    /// The ids that the backend owns, sorted.
    pub fn listed_by(&self, kind: Kind, backend: BackendId) -> Vec<&str> {
        let rows = self.of(kind).filter(|row| row.backend == backend);
        let mut ids: Vec<_> = rows.map(|row| row.id.as_str()).collect();
        ids.sort_unstable();
        ids
    }

    /// The containers of a pod, sorted.
    pub fn containers_of(&self, pod: &str) -> Vec<&str> {
        let rows = self.of(Kind::Container).filter(|row| row.pod == pod);
        let mut ids: Vec<_> = rows.map(|row| row.id.as_str()).collect();
        ids.sort_unstable();
        ids
    }

    pub fn count(&self, kind: Kind, backend: BackendId) -> usize {
        self.of(kind).filter(|row| row.backend == backend).count()
    }
}

impl Row {
    /// Updates the row after a full list of `backend` that criswitch asked for at `asked`. If the backend has not
    /// listed the row since `asked`, the list lacks the row.
    fn forget_missing(&mut self, backend: BackendId, asked: u64) {
        let Some((next, seen)) = self.next else {
            return;
        };
        if next == backend && seen <= asked {
            self.next = None;
        } else if self.backend == backend && self.learned <= asked {
            (self.backend, self.next) = (next, None);
            (self.first, self.learned) = (seen, seen);
            self.created = false;
        }
    }
}

pub fn kind(u: &mut Unstructured<'_>) -> Result<Kind> {
    u.choose(&[Kind::Pod, Kind::Container]).copied()
}

fn listed_pod(u: &mut Unstructured<'_>) -> Result<cri::PodSandbox> {
    let metadata = cri::PodSandboxMetadata {
        uid: messages::text(u)?,
        ..Default::default()
    };
    Ok(cri::PodSandbox {
        id: messages::text(u)?,
        metadata: Some(metadata),
        annotations: [(SEEN_ANNOTATION.to_owned(), messages::text(u)?)].into(),
        state: u.int_in_range(0..=1)?,
        runtime_handler: (*u.choose(&["", "runc", "kata"])?).to_owned(),
        ..Default::default()
    })
}
