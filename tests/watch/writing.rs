//! Files that are being written, and waits that are cancelled.

use std::fs::{self, File};
use std::io::Write;

use criswitch_config::watch::PERIOD;
use tokio::time::{Instant, interval};

use crate::site::{PLAIN, Site};

#[tokio::test(start_paused = true)]
async fn a_change_is_reported_after_two_equal_looks() {
    let mut site = Site::of(PLAIN);
    site.run("echo two > etc/criswitch.toml");
    let begun = Instant::now();
    site.reports().await;
    assert!(begun.elapsed() >= PERIOD * 2, "{:?}", begun.elapsed());
    assert!(begun.elapsed() < PERIOD * 3, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_file_that_keeps_changing_is_reported_after_the_last_write() {
    let mut site = Site::of(PLAIN);
    let mut file = File::create(site.path("etc/criswitch.toml")).unwrap();
    let written = PERIOD * 10;
    let writes = async {
        let mut tick = interval(PERIOD * 3 / 4);
        let begun = Instant::now();
        while begun.elapsed() < written {
            tick.tick().await;
            file.write_all(b"piece").unwrap();
        }
    };
    tokio::select! {
        () = site.reports() => panic!("reported during the writes"),
        () = writes => {}
    }
    site.reports().await;
    site.is_silent().await;
}

#[tokio::test(start_paused = true)]
async fn a_change_during_a_wait_that_is_cancelled_is_reported_by_the_next_wait() {
    let mut site = Site::of(PLAIN);
    let path = site.path("etc/criswitch.toml");
    for size in 0..3 {
        fs::write(&path, "x".repeat(size)).unwrap();
        let wait = tokio::time::timeout(PERIOD * 3 / 2, site.reports());
        wait.await.expect_err("one look is not enough");
    }
    site.reports().await;
    site.is_silent().await;
}

#[tokio::test(start_paused = true)]
async fn a_change_that_keeps_size_and_time_of_the_file_is_reported() {
    let mut site = Site::of(PLAIN);
    site.reports_once("touch -r etc/criswitch.toml kept; echo two > etc/criswitch.toml; touch -r kept etc/criswitch.toml")
        .await;
}
