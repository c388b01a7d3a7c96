//! Calls that criswitch makes itself, for the lists and stats of a backend.

use bytes::Bytes;
use criswitch_cri::codec::frames;
use criswitch_cri::rpc::{self, List, Row};
use futures_util::future::join_all;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::backend::answer::Answer;
use crate::backend::state::State;
use crate::backend::wire::Wire;
use crate::backend::{Backend, Contribution};
use crate::call::Failed;
use crate::limits::give_way;
use crate::switch::Switch;
use crate::switch::act::act;
use crate::switch::learn::{CallMoment, Learner, keep_stats};
use crate::switch::usable::{check_first, has_room, readable};
use crate::switch::view::View;

/// The lists that show owners. Pods come first, because a container is learned with its pod.
const LISTS: [(List, &Row); 2] = [
    (List::Pods, &rpc::LIST_PODS),
    (List::Containers, &rpc::LIST_CONTAINERS),
];

/// Asks every backend for its pods and containers and learns them. Waits for each backend at most for its
/// `list_timeout`. Does not wait for a backend that a reload removes meanwhile: such a backend owns nothing.
///
/// # Errors
/// The error of the first backend whose lists failed. The lists of the other backends are still learned.
pub(crate) async fn list_every(switch: &Switch) -> Result<(), Status> {
    let joined = switch.live().joined();
    let listed = joined.iter().map(|backend| async {
        tokio::select! {
            biased;
            listed = OwnCalls::new(switch, backend, None).list_within_timeout() => listed,
            () = backend.connection.closed() => Ok(()),
        }
    });
    join_all(listed).await.into_iter().collect()
}

/// The calls that criswitch makes itself to one backend. `wire` is needed while the backend is not ready.
#[derive(Clone, Copy)]
pub(crate) struct OwnCalls<'a> {
    pub(crate) switch: &'a Switch,
    pub(crate) backend: &'a Backend,
    pub(crate) wire: Option<&'a Wire>,
}

impl<'a> OwnCalls<'a> {
    pub(crate) fn new(
        switch: &'a Switch,
        backend: &'a Backend,
        wire: Option<&'a Wire>,
    ) -> OwnCalls<'a> {
        OwnCalls {
            switch,
            backend,
            wire,
        }
    }

    /// Lists the pods and containers and learns them, if both lists come within `list_timeout`. A backend that is late
    /// counts as silent at once: the session asks it in the background.
    async fn list_within_timeout(self) -> Result<(), Status> {
        let backend = self.backend;
        let latest = Instant::now() + backend.list_timeout();
        for (list, row) in LISTS {
            let contribution = Contribution {
                row,
                is_of_all: true,
            };
            // A backend that is down may be back, so the call waits for the next attempt to connect.
            let is_down = matches!(backend.connection.link().state, State::Down(_));
            if let Some(silent) = backend.silence(contribution).filter(|_| !is_down) {
                return Err(silent);
            }
            let listed = self.list_kind(list, row);
            let Ok(listed) = tokio::time::timeout_at(latest, listed).await else {
                backend.record.note_late(contribution);
                return Err(backend.timed_out(row));
            };
            listed?;
        }
        Ok(())
    }

    /// Lists the pods and containers and learns them.
    ///
    /// # Errors
    /// The status of the first call that failed.
    pub(crate) async fn list(self) -> Result<(), Status> {
        for (list, row) in LISTS {
            self.list_kind(list, row).await?;
        }
        Ok(())
    }

    /// Requests the first lists of a backend that has not joined. Learns nothing until [`FirstLists::join`].
    ///
    /// # Errors
    /// The status of the first call that failed.
    pub(crate) async fn first_lists(self) -> Result<FirstLists, Status> {
        let mut lists = Vec::new();
        for (list, row) in LISTS {
            let listed = self.first_list(list, row).await;
            let noted = listed.as_ref().map(drop);
            note(
                self.backend,
                row,
                &noted.map_err(|why| Failed::from(why.clone())),
            );
            let (asked, message) = listed?;
            lists.push((list, asked, message));
        }
        Ok(FirstLists(lists))
    }

    async fn first_list(
        self,
        list: List,
        row: &'static Row,
    ) -> Result<(CallMoment, Bytes), Status> {
        let (asked, answer) = self.ask(row).await?;
        let message = self.backend.message(&answer)?;
        check_first(list, self.backend, &message)?;
        Ok((asked, message))
    }

    /// Requests a list of pods, containers or images, and caches it. Records whether the answer can be used, except for
    /// a list that is too large for merged lists: such a list proves nothing.
    ///
    /// # Errors
    /// The status of the call.
    pub(crate) async fn list_kind(self, list: List, row: &'static Row) -> Result<(), Status> {
        let listed = self.ask_for_list(list, row).await;
        if !matches!(listed, Ok(false)) {
            let noted = listed.as_ref().map(drop);
            note(
                self.backend,
                row,
                &noted.map_err(|why| Failed::from(why.clone())),
            );
        }
        listed.map(drop)
    }

    /// Returns whether merged lists have room for the list.
    async fn ask_for_list(self, list: List, row: &'static Row) -> Result<bool, Status> {
        let (asked, answer) = self.ask(row).await?;
        let message = self.backend.message(&answer)?;
        give_way(&message).await;
        let has_room = has_room(&View::of(self.switch), list, self.backend, &message);
        let learned = Learner::new(self.switch, self.backend, asked).learn_whole(list, &message);
        act(self.switch, self.backend, learned)?;
        Ok(has_room)
    }

    /// Requests all stats of a kind and caches them. Ignores an error reply of the backend.
    pub(crate) async fn ask_stats(self, row: &'static Row, list: List) -> Result<(), Failed> {
        let (asked, answer) = self.ask(row).await?;
        self.backend
            .record
            .note_answer(row, answer.failure(row).as_deref());
        if answer.code() == Code::Ok {
            let message = self.backend.message(&answer)?;
            give_way(&message).await;
            if let Some(stats) = readable(&self.switch.live(), Some(list), self.backend, &message)?
            {
                keep_stats(list, self.backend, stats, asked);
            }
        }
        Ok(())
    }

    /// Requests the file systems of the images with the call of `row`, and records them.
    ///
    /// # Errors
    /// If the answer is an error or cannot be read.
    pub(crate) async fn ask_for_disks(self, row: &'static Row) -> Result<(), Failed> {
        let (_, answer) = self.ask(row).await?;
        if answer.code() != Code::Ok {
            return Err(Failed::Answer(Box::new(answer)));
        }
        let message = self.backend.message(&answer)?;
        if let Some(disks) = readable(&self.switch.live(), None, self.backend, &message)? {
            self.backend.report_disks(&disks);
        }
        Ok(())
    }

    /// Sends the call of `row` without a filter. Returns the answer and the moment when it was sent.
    async fn ask(self, row: &'static Row) -> Result<(CallMoment, Answer), Status> {
        let asked = CallMoment::now(&self.switch.owners(), self.backend);
        let body = frames::frame(&[]);
        Ok((asked, self.backend.ask_own(self.wire, row, body).await?))
    }
}

/// The first complete lists of pods and containers of a backend that has not joined. They are learned together, at the
/// moment when merged calls begin to include the backend. If they were learned earlier, the backend would own items
/// that are in no merged list, although another backend lists them too.
pub(crate) struct FirstLists(Vec<(List, CallMoment, Bytes)>);

impl FirstLists {
    /// Includes the backend in merged calls, and learns and caches the lists.
    ///
    /// # Errors
    /// If a list cannot be learned.
    pub(crate) fn join(self, switch: &Switch, backend: &Backend) -> Result<(), Status> {
        backend.join();
        for (list, asked, message) in self.0 {
            let learned = Learner::new(switch, backend, asked).learn_whole(list, &message);
            act(switch, backend, learned)?;
        }
        if switch.live().backend(backend.id).is_ok() {
            switch.question.listed(backend.id);
        }
        Ok(())
    }
}

/// Records whether the backend's answer can be used, after criswitch itself has asked for all items.
pub(crate) fn note(backend: &Backend, row: &'static Row, asked: &Result<(), Failed>) {
    let failed = asked.as_ref().err();
    if failed.is_some_and(Failed::is_of_clients) {
        backend.record.doubt(row);
    } else {
        let failed = failed.map(Failed::code_and_text);
        backend.record.note_answer(row, failed.as_deref());
    }
}

/// Turns every error except silence into success, because any other error shows that the backend answers.
///
/// # Errors
/// `Unavailable`, from criswitch or the backend, or the code of a call that the backend broke off.
pub(crate) fn unless_silent(ended: Result<(), Failed>) -> Result<(), Failed> {
    match ended {
        Err(failed) if failed.is_unavailable() => Err(failed),
        _ => Ok(()),
    }
}
