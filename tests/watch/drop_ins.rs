//! `conf.d` and the files in it.

use crate::site::{PLAIN, Site};

#[tokio::test]
async fn a_drop_in_is_told_when_it_comes_changes_and_goes() {
    let mut site = Site::of(PLAIN);
    site.tells_of("echo kata > etc/conf.d/90-kata.toml").await;
    site.tells_of("echo more >> etc/conf.d/90-kata.toml").await;
    site.tells_of("rm etc/conf.d/90-kata.toml").await;
}

#[tokio::test]
async fn a_drop_in_is_told_when_it_is_renamed_away_and_back() {
    let mut site = Site::of(PLAIN);
    site.tells_of("mv etc/conf.d/10-a.toml etc/conf.d/10-a.toml.off")
        .await;
    site.tells_of("mv etc/conf.d/10-a.toml.off etc/conf.d/10-a.toml")
        .await;
}

#[tokio::test]
async fn a_drop_in_that_changes_its_place_in_the_order_is_told() {
    let mut site = Site::of(PLAIN);
    site.tells_of("mv etc/conf.d/10-a.toml etc/conf.d/20-a.toml")
        .await;
}

#[tokio::test]
async fn several_drop_ins_at_once_are_told_once() {
    let mut site = Site::of(PLAIN);
    let several = "for name in 1 2 3 4 5 6 7 8 9; do echo $name > etc/conf.d/$name.toml; done";
    site.tells_of(several).await;
}

#[tokio::test]
async fn a_drop_in_in_a_directory_that_was_not_there_is_told() {
    let mut site = Site::of("mkdir etc; echo one > etc/criswitch.toml");
    site.tells_of("mkdir etc/conf.d; echo kata > etc/conf.d/90-kata.toml")
        .await;
    site.tells_of("echo more > etc/conf.d/90-kata.toml").await;
}

#[tokio::test]
async fn an_empty_directory_is_not_told_but_its_first_drop_in_is() {
    let mut site = Site::of("mkdir etc; echo one > etc/criswitch.toml");
    site.run("mkdir etc/conf.d");
    site.is_silent().await;
    site.tells_of("install -m 644 etc/criswitch.toml etc/conf.d/90-kata.toml")
        .await;
}

#[tokio::test]
async fn the_directorys_removal_is_told_and_so_is_its_return() {
    let mut site = Site::of(PLAIN);
    site.tells_of("rm -r etc/conf.d").await;
    site.tells_of("mkdir etc/conf.d; echo a > etc/conf.d/10-a.toml")
        .await;
    site.tells_of("mv etc/conf.d etc/conf.d.off").await;
}

#[tokio::test]
async fn another_directory_in_its_place_is_told_and_watched_from_then_on() {
    let mut site = Site::of(PLAIN);
    site.tells_of("mkdir new; echo b > new/10-a.toml; mv etc/conf.d old; mv new etc/conf.d")
        .await;
    site.run("echo c > old/10-a.toml");
    site.is_silent().await;
    site.tells_of("echo c > etc/conf.d/10-a.toml").await;
}

#[tokio::test]
async fn a_directory_in_place_of_a_drop_in_and_a_file_in_place_of_the_directory_are_told() {
    let mut site = Site::of(PLAIN);
    site.tells_of("rm etc/conf.d/10-a.toml; mkdir etc/conf.d/10-a.toml")
        .await;
    site.tells_of("rm -r etc/conf.d; echo file > etc/conf.d")
        .await;
    site.tells_of("rm etc/conf.d; mkdir etc/conf.d").await;
}

#[tokio::test]
async fn a_pipe_among_the_drop_ins_is_not_waited_for() {
    let mut site = Site::of(PLAIN);
    site.tells_of("mkfifo etc/conf.d/20-b.toml").await;
    site.tells_of("echo b > etc/conf.d/30-c.toml").await;
}
