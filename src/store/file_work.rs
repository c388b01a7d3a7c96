//! Does file work outside the thread that serves calls, because a disk, an automount or a network file system may block
//! for ever.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

/// How long criswitch waits for the result of file work.
pub const FILE_LIMIT: Duration = Duration::from_secs(3);
/// The error if work on a socket's file takes longer than [`FILE_LIMIT`].
pub(crate) const NO_ANSWER: &str = "the file system of its socket does not answer";

/// Does the file work of one owner, one piece of work at a time. Work that hangs blocks only one thread, because no
/// further work begins before the hung work ends.
#[derive(Clone, Debug, Default)]
pub struct FileWork(Arc<Mutex<()>>);

impl FileWork {
    /// Does `work` on another thread and returns its result. Returns `None` if `work` takes longer than [`FILE_LIMIT`],
    /// including the wait for earlier work. Needs a tokio runtime.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let in_turn = async {
            let turn = Arc::clone(&self.0).lock_owned().await;
            let worked = tokio::task::spawn_blocking(move || {
                let worked = work();
                drop(turn);
                worked
            });
            worked.await.ok()
        };
        tokio::time::timeout(FILE_LIMIT, in_turn).await.ok()?
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{TryRecvError, channel};

    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_that_hangs_is_not_waited_for_and_takes_one_thread() {
        let files = FileWork::default();
        let (begin, begun) = channel();
        let (release, hang) = channel::<()>();
        let first = begin.clone();
        let hung = files.run(move || {
            first.send("hung").unwrap();
            hang.recv().unwrap();
        });
        assert_eq!(tokio::join!(hung, advance(FILE_LIMIT)).0, None);
        assert_eq!(begun.recv(), Ok("hung"));
        let further = files.run(move || begin.send("further"));
        assert_eq!(tokio::join!(further, advance(FILE_LIMIT)).0, None);
        assert_eq!(begun.try_recv(), Err(TryRecvError::Empty));
        release.send(()).unwrap();
        assert_eq!(files.run(|| "done").await, Some("done"));
    }
}
