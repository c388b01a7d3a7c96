//! The switch's own questions: a backend's pods and containers, when it connects and when nobody knows an id.

use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::answer::Answer;
use crate::backend::{Backend, Wire};
use crate::call::Failed;
use crate::fanout::is_whole;
use crate::learn::keep_stats;
use crate::rpc::{self, List, Merge, Row, Then};
use crate::switch::Switch;
use crate::wire;

/// The largest `Version` of a backend, in bytes.
const LONGEST_VERSION: usize = 64 << 10;

impl Switch {
    /// Makes a new connection to `backend` ready: its pods and containers listed, its cgroup driver compared, the
    /// runtime's configuration told, its status heard.
    ///
    /// # Errors
    /// The status of the first call that failed.
    pub(crate) async fn greet(&self, backend: &Arc<Backend>, wire: &Wire) -> Result<(), Status> {
        backend.learn(|known| known.greeted = Some(Instant::now()));
        Switch::version(backend, wire).await?;
        self.list(backend, Some(wire)).await?;
        if self.has(backend) {
            self.question.listed(backend.id);
        }
        let aside = async {
            self.compare_cgroup_driver(backend, wire).await?;
            match self.replay_runtime_config(backend, wire).await {
                Err(Failed::Status(status)) => Err(status),
                // A refusal keeps no pod waiting.
                Err(Failed::Answer(_)) => {
                    backend.owe();
                    Ok(())
                }
                Ok(()) => Ok(()),
            }
        };
        // Its pods do not wait for this: what it does not answer now, it is told when it is ready.
        let (told, _) = tokio::join!(
            tokio::time::timeout(backend.list_timeout(), aside),
            tokio::time::timeout(backend.list_timeout(), self.first_status(backend, wire)),
        );
        told.unwrap_or_else(|_| {
            backend.owe();
            Ok(())
        })?;
        // Until now its lists of before stood in for it.
        backend.caught_up();
        backend.was_listed();
        Ok(())
    }

    /// Asks a backend for its version, which any that works answers at once.
    ///
    /// # Errors
    /// Its status.
    pub(crate) async fn version(backend: &Backend, wire: &Wire) -> Result<(), Status> {
        let answer = backend
            .ask_own(Some(wire), &rpc::VERSION, wire::frame(&[]))
            .await?;
        let version = backend.message(&answer)?;
        if version.len() > LONGEST_VERSION {
            let length = version.len();
            let cause = format!("its Version has {length} bytes, more than {LONGEST_VERSION}");
            return Err(backend.bad_reply(&cause));
        }
        backend.learn_saved(|known| {
            let last = std::mem::replace(&mut known.version, version);
            known.version != last
        });
        Ok(())
    }

    /// Asks a backend for all of a list or stream, or for its status, and keeps what may stand in for the backend.
    ///
    /// # Errors
    /// Its status; of a stream or stats only if it does not say anything, of `Status` none: clients ask for that
    /// anew.
    pub(crate) async fn answers(
        &self,
        backend: &Arc<Backend>,
        wire: &Wire,
        row: &'static Row,
    ) -> Result<(), Failed> {
        let said = |ended: Result<(), Failed>| match ended {
            Err(failed) if failed.code() == Code::Unavailable => Err(failed),
            _ => Ok(()),
        };
        let row = match row.merge() {
            Some(Merge::Interleave(list)) => match self.drain(backend, row).await {
                Err(failed) if failed.code() == Code::Unimplemented => list,
                ended => return said(ended),
            },
            _ => row,
        };
        match (&row.then, row.merge()) {
            (Then::Learn(List::Images), _) => self.list_images(backend, wire).await?,
            (Then::Learn(list), _) => self.list_kind(*list, row, backend, Some(wire)).await?,
            (_, Some(Merge::Status)) => self.first_status(backend, wire).await.unwrap_or_default(),
            (Then::Keep(list), _) => said(self.ask_stats(backend, wire, row, *list).await)?,
            _ => {
                let asked = backend.ask_own(Some(wire), row, wire::frame(&[])).await;
                said(asked.map(drop).map_err(Failed::from))?;
            }
        }
        Ok(())
    }

    /// Asks a backend for all stats of a kind and keeps them, if it has any and they can be read.
    async fn ask_stats(
        &self,
        backend: &Backend,
        wire: &Wire,
        row: &'static Row,
        list: List,
    ) -> Result<(), Failed> {
        let asked = self.asked();
        let answer = backend.ask_own(Some(wire), row, wire::frame(&[])).await?;
        if answer.code() == Code::Ok {
            let message = backend.message(&answer)?;
            is_whole(backend, &message)?;
            keep_stats(list, backend, &message, asked);
        }
        Ok(())
    }

    /// Asks a backend for its status, so that it has a last word when a client's question is answered
    /// late, and so that handlers of its are known before pods may come.
    async fn first_status(&self, backend: &Arc<Backend>, wire: &Wire) -> Result<(), Status> {
        let answer = backend
            .ask_own(Some(wire), &rpc::STATUS, wire::frame(&[]))
            .await?;
        self.keep_status(backend, backend.message(&answer)?)?;
        Ok(())
    }

    /// Lists a backend's images. A backend without an image service has none, also while it is away.
    ///
    /// # Errors
    /// Its status.
    pub(crate) async fn list_images(&self, backend: &Backend, wire: &Wire) -> Result<(), Status> {
        let asked = self.asked();
        let answer = backend
            .ask_own(Some(wire), &rpc::LIST_IMAGES, wire::frame(&[]))
            .await?;
        let images = match answer.code() {
            Code::Unimplemented => Bytes::new(),
            _ => backend.message(&answer)?,
        };
        self.keep_whole(List::Images, backend, &images, asked);
        Ok(())
    }

    /// The kubelet takes the default backend's cgroup driver for the node's.
    async fn compare_cgroup_driver(&self, backend: &Backend, wire: &Wire) -> Result<(), Status> {
        let driver = told_cgroup_driver(backend, wire).await;
        backend.learn(|known| known.cgroup_driver = driver);
        let live = self.live();
        let default = live.backend(live.speaker())?;
        for other in &live.backends {
            if let (Some(ours), Some(theirs)) =
                (default.known().cgroup_driver, other.known().cgroup_driver)
                && ours != theirs
                && (other.id == backend.id || default.id == backend.id)
            {
                tracing::error!(backend = %other.name(), "{}", WRONG_CGROUP_DRIVER);
            }
        }
        Ok(())
    }

    /// Tells a backend that was away what the kubelet said meanwhile.
    ///
    /// # Errors
    /// `Unavailable` if it has not heard it.
    pub(crate) async fn replay_runtime_config(
        &self,
        backend: &Backend,
        wire: &Wire,
    ) -> Result<(), Failed> {
        let config = self.runtime_config.lock();
        let config = config.unwrap_or_else(PoisonError::into_inner).clone();
        let Some(config) = config else { return Ok(()) };
        let row = &rpc::UPDATE_RUNTIME_CONFIG;
        let answer = backend.ask_own(Some(wire), row, config).await?;
        match answer.code() {
            Code::Ok | Code::Unimplemented => Ok(()),
            _ => Err(Failed::Answer(Box::new(answer))),
        }
    }

    /// Asks every backend for its pods and containers and learns them. One that a reload takes away meanwhile owns
    /// nothing, so that nobody waits for it.
    ///
    /// # Errors
    /// The first backend's that did not answer; the others are learned all the same.
    pub(crate) async fn list_every(&self) -> Result<(), Status> {
        let joined = self.live().joined();
        let listed = joined.iter().map(|backend| async {
            tokio::select! {
                biased;
                listed = backend.patiently(self.list(backend, None)) => listed,
                () = backend.closed() => Ok(()),
            }
        });
        join_all(listed).await.into_iter().collect()
    }

    /// Lists a backend's pods and containers, over `wire` while it is not ready.
    ///
    /// # Errors
    /// The status of the first call that failed.
    pub(crate) async fn list(&self, backend: &Backend, wire: Option<&Wire>) -> Result<(), Status> {
        self.list_kind(List::Pods, &rpc::LIST_PODS, backend, wire)
            .await?;
        self.list_kind(List::Containers, &rpc::LIST_CONTAINERS, backend, wire)
            .await
    }

    /// Lists a backend's pods or containers, and caches the list.
    ///
    /// # Errors
    /// The status of the call.
    pub(crate) async fn list_kind(
        &self,
        list: List,
        row: &'static Row,
        backend: &Backend,
        wire: Option<&Wire>,
    ) -> Result<(), Status> {
        let asked = self.asked();
        let answer = backend.ask_own(wire, row, wire::frame(&[])).await?;
        let message = backend.message(&answer)?;
        self.learn_list(list, backend, &message, asked)?;
        self.keep_whole(list, backend, &message, asked);
        Ok(())
    }
}

/// What is wrong if a backend has another cgroup driver than the default one.
pub(crate) const WRONG_CGROUP_DRIVER: &str = "its cgroup driver is not the default backend's, and the kubelet uses one for \
    all: pods are limited in the wrong place; give all backends the same";

/// `RuntimeConfigResponse.linux.cgroup_driver`.
///
/// # Errors
/// If the reply is not what the CRI says.
pub(crate) fn cgroup_driver(backend: &Backend, answer: &Answer) -> Result<u64, Status> {
    let driver = wire::varint(&backend.message(answer)?, &[1, 1]);
    driver.map_err(|fault| backend.malformed(&fault))
}

/// The cgroup driver that a backend tells of; none where it has no opinion, or none that can be read: its pods are
/// served all the same.
async fn told_cgroup_driver(backend: &Backend, wire: &Wire) -> Option<u64> {
    let answer = backend
        .ask_own(Some(wire), &rpc::RUNTIME_CONFIG, wire::frame(&[]))
        .await;
    let driver = match answer {
        Ok(answer) if answer.code() != Code::Ok => return None,
        Ok(answer) => cgroup_driver(backend, &answer),
        Err(status) => Err(status),
    };
    // Of a connection that is lost its end tells.
    if let Err(status) = driver.as_ref()
        && status.code() != Code::Unavailable
    {
        let cause = status.message();
        tracing::warn!(backend = %backend.name(), cause, "its cgroup driver cannot be read");
    }
    driver.ok()
}
