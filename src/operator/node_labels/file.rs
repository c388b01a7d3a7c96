//! The file of `labels_file`. `keep` replaces it when the labels change. If criswitch stops, the file stays: a restart
//! must not remove labels of the node.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use criswitch_config::labels_file::{self, feature_file};
use criswitch_platform::file_work::FileWork;
use criswitch_platform::remove;
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::NodeLabels;
use crate::switch::Switch;

/// The shortest time between two computations of the labels, because the facts of a backend may change often.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The time between two attempts to write the file.
const RETRY: Duration = Duration::from_secs(30);
/// The error if the file takes longer than [`criswitch_platform::file_work::FILE_LIMIT`].
const NO_ANSWER: &str = "its file system does not answer";
/// Keeps the file current until the returned task is dropped.
pub fn keep(switch: &Arc<Switch>) -> JoinSet<Infallible> {
    let mut task = JoinSet::new();
    task.spawn(keep_current(Arc::clone(switch)));
    task
}

/// Writes the file, and remembers the last written path and content.
#[derive(Default)]
struct Writer {
    files: FileWork,
    written: Option<(PathBuf, String)>,
}

async fn keep_current(switch: Arc<Switch>) -> Infallible {
    // Without this wait, the first content would lack the handlers of backends that have not answered yet.
    let live = switch.live();
    join_all(live.backends.iter().map(|it| it.started(switch.start_by))).await;
    drop(live);
    let mut writer = Writer::default();
    loop {
        // Begin to listen before the labels are computed, so that no change is missed.
        let mut tables = switch.tables();
        let live = tables.borrow_and_update().clone();
        let mut changes: FuturesUnordered<_> =
            live.backends.iter().map(|it| it.next_change()).collect();
        let (labels, end) = NodeLabels::of(&switch.live());
        let path = live.config.labels_file.clone();
        drop(live);
        let result = writer.write(path.as_deref(), &labels).await;
        let retry = result.is_err().then(|| Instant::now() + RETRY);
        report(&switch.labels_problem, path.as_deref(), result.err());
        tokio::select! {
            changed = tables.changed() => if changed.is_err() { std::future::pending().await },
            Some(()) = changes.next() => {}
            () = until(end) => {}
            () = until(retry) => {}
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Records why the file cannot be written, for `criswitch status`. Logs a new problem, and the end of a problem.
fn report(last: &Mutex<Option<String>>, path: Option<&Path>, problem: Option<String>) {
    let path = path.unwrap_or(Path::new("")).display();
    let before = std::mem::replace(&mut *last.lock(), problem.clone());
    match (before, problem) {
        (None, Some(cause)) => {
            tracing::error!(file = %path, cause, "the labels of the node cannot be written; criswitch tries again every {RETRY:?}");
        }
        (Some(_), None) => tracing::info!(file = %path, "the labels of the node are written again"),
        _ => {}
    }
}

impl Writer {
    /// Replaces the file if its content differs. If the path has changed, removes the file at the old path.
    async fn write(&mut self, path: Option<&Path>, labels: &NodeLabels) -> Result<(), String> {
        let wanted = path.map(|path| (path.to_owned(), feature_file(&labels.labels)));
        if wanted == self.written {
            return Ok(());
        }
        let last = self.written.as_ref().map(|(path, _)| path.clone());
        let old = last.filter(|last| Some(last.as_path()) != path);
        let new = wanted.clone();
        // Until the work ends, the content of the file is not known.
        if let Some((_, content)) = &mut self.written {
            content.clear();
        }
        let work = self.files.run(move || {
            if let Some(old) = old {
                remove(&old)?;
            }
            new.map_or(Ok(()), |(path, content)| {
                labels_file::replace(&path, &content)
            })
        });
        work.await
            .ok_or_else(|| NO_ANSWER.to_owned())?
            .map_err(|error| error.to_string())?;
        self.written = wanted;
        Ok(())
    }
}
