//! The owners again, as plain rows that are searched from end to end.

use arbitrary::{Result, Unstructured};
use criswitch::cri;
use criswitch::owners::{BackendId, Claim, Mark, Owner, Owners, PodNames};
use criswitch::rpc::{Kind, SEEN_ANNOTATION};
use prost::Message;

use super::messages;

/// How many backends the model's table has.
pub const BACKENDS: usize = 4;
/// Their ids.
pub const ALL: [BackendId; BACKENDS] = [0, 1, 2, 3];

/// The owners, and what they should know.
#[derive(Default)]
pub struct Model {
    pub owners: Owners,
    rows: Vec<Row>,
    /// Ids that were removed, and when.
    removed: Vec<(String, u64)>,
    moments: u64,
    marks: Vec<(Mark, u64)>,
}

/// A pod or container.
struct Row {
    kind: Kind,
    id: String,
    backend: BackendId,
    created: bool,
    rival: Option<(BackendId, u64)>,
    learned: u64,
    names: PodNames,
    /// A container's.
    pod: String,
}

impl Model {
    /// What a few random things have taught.
    pub fn grown(u: &mut Unstructured<'_>) -> Result<Model> {
        let mut model = Model::default();
        for _ in 0..u.int_in_range(0..=8)? {
            model.step(u)?;
        }
        Ok(model)
    }

    /// Something happens.
    pub fn step(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let backend = u.int_in_range(0..=BACKENDS - 1)?;
        match u.int_in_range(0..=7)? {
            0 => self.own_pod(u, backend)?,
            1 => self.own_container(u, backend)?,
            2 => self.forget(u)?,
            3 => self.marks.push((self.owners.mark(), self.moments)),
            4 => self.settle(u, backend)?,
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
            created_at: u.int_in_range(0..=3)?,
        };
        let (mark, asked) = self.asked(u)?;
        let claim = self.owners.own_pod(&id, backend, names.clone(), mark);
        let wanted = self.claim(Kind::Pod, &id, backend);
        assert_eq!(claim, wanted);
        if claim.is_none() && !self.was_removed(&id, asked) {
            self.create(Kind::Pod, id, backend, names, String::new());
        }
        Ok(())
    }

    fn own_container(&mut self, u: &mut Unstructured<'_>, backend: BackendId) -> Result<()> {
        let (id, pod) = (messages::text(u)?, messages::text(u)?);
        let (mark, asked) = self.asked(u)?;
        let claim = self.owners.own_container(&id, backend, &pod, mark);
        let wanted = self.claim(Kind::Container, &id, backend);
        assert_eq!(claim, wanted);
        let was_removed = self.was_removed(&id, asked) || self.was_removed(&pod, asked);
        if claim.is_none() && !was_removed {
            self.create(Kind::Container, id, backend, PodNames::default(), pod);
        }
        Ok(())
    }

    /// Nobody takes what another created.
    fn claim(&self, kind: Kind, id: &str, backend: BackendId) -> Option<Claim> {
        let is_anothers = |row: &&Row| row.id == id && row.created && row.backend != backend;
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
            rival: None,
            learned: self.moments,
            names,
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
        let gone = gone.into_iter().map(|row| row.id).chain([id]);
        self.removed.extend(gone.map(|id| (id, self.moments)));
        Ok(())
    }

    fn settle(&mut self, u: &mut Unstructured<'_>, backend: BackendId) -> Result<()> {
        let kind = kind(u)?;
        let (mark, asked) = self.asked(u)?;
        self.owners.settle(kind, backend, mark);
        let pods = self.lack(backend, asked, |row| row.kind == kind);
        if kind == Kind::Pod {
            self.lack(backend, asked, |row| {
                row.kind == Kind::Container && pods.contains(&row.pod)
            });
        }
        Ok(())
    }

    /// A backend has nothing of these any more that it has not shown since; the ids of those that are gone.
    fn lack(
        &mut self,
        backend: BackendId,
        asked: u64,
        these: impl Fn(&Row) -> bool,
    ) -> Vec<String> {
        for row in self.rows.iter_mut().filter(|row| these(row)) {
            row.settle(backend, asked);
        }
        let gone = |row: &&mut Row| these(row) && row.backend == backend && row.learned <= asked;
        let gone = self.rows.extract_if(.., |row| gone(&row));
        gone.map(|row| row.id).collect()
    }

    /// When a list was asked for: at a moment that was marked, else now.
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
        if !self.learn(u, Kind::Pod, backend, list.encode_to_vec(), mark)? {
            return Ok(());
        }
        for pod in &items {
            let seen = pod.annotations.get(SEEN_ANNOTATION);
            let names = PodNames {
                uid: pod.metadata.clone().unwrap_or_default().uid,
                seen: seen.cloned().unwrap_or_default(),
                created_at: pod.created_at.max(0).unsigned_abs(),
            };
            self.see(Kind::Pod, &pod.id, backend, asked, (names, String::new()));
        }
        Ok(())
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
        let (mark, asked) = self.asked(u)?;
        let list = cri::ListContainersResponse {
            containers: containers.clone(),
        };
        if !self.learn(u, Kind::Container, backend, list.encode_to_vec(), mark)? {
            return Ok(());
        }
        for container in containers {
            let more = (PodNames::default(), container.pod_sandbox_id);
            self.see(Kind::Container, &container.id, backend, asked, more);
        }
        Ok(())
    }

    /// A list that breaks off behind its last item is said to be broken, and nothing of it is learned.
    fn learn(
        &mut self,
        u: &mut Unstructured<'_>,
        kind: Kind,
        backend: BackendId,
        mut list: Vec<u8>,
        asked: Mark,
    ) -> Result<bool> {
        self.moments += 1;
        let cut_off = u.ratio(1, 8)?;
        if cut_off {
            list.push(1 << 3 | 2);
        }
        let learned = self.owners.learn(kind, backend, &list, asked);
        assert_eq!(learned.is_err(), cut_off);
        Ok(!cut_off)
    }

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
        let mut rows = self.rows.iter_mut();
        match rows.find(|row| (row.kind, row.id.as_str()) == (kind, id)) {
            Some(row) if row.backend == backend => row.learned = learned,
            Some(row) if row.created => {}
            Some(row) => row.rival = Some((backend, learned)),
            None if removed => {}
            None => self.rows.push(Row {
                kind,
                id: id.to_owned(),
                backend,
                created: false,
                rival: None,
                learned,
                names,
                pod,
            }),
        }
    }

    fn was_removed(&self, id: &str, asked: u64) -> bool {
        let mut removed = self.removed.iter();
        removed.any(|(gone, at)| gone == id && *at > asked)
    }

    fn of(&self, kind: Kind) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.kind == kind)
    }

    pub fn find(&self, kind: Kind, id: &str) -> Option<Owner> {
        let mut rows = self.of(kind).filter(|row| row.id == id);
        rows.next().map(Row::owner)
    }

    /// Sorted by id.
    pub fn with_prefix(&self, kind: Kind, prefix: &str) -> Vec<(&str, Owner)> {
        let rows = self.of(kind).filter(|row| row.id.starts_with(prefix));
        let mut found: Vec<_> = rows.map(|row| (row.id.as_str(), row.owner())).collect();
        found.sort_by_key(|(id, _)| *id);
        found
    }

    /// In the table's order.
    pub fn with_uid(&self, uid: &str) -> Vec<BackendId> {
        let has = |backend: &BackendId| {
            self.of(Kind::Pod)
                .any(|row| row.backend == *backend && row.names.uid == uid)
        };
        (0..BACKENDS).filter(has).collect()
    }

    /// The backends of the newest pods, several if they are of one age.
    pub fn newest(&self, names: impl Fn(&PodNames) -> bool) -> Vec<BackendId> {
        let pods = || self.of(Kind::Pod).filter(|row| names(&row.names));
        let newest = pods().map(|row| row.names.created_at).max();
        pods()
            .filter(|row| Some(row.names.created_at) == newest)
            .map(|row| row.backend)
            .collect()
    }

    /// The ids that the backend owns or disputes, sorted.
    pub fn listed_by(&self, kind: Kind, backend: BackendId) -> Vec<&str> {
        let rows = self.of(kind).filter(|row| {
            let rival = row.rival.map(|(rival, _)| rival);
            row.backend == backend || rival == Some(backend)
        });
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
    fn owner(&self) -> Owner {
        match self.rival {
            None => Owner::One(self.backend),
            Some((rival, _)) => Owner::Disputed(self.backend, rival),
        }
    }

    /// `backend` did not list it at `asked`, unless it was learned from it since.
    fn settle(&mut self, backend: BackendId, asked: u64) {
        let Some((rival, seen)) = self.rival else {
            return;
        };
        if rival == backend && seen <= asked {
            self.rival = None;
        } else if self.backend == backend && self.learned <= asked {
            (self.backend, self.learned, self.rival) = (rival, seen, None);
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
        created_at: u.int_in_range(-1..=3)?,
        ..Default::default()
    })
}
