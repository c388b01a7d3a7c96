//! How it tells: nothing is lost, nothing is told twice, and waiting costs nothing.

use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::future::poll_fn;
use std::io::Write;
use std::path::Path;
use std::pin::pin;

use criswitch::config::watch::Watch;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::site::{BOUND, PLAIN, QUIET, Site};

#[tokio::test]
async fn a_wait_that_is_given_up_again_and_again_loses_nothing() {
    let mut site = Site::of(PLAIN);
    site.run("echo two > etc/criswitch.toml");
    let short = QUIET / 10;
    let told = async { while timeout(short, site.watch.changed()).await.is_err() {} };
    timeout(BOUND, told).await.expect("it is told");
    site.is_silent().await;
}

#[tokio::test]
async fn a_change_between_two_waits_is_told() {
    let mut site = Site::of(PLAIN);
    site.run("echo two > etc/criswitch.toml");
    site.tells().await;
    site.run("echo three > etc/criswitch.toml");
    site.tells_once().await;
}

#[tokio::test]
async fn more_events_than_inotify_keeps_still_tell_of_a_change() {
    let mut site = Site::of(PLAIN);
    let most = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let most: usize = most.trim().parse().unwrap();
    let other = [site.path("etc/1"), site.path("etc/2")];
    fs::write(&other[0], "").unwrap();
    for _ in 0..=most / 2 {
        fs::rename(&other[0], &other[1]).unwrap();
        fs::rename(&other[1], &other[0]).unwrap();
    }
    site.tells_of("echo b > etc/conf.d/10-a.toml").await;
    site.tells_of("echo c > etc/conf.d/10-a.toml").await;
}

#[tokio::test]
async fn waiting_for_a_file_that_is_being_written_is_no_busy_loop() {
    let mut site = Site::of(PLAIN);
    let mut file = File::create(site.path("etc/criswitch.toml")).unwrap();
    file.write_all(b"half").unwrap();
    let mut polls = 0;
    {
        let mut changed = pin!(site.watch.changed());
        let counted = poll_fn(|context| {
            polls += 1;
            changed.as_mut().poll(context)
        });
        let told = timeout(QUIET * 4, counted).await;
        told.expect_err("the file is open");
    }
    assert!(polls < 20, "{polls}");
    drop(file);
    site.tells_once().await;
}

#[tokio::test]
async fn a_relative_path_is_one_from_the_directory_of_now() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let name = Path::new(folder.path().file_name().unwrap());
    let mut watch = Watch::with_times(&name.join("x.toml"), QUIET, BOUND).unwrap();
    fs::write(name.join("x.toml"), "one").unwrap();
    timeout(BOUND, watch.changed()).await.expect("it is told");
}

#[tokio::test]
async fn an_empty_path_cannot_be_watched() {
    let error = Watch::new("".as_ref()).expect_err("it is no path");
    assert!(error.to_string().contains("try an absolute path"));
}

#[tokio::test]
async fn what_is_told_was_read_twice_a_quiet_time_apart() {
    let site = Site::of(PLAIN);
    let mut watch = Watch::new(&site.path("etc/criswitch.toml")).unwrap();
    let begun = Instant::now();
    site.run("echo two > etc/criswitch.toml");
    timeout(BOUND, watch.changed()).await.expect("it is told");
    assert!(begun.elapsed() >= criswitch::config::watch::QUIET * 2);
}

/// What the main file says, after which something else happens to it each time.
fn reading(site: &Site, meanwhile: &'static [&'static str]) -> impl AsyncFn() -> String + use<> {
    let main = site.path("etc/criswitch.toml");
    let meanwhile = RefCell::new(meanwhile.iter());
    async move || {
        let text = fs::read_to_string(&main).unwrap();
        if let Some(next) = meanwhile.borrow_mut().next() {
            fs::write(&main, next).unwrap();
        }
        text
    }
}

#[tokio::test]
async fn what_changes_while_it_is_read_is_read_again() {
    let mut site = Site::of(PLAIN);
    site.tells_of("echo two > etc/criswitch.toml").await;
    let read = reading(&site, &["three", "four"]);
    assert_eq!(site.watch.steady(read).await, "four");
    site.is_silent().await;
    let read = reading(&site, &[]);
    assert_eq!(site.watch.steady(read).await, "four");
}

#[tokio::test]
async fn what_is_again_as_it_was_told_is_read_again_too() {
    let mut site = Site::of(PLAIN);
    site.tells_of("echo two > etc/criswitch.toml").await;
    let main = site.path("etc/criswitch.toml");
    let (read, reads) = (Notify::new(), Cell::new(0));
    let steady = site.watch.steady(async || {
        reads.set(reads.get() + 1);
        if reads.get() == 1 {
            fs::write(&main, "half").unwrap();
            read.notify_one();
        }
        fs::read_to_string(&main).unwrap()
    });
    // There is nothing to tell of it then.
    let set_right = async {
        read.notified().await;
        fs::write(&main, "two\n").unwrap();
    };
    let both = async { tokio::join!(steady, set_right) };
    let (made, ()) = timeout(BOUND, both).await.expect("it ends");
    assert_eq!((made.as_str(), reads.get()), ("two\n", 2));
}

#[tokio::test]
async fn what_is_other_at_each_reading_counts_after_the_longest_hold() {
    let mut site = Site::holding(PLAIN, QUIET * 10);
    let main = site.path("etc/criswitch.toml");
    let reads = Cell::new(0);
    let steady = site.watch.steady(async || {
        reads.set(reads.get() + 1);
        fs::write(&main, reads.get().to_string()).unwrap();
    });
    timeout(BOUND, steady).await.expect("it ends");
    assert!(reads.get() > 1);
}
