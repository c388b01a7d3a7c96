//! The main file: written, replaced, gone and back.

use crate::site::{PLAIN, Site};

#[tokio::test]
async fn a_file_written_in_place_is_told_once() {
    let mut site = Site::of(PLAIN);
    site.tells_of("echo two > etc/criswitch.toml").await;
    site.tells_of("echo three >> etc/criswitch.toml").await;
}

#[tokio::test]
async fn a_file_copied_over_it_is_told_once() {
    let mut site = Site::of(PLAIN);
    site.tells_of("echo two > staged; cp staged etc/criswitch.toml")
        .await;
}

#[tokio::test]
async fn a_file_installed_over_it_is_told_once() {
    let mut site = Site::of(PLAIN);
    site.tells_of("echo two > staged; install -m 600 staged etc/criswitch.toml")
        .await;
}

#[tokio::test]
async fn a_file_renamed_over_it_is_told_once() {
    let mut site = Site::of(PLAIN);
    let rename = "echo two > etc/.criswitch.toml.x7; mv etc/.criswitch.toml.x7 etc/criswitch.toml";
    site.tells_of(rename).await;
    site.tells_of("sed -i s/two/three/ etc/criswitch.toml")
        .await;
}

#[tokio::test]
async fn an_editor_that_moves_the_old_file_away_first_is_told_once() {
    let mut site = Site::of(PLAIN);
    let edit = "cd etc; echo swap > .criswitch.toml.swp; mv criswitch.toml criswitch.toml~
        echo two > criswitch.toml; rm criswitch.toml~ .criswitch.toml.swp";
    site.tells_of(edit).await;
}

#[tokio::test]
async fn a_file_linked_into_its_place_is_told_once() {
    let mut site = Site::of(PLAIN);
    site.tells_of("echo two > staged; ln -f staged etc/criswitch.toml")
        .await;
}

#[tokio::test]
async fn a_file_that_is_removed_is_told_and_so_is_its_return() {
    let mut site = Site::of(PLAIN);
    site.tells_of("rm etc/criswitch.toml").await;
    site.tells_of("echo one > etc/criswitch.toml").await;
}

#[tokio::test]
async fn a_file_in_directories_that_are_not_there_yet_is_told_when_it_comes() {
    let mut site = Site::of("true");
    site.run("mkdir etc");
    site.is_silent().await;
    site.tells_of("echo one > etc/criswitch.toml").await;
}

#[tokio::test]
async fn a_directory_that_comes_with_all_its_files_is_told_once() {
    let mut site = Site::of("true");
    let staged = PLAIN.replace("etc/", "staged/");
    site.tells_of(&format!("{staged}; mv staged etc")).await;
    site.tells_of("echo b > etc/conf.d/10-a.toml").await;
}

#[tokio::test]
async fn a_directory_that_vanishes_is_told_and_so_is_its_return() {
    let mut site = Site::of(PLAIN);
    site.tells_of("mv etc gone").await;
    site.tells_of("mv gone etc").await;
    site.tells_of("rm -r etc").await;
    site.tells_of(PLAIN).await;
    site.tells_of("echo two > etc/criswitch.toml").await;
}

#[tokio::test]
async fn another_directory_in_its_place_is_told_once() {
    let mut site = Site::of(PLAIN);
    site.tells_of("mkdir new; echo two > new/criswitch.toml; mv etc old; mv new etc")
        .await;
    site.run("echo three > old/criswitch.toml");
    site.is_silent().await;
    site.tells_of("echo three > etc/criswitch.toml").await;
}
