//! The load of tonic's clients: workers on one connection, a worker that connects for each round, and a worker that
//! listens for events.
//!
//! tonic uses hyper's client. If GOAWAY arrives while a call is in hyper's queue, hyper hands the call back unsent, and
//! tonic reports the call as failed. No server can prevent this, so the load retries and counts these calls, and no
//! others.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use criswitch_cri::codec::cri;
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tonic::{Code, Status};

use crate::holder::Holder;
use crate::support::{Client, PATIENCE};

/// The pause between two rounds of a worker: a steady load below the limits of the machine.
const PAUSE: Duration = Duration::from_millis(2);

/// Workers that make calls until the end of the load.
pub struct Load {
    workers: JoinSet<()>,
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    pods: Vec<String>,
    containers: Vec<String>,
    ending: AtomicBool,
    calls: AtomicU64,
    unsent: AtomicU64,
    failed: Mutex<Vec<String>>,
}

/// The calls of one round of a worker.
#[derive(Clone, Copy, Debug)]
enum Round {
    Lists,
    ListsOnNewConnection,
    Streams,
    Statuses,
    Churn,
    Exec,
}

impl Load {
    pub fn start(holder: &Holder) -> Load {
        let shared = Arc::new(Shared {
            client: Client::new(&holder.socket),
            pods: holder.pods.clone(),
            containers: holder.containers.clone(),
            ending: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            unsent: AtomicU64::new(0),
            failed: Mutex::default(),
        });
        let mut workers = JoinSet::new();
        for round in [
            Round::Lists,
            Round::ListsOnNewConnection,
            Round::Streams,
            Round::Statuses,
            Round::Churn,
            Round::Exec,
        ] {
            workers.spawn(work(Arc::clone(&shared), round));
        }
        workers.spawn(listen(Arc::clone(&shared)));
        Load { workers, shared }
    }

    /// Waits until the load has made this many more calls.
    pub async fn calls(&self, more: u64) {
        let enough = self.shared.calls.load(Relaxed) + more;
        let called = async {
            while self.shared.calls.load(Relaxed) < enough {
                tokio::time::sleep(PAUSE).await;
            }
        };
        let called = tokio::time::timeout(PATIENCE, called).await;
        called.expect("calls are not answered");
    }

    /// Ends the load. Returns the number of calls, and the number of calls that hyper handed back. Panics if a call
    /// failed.
    pub async fn end(mut self) -> (u64, u64) {
        self.shared.ending.store(true, Relaxed);
        while let Some(worker) = self.workers.join_next().await {
            worker.unwrap();
        }
        let failed = self.shared.failed.lock().unwrap();
        assert!(failed.is_empty(), "{}", failed.join("\n"));
        (
            self.shared.calls.load(Relaxed),
            self.shared.unsent.load(Relaxed),
        )
    }
}

async fn work(shared: Arc<Shared>, round: Round) {
    while !shared.ending.load(Relaxed) {
        if let Err(status) = shared.round(round).await {
            shared.fail(&format!("{round:?}"), &status);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Listens for events again and again. A stream may end only with the status of a shutdown.
async fn listen(shared: Arc<Shared>) {
    let client = Client::new(&shared.client.socket);
    while !shared.ending.load(Relaxed) {
        let listened = || async {
            let request = cri::GetEventsRequest {};
            let mut events = client
                .runtime()
                .get_container_events(request)
                .await?
                .into_inner();
            while let Some(event) = events.next().await {
                event?;
                if shared.ending.load(Relaxed) {
                    break;
                }
            }
            Ok(())
        };
        match shared.call(listened).await {
            Err(end) if end.message().contains("criswitch is shutting down") => {
                assert_eq!(end.code(), Code::Unavailable);
            }
            Err(status) => shared.fail("events", &status),
            Ok(()) => {}
        }
    }
}

impl Shared {
    async fn round(&self, round: Round) -> Result<(), Status> {
        match round {
            Round::Lists => self.lists(&self.client).await,
            Round::ListsOnNewConnection => self.lists(&Client::new(&self.client.socket)).await,
            Round::Streams => self.streams().await,
            Round::Statuses => self.statuses().await,
            Round::Churn => self.churn().await,
            Round::Exec => self.exec().await,
        }
    }

    fn fail(&self, who: &str, status: &Status) {
        let mut failed = self.failed.lock().unwrap();
        failed.push(format!("{who}: {status:?}"));
    }

    /// Makes a call, and retries a call that was handed back.
    async fn call<T, F>(&self, call: impl Fn() -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        self.calls.fetch_add(1, Relaxed);
        loop {
            match call().await {
                Err(status) if handed_back(&status) => self.unsent.fetch_add(1, Relaxed),
                answered => return answered,
            };
        }
    }

    async fn lists(&self, client: &Client) -> Result<(), Status> {
        let pods = self.call(|| client.pods()).await?;
        whole(pods.into_iter().map(|pod| pod.id), &self.pods)?;
        let containers = self.call(|| client.containers()).await?;
        whole(containers.into_iter().map(|one| one.id), &self.containers)
    }

    async fn streams(&self) -> Result<(), Status> {
        let streamed = || async {
            let request = cri::StreamPodSandboxesRequest::default();
            let stream = self.client.runtime().stream_pod_sandboxes(request).await?;
            let parts: Vec<_> = stream.into_inner().collect().await;
            parts.into_iter().collect::<Result<Vec<_>, Status>>()
        };
        let parts = self.call(streamed).await?;
        let pods = parts.into_iter().flat_map(|part| part.pod_sandboxes);
        whole(pods.map(|pod| pod.id), &self.pods)
    }

    async fn statuses(&self) -> Result<(), Status> {
        for id in &self.pods {
            let asked = || async {
                let request = cri::PodSandboxStatusRequest {
                    pod_sandbox_id: id.clone(),
                    verbose: false,
                };
                self.client.runtime().pod_sandbox_status(request).await
            };
            self.call(asked).await?;
        }
        Ok(())
    }

    async fn churn(&self) -> Result<(), Status> {
        let client = &self.client;
        let run = || client.run_pod("kata", "churn");
        let pod = self.call(run).await?;
        self.call(|| client.stop_pod(&pod)).await?;
        self.call(|| client.remove_pod(&pod)).await
    }

    /// The runtime sometimes holds this call, so that the call is in flight during the shutdown.
    async fn exec(&self) -> Result<(), Status> {
        let exec = || async {
            let request = cri::ExecSyncRequest {
                container_id: self.containers[0].clone(),
                cmd: vec!["true".to_owned()],
                timeout: 0,
            };
            self.client.runtime().exec_sync(request).await
        };
        self.call(exec).await.map(drop)
    }
}

/// Whether hyper never sent the call: the connection closed while the request was in hyper's queue.
fn handed_back(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<hyper::Error>() {
            return error.is_canceled();
        }
        cause = error.source();
    }
    false
}

/// Checks that a list has every wanted id, and no id twice.
fn whole(listed: impl Iterator<Item = String>, wanted: &[String]) -> Result<(), Status> {
    let listed: Vec<_> = listed.collect();
    let different: BTreeSet<_> = listed.iter().collect();
    if different.len() < listed.len() || !wanted.iter().all(|id| different.contains(id)) {
        return Err(Status::data_loss(format!("not whole: {listed:?}")));
    }
    Ok(())
}
