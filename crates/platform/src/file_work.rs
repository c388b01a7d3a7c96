//! Does file work outside the thread that serves calls, because a disk, an automount or a network file system may block
//! for ever.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

/// How long criswitch waits for the result of file work.
pub const FILE_LIMIT: Duration = Duration::from_secs(3);
/// The error if work on a socket's file takes longer than [`FILE_LIMIT`].
pub const NO_ANSWER: &str = "the file system of its socket does not answer";

/// Does file work, one piece of work at a time. Work that hangs blocks only one thread, because no further work begins
/// before the hung work ends.
#[derive(Clone, Debug)]
pub struct FileWork(Arc<Turns>);

#[derive(Debug)]
struct Turns {
    /// Has one permit, which the work in progress holds.
    turn: Arc<Semaphore>,
    /// When the work in progress began.
    begun: watch::Sender<Option<Instant>>,
}

/// The turn of a piece of work, until the work has ended.
struct Turn {
    state: Arc<Turns>,
    _permit: OwnedSemaphorePermit,
}

impl Default for FileWork {
    fn default() -> FileWork {
        FileWork(Arc::new(Turns {
            turn: Arc::new(Semaphore::new(1)),
            begun: watch::Sender::default(),
        }))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.state.begun.send_replace(None);
    }
}

impl FileWork {
    /// Does `work` on another thread and returns its result. Returns `None` if `work` takes longer than [`FILE_LIMIT`],
    /// including the wait for earlier work, and after [`FileWork::close`]. Needs a tokio runtime.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let in_turn = async {
            let turn = self.turn().await?;
            let worked = tokio::task::spawn_blocking(move || {
                let worked = work();
                drop(turn);
                worked
            });
            worked.await.ok()
        };
        tokio::time::timeout(FILE_LIMIT, in_turn).await.ok()?
    }

    /// Like [`FileWork::run`], but returns `None` at once if earlier work has taken [`FILE_LIMIT`] or longer. For an
    /// attempt that is repeated anyway.
    pub async fn run_unless_hung<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if self.hangs() {
            return None;
        }
        self.run(work).await
    }

    /// Waits at most `limit` for earlier work, then begins no further work.
    pub async fn end(&self, limit: Duration) {
        tokio::time::timeout(limit, self.0.turn.acquire())
            .await
            .ok();
        self.close();
    }

    /// Begins no further work. Work in progress continues.
    pub fn close(&self) {
        self.0.turn.close();
    }

    /// Whether work is in progress.
    pub fn is_busy(&self) -> bool {
        self.0.begun.borrow().is_some()
    }

    /// Whether the work in progress has taken [`FILE_LIMIT`] or longer.
    fn hangs(&self) -> bool {
        self.0
            .begun
            .borrow()
            .is_some_and(|begun| begun.elapsed() >= FILE_LIMIT)
    }

    /// Waits for earlier work. Returns `None` after [`FileWork::close`].
    async fn turn(&self) -> Option<Turn> {
        let permit = Arc::clone(&self.0.turn).acquire_owned().await.ok()?;
        // The permit may have been issued just before the close.
        if self.0.turn.is_closed() {
            return None;
        }
        self.0.begun.send_replace(Some(Instant::now()));
        Some(Turn {
            state: Arc::clone(&self.0),
            _permit: permit,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc::{TryRecvError, channel};

    use futures_util::poll;
    use tokio::time::advance;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

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
        let began = Instant::now();
        let at_once = begin.clone();
        let further = files.run_unless_hung(move || at_once.send("further"));
        assert_eq!(further.await, None);
        assert_eq!(began.elapsed(), Duration::ZERO);
        let further = files.run(move || begin.send("further"));
        assert_eq!(tokio::join!(further, advance(FILE_LIMIT)).0, None);
        assert_eq!(begun.try_recv(), Err(TryRecvError::Empty));
        release.send(()).unwrap();
        let mut begun = files.0.begun.subscribe();
        begun.wait_for(Option::is_none).await.unwrap();
        assert_eq!(files.run_unless_hung(|| "done").await, Some("done"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_waits_for_the_work_in_progress_and_no_work_begins_after_it() {
        let files = FileWork::default();
        let (begin, begun) = channel();
        let (release, hang) = channel::<()>();
        let work = files.run(move || {
            begin.send(()).unwrap();
            hang.recv().unwrap();
        });
        let end = async {
            let mut end = pin!(files.end(LIMIT));
            assert!(poll!(&mut end).is_pending());
            assert!(files.is_busy());
            release.send(()).unwrap();
            end.await;
        };
        assert_eq!(tokio::join!(work, end).0, Some(()));
        assert_eq!(begun.recv(), Ok(()));
        assert!(!files.is_busy());
        assert_eq!(files.run(|| "further").await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_waits_for_work_that_hangs_only_up_to_its_limit() {
        let files = FileWork::default();
        let (release, hang) = channel::<()>();
        let hung = files.run(move || hang.recv().unwrap());
        let end = async { tokio::join!(files.end(LIMIT), advance(LIMIT)).0 };
        tokio::select! {
            biased;
            _ = hung => panic!("the work was to hang"),
            () = end => {}
        }
        assert!(files.is_busy());
        release.send(()).unwrap();
    }
}
