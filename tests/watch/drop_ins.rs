//! `conf.d` and the files in it.

use crate::site::{PLAIN, Site};

#[tokio::test(start_paused = true)]
async fn a_drop_in_is_reported_when_it_comes_changes_and_goes() {
    let mut site = Site::of(PLAIN);
    site.reports_once("echo kata > etc/conf.d/90-kata.toml")
        .await;
    site.reports_once("echo more >> etc/conf.d/90-kata.toml")
        .await;
    site.reports_once("rm etc/conf.d/90-kata.toml").await;
}

#[tokio::test(start_paused = true)]
async fn a_drop_in_is_reported_when_it_is_renamed_away_and_back() {
    let mut site = Site::of(PLAIN);
    site.reports_once("mv etc/conf.d/10-a.toml etc/conf.d/10-a.toml.off")
        .await;
    site.reports_once("mv etc/conf.d/10-a.toml.off etc/conf.d/10-a.toml")
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_drop_in_that_changes_its_place_in_the_order_is_reported() {
    let mut site = Site::of(PLAIN);
    site.reports_once("mv etc/conf.d/10-a.toml etc/conf.d/20-a.toml")
        .await;
}

#[tokio::test(start_paused = true)]
async fn several_drop_ins_at_once_are_reported_once() {
    let mut site = Site::of(PLAIN);
    let several = "for name in 1 2 3 4 5 6 7 8 9; do echo $name > etc/conf.d/$name.toml; done";
    site.reports_once(several).await;
}

#[tokio::test(start_paused = true)]
async fn a_drop_in_in_a_directory_that_was_not_there_is_reported() {
    let mut site = Site::of("mkdir etc; echo one > etc/criswitch.toml");
    site.reports_once("mkdir etc/conf.d; echo kata > etc/conf.d/90-kata.toml")
        .await;
    site.reports_once("echo more > etc/conf.d/90-kata.toml")
        .await;
}

#[tokio::test(start_paused = true)]
async fn an_empty_directory_is_not_reported_but_its_first_drop_in_is() {
    let mut site = Site::of("mkdir etc; echo one > etc/criswitch.toml");
    site.run("mkdir etc/conf.d");
    site.is_silent().await;
    site.reports_once("install -m 644 etc/criswitch.toml etc/conf.d/90-kata.toml")
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_directorys_removal_is_reported_and_so_is_its_return() {
    let mut site = Site::of(PLAIN);
    site.reports_once("rm -r etc/conf.d").await;
    site.reports_once("mkdir etc/conf.d; echo a > etc/conf.d/10-a.toml")
        .await;
    site.reports_once("mv etc/conf.d etc/conf.d.off").await;
}

#[tokio::test(start_paused = true)]
async fn a_different_directory_in_its_place_is_reported_and_watched_from_then_on() {
    let mut site = Site::of(PLAIN);
    site.reports_once("mkdir new; echo b > new/10-a.toml; mv etc/conf.d old; mv new etc/conf.d")
        .await;
    site.run("echo c > old/10-a.toml");
    site.is_silent().await;
    site.reports_once("echo c > etc/conf.d/10-a.toml").await;
}

#[tokio::test(start_paused = true)]
async fn a_directory_in_place_of_a_drop_in_and_a_file_in_place_of_the_directory_are_reported() {
    let mut site = Site::of(PLAIN);
    site.reports_once("rm etc/conf.d/10-a.toml; mkdir etc/conf.d/10-a.toml")
        .await;
    site.reports_once("rm -r etc/conf.d; echo file > etc/conf.d")
        .await;
    site.reports_once("rm etc/conf.d; mkdir etc/conf.d").await;
}

#[tokio::test(start_paused = true)]
async fn a_pipe_among_the_drop_ins_is_not_waited_for() {
    let mut site = Site::of(PLAIN);
    site.reports_once("mkfifo etc/conf.d/20-b.toml").await;
    site.reports_once("echo b > etc/conf.d/30-c.toml").await;
}
