//! Calls that go to several backends: ask all at once, refuse what is not whole, merge.

use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use futures_util::future::join_all;
use tonic::{Code, Status};

use crate::backend::{Answer, Backend};
use crate::owners::Mark;
use crate::reply::{self, Reply};
use crate::rpc::{Lacking, Merge, Then};
use crate::switch::{Call, Failed, Switch};
use crate::wire::Malformed;
use crate::{merge, status};

/// What came of asking one of several backends.
#[derive(Debug)]
pub(crate) struct Part {
    /// Which one.
    pub backend: Arc<Backend>,
    /// When it was asked, in the order of what was learned.
    pub mark: Mark,
    /// Its answer, or why there is none.
    pub result: Result<Answer, Status>,
}

/// The message of a backend's part.
type Message = (Arc<Backend>, Bytes);

impl Switch {
    /// Sends `call` to all of `backends` and makes one reply of theirs.
    pub(crate) async fn merge(
        self: &Arc<Self>,
        call: Call,
        how: &Merge,
        backends: Vec<Arc<Backend>>,
    ) -> Result<Reply, Failed> {
        match (how, backends.as_slice()) {
            (Merge::Status, _) => self.status(&call).await,
            (Merge::UpdateRuntimeConfig, _) => self.update_runtime_config(&call, &backends).await,
            (Merge::Interleave(_) | Merge::Events, [only]) if !self.renames(only.id) => {
                self.send(&call, only, None).await
            }
            (Merge::Interleave(instead), _) => Ok(self.interleave(&call, backends, Some(instead))),
            (Merge::Events, _) => Ok(self.interleave(&call, backends, None)),
            (_, [only]) => self.send(&call, only, None).await,
            (Merge::RuntimeConfig, _) => self.runtime_config(&call, &backends).await,
            (Merge::Concat(lacking), _) => {
                let messages = self.whole(&call, *lacking, &backends).await?;
                self.one_message(&call, messages, |messages| Ok(messages.to_vec()))
            }
            (Merge::Distinct(keys, lacking), _) => {
                let messages = self.whole(&call, *lacking, &backends).await?;
                self.one_message(&call, messages, |messages| {
                    Ok(vec![merge::distinct(messages, keys)?])
                })
            }
            (Merge::Images, _) => {
                let messages = self.whole(&call, Lacking::LeftOut, &backends).await?;
                self.one_message(&call, messages, |messages| {
                    Ok(vec![merge::images(messages)?])
                })
            }
        }
    }

    /// Sends `call` to `backends` at once and reads every reply.
    pub(crate) async fn gather(&self, call: &Call, backends: &[Arc<Backend>]) -> Vec<Part> {
        let headers = &call.reading_headers();
        let asked = backends.iter().cloned().map(|backend| async move {
            let mark = self.owners().mark();
            let result = backend.ask(call.row, headers, call.body.clone()).await;
            Part {
                backend,
                mark,
                result,
            }
        });
        join_all(asked).await
    }

    /// The message of every backend, learned from; one that fails, fails the call: nothing is left out silently.
    async fn whole(
        &self,
        call: &Call,
        lacking: Lacking,
        backends: &[Arc<Backend>],
    ) -> Result<Vec<Message>, Failed> {
        let mut messages = Vec::with_capacity(backends.len());
        let mut lacks = None;
        for part in self.gather(call, backends).await {
            let answer = part.result?;
            match answer.code() {
                Code::Ok => {
                    let message = self.learn_part(
                        call,
                        &part.backend,
                        part.mark,
                        part.backend.message(&answer)?,
                    )?;
                    messages.push((part.backend, message));
                }
                Code::Unimplemented if self.may_lack(lacking, &part.backend) => {
                    lacks = lacks.or(Some(answer))
                }
                _ => return Err(named(&part.backend, answer)),
            }
        }
        match lacks {
            Some(answer) if messages.is_empty() => Err(Failed::Answer(Box::new(answer))),
            _ => Ok(messages),
        }
    }

    /// Whether a reply may do without a backend that answers `Unimplemented`.
    pub(crate) fn may_lack(&self, lacking: Lacking, backend: &Backend) -> bool {
        match lacking {
            Lacking::Fails => false,
            Lacking::FailsForPods => self.owners().count(backend.id) == (0, 0),
            Lacking::LeftOut => true,
        }
    }

    fn learn_part(
        &self,
        call: &Call,
        backend: &Backend,
        mark: Mark,
        message: Bytes,
    ) -> Result<Bytes, Status> {
        let Then::Learn(kind) = call.row.then else {
            return Ok(message);
        };
        let changed = self.learn_list(kind, backend, &message)?;
        self.settle(call, backend, mark);
        Ok(changed.unwrap_or(message))
    }

    fn one_message(
        &self,
        call: &Call,
        messages: Vec<Message>,
        merge: impl FnOnce(&[Bytes]) -> Result<Vec<Bytes>, Malformed>,
    ) -> Result<Reply, Failed> {
        let sizes: Vec<_> = messages
            .iter()
            .map(|(backend, message)| (backend.name.as_str(), message.len()))
            .collect();
        let bytes: Vec<_> = messages
            .iter()
            .map(|(_, message)| message.clone())
            .collect();
        let merged = merge(&bytes)
            .map_err(|fault| Status::internal(format!("{}: a reply is {fault}", call.row.name)))?;
        if merged.iter().map(Bytes::len).sum::<usize>() > self.max_message {
            return Err(status::reply_too_large(call.row.name, self.max_message, &sizes).into());
        }
        Ok(reply::of_message(merged))
    }

    /// OK when every backend that can be reached has taken it; the others get it when they come back.
    async fn update_runtime_config(
        &self,
        call: &Call,
        backends: &[Arc<Backend>],
    ) -> Result<Reply, Failed> {
        *self
            .runtime_config
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(call.body.clone());
        let mut taken = None;
        let mut unreachable = None;
        for part in self.gather(call, backends).await {
            match part.result {
                Ok(answer) if matches!(answer.code(), Code::Ok) => {
                    taken = taken.or(Some(reply::of_answer(answer)))
                }
                Ok(answer) if answer.code() == Code::Unimplemented => {
                    taken = taken.or_else(|| Some(reply::of_message(Vec::new())));
                }
                Ok(answer) => return Err(named(&part.backend, answer)),
                Err(status) => {
                    tracing::warn!(backend = %part.backend.name, "runtime configuration is kept until it is back");
                    unreachable = unreachable.or(Some(status));
                }
            }
        }
        taken.ok_or_else(|| {
            unreachable
                .unwrap_or_else(|| Status::internal("no backend"))
                .into()
        })
    }

    /// The default backend's reply, or the first one's that has an opinion on the cgroup driver.
    async fn runtime_config(
        &self,
        call: &Call,
        backends: &[Arc<Backend>],
    ) -> Result<Reply, Failed> {
        let mut parts = self.gather(call, backends).await.into_iter();
        let mut reply = None;
        let mut lacks = None;
        let mut driver = None;
        for (at, part) in parts.by_ref().enumerate() {
            let answer = match part.result {
                Ok(answer) => answer,
                Err(status) if at == 0 => return Err(status.into()),
                Err(_) => continue,
            };
            match answer.code() {
                Code::Ok => {
                    let theirs = cgroup_driver(&part.backend, &answer)?;
                    if *driver.get_or_insert(theirs) != theirs {
                        tracing::error!(backend = %part.backend.name, "its cgroup driver is not the default backend's; pods of one of them will be limited wrongly");
                    }
                    reply = reply.or(Some(answer));
                }
                Code::Unimplemented => lacks = lacks.or(Some(answer)),
                _ if at == 0 => return Err(Failed::Answer(Box::new(answer))),
                _ => {}
            }
        }
        reply
            .or(lacks)
            .map(reply::of_answer)
            .ok_or_else(|| Status::internal("no backend").into())
    }
}

/// `RuntimeConfigResponse.linux.cgroup_driver`.
fn cgroup_driver(backend: &Backend, answer: &Answer) -> Result<u64, Status> {
    let message = backend.message(answer)?;
    crate::wire::varint(&message, &[1, 1]).map_err(|fault| backend.malformed(&fault))
}

/// A backend's refusal where several were asked: its own status, with its name behind the text.
pub(crate) fn named(backend: &Backend, mut answer: Answer) -> Failed {
    let text = status::named(answer.text(), &backend.name, &backend.socket);
    answer.set_text(text);
    Failed::Answer(Box::new(answer))
}
