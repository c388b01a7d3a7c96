//! Files that are being written, and changes that do not end.

use std::fs::{self, File};
use std::io::Write;
use std::time::Duration;

use tokio::time::{Instant, interval, timeout};

use crate::site::{BOUND, PLAIN, Site};

/// Short, where a test waits for it.
const HOLD: Duration = Duration::from_millis(500);

#[tokio::test]
async fn a_file_written_in_pieces_is_told_when_it_is_closed() {
    let mut site = Site::of(PLAIN);
    let mut file = File::create(site.path("etc/criswitch.toml")).unwrap();
    for piece in ["o", "n", "e", " and a half"] {
        file.write_all(piece.as_bytes()).unwrap();
        site.is_silent().await;
    }
    drop(file);
    site.tells_once().await;
}

#[tokio::test]
async fn a_new_drop_in_written_in_pieces_is_told_when_it_is_closed() {
    let mut site = Site::of("mkdir etc; echo one > etc/criswitch.toml");
    fs::create_dir(site.path("etc/conf.d")).unwrap();
    site.is_silent().await;
    let mut file = File::create(site.path("etc/conf.d/90-kata.toml")).unwrap();
    site.is_silent().await;
    file.write_all(b"ka").unwrap();
    site.is_silent().await;
    file.write_all(b"ta").unwrap();
    drop(file);
    site.tells_once().await;
}

#[tokio::test]
async fn the_far_end_of_a_link_written_in_pieces_is_told_when_it_is_closed() {
    let mut site =
        Site::of("mkdir etc far; echo one > far/real; ln -s ../far/real etc/criswitch.toml");
    let mut file = File::create(site.path("far/real")).unwrap();
    file.write_all(b"t").unwrap();
    site.is_silent().await;
    drop(file);
    site.tells_once().await;
}

#[tokio::test]
async fn other_changes_wait_for_a_file_that_is_being_written() {
    let mut site = Site::of(PLAIN);
    let mut file = File::create(site.path("etc/criswitch.toml")).unwrap();
    file.write_all(b"half").unwrap();
    site.run("echo b > etc/conf.d/10-a.toml");
    site.is_silent().await;
    drop(file);
    site.tells_once().await;
}

#[tokio::test]
async fn a_file_that_is_removed_while_it_is_written_is_not_waited_for() {
    let mut site = Site::of(PLAIN);
    let mut file = File::create(site.path("etc/conf.d/20-b.toml")).unwrap();
    file.write_all(b"half").unwrap();
    site.is_silent().await;
    site.run("rm etc/conf.d/20-b.toml");
    site.is_silent().await;
    file.write_all(b"more").unwrap();
    site.tells_of("echo two > etc/criswitch.toml").await;
}

#[tokio::test]
async fn a_file_that_is_renamed_away_while_it_is_written_is_not_waited_for() {
    let mut site = Site::of(PLAIN);
    let mut file = File::create(site.path("etc/conf.d/20-b.toml")).unwrap();
    file.write_all(b"half").unwrap();
    site.is_silent().await;
    site.run("mv etc/conf.d/20-b.toml etc/conf.d/20-b.toml.off");
    site.tells_of("echo two > etc/criswitch.toml").await;
}

#[tokio::test]
async fn a_file_that_goes_with_its_directory_while_it_is_written_is_not_waited_for() {
    let mut site = Site::of(PLAIN);
    let mut file = File::create(site.path("etc/conf.d/10-a.toml")).unwrap();
    file.write_all(b"half").unwrap();
    site.is_silent().await;
    site.tells_of("mv etc/conf.d gone").await;
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_never_closed_is_told_after_the_longest_hold_and_again_when_it_is() {
    let mut site = Site::holding(PLAIN, HOLD);
    let begun = Instant::now();
    let mut file = File::create(site.path("etc/criswitch.toml")).unwrap();
    file.write_all(b"half").unwrap();
    site.tells().await;
    assert!(begun.elapsed() >= HOLD);
    file.write_all(b" and the rest").unwrap();
    drop(file);
    site.tells_once().await;
}

#[tokio::test(start_paused = true)]
async fn a_writer_who_had_the_longest_hold_is_not_waited_for_again() {
    let mut site = Site::holding(PLAIN, HOLD);
    let mut file = File::create(site.path("etc/criswitch.toml")).unwrap();
    file.write_all(b"half").unwrap();
    site.tells().await;
    let begun = Instant::now();
    fs::write(site.path("etc/conf.d/10-a.toml"), "b").unwrap();
    site.tells().await;
    assert!(begun.elapsed() < HOLD);
}

#[tokio::test(start_paused = true)]
async fn changes_without_end_are_told_after_the_longest_hold() {
    let mut site = Site::holding(PLAIN, HOLD);
    let path = site.path("etc/criswitch.toml");
    let begun = Instant::now();
    let changes = async {
        let mut tick = interval(Duration::from_millis(5));
        for count in 0.. {
            tick.tick().await;
            fs::write(&path, format!("{count}")).unwrap();
        }
    };
    let told = async {
        tokio::select! {
            biased;
            () = site.watch.changed() => {}
            () = changes => {}
        }
    };
    timeout(BOUND, told).await.expect("it is told");
    assert!(begun.elapsed() >= HOLD);
    // What was written while the files were read is told once more, together with the last change.
    fs::write(&path, "the last").unwrap();
    site.tells_once().await;
}
