//! How it tells: nothing is lost, nothing is told twice, and waiting costs nothing.

use std::fs::{self, File};
use std::future::poll_fn;
use std::io::Write;
use std::path::Path;
use std::pin::pin;

use criswitch::watch::Watch;
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
    assert!(begun.elapsed() >= criswitch::watch::QUIET * 2);
}
