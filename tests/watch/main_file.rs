//! The main file: written, replaced, removed and created.

use crate::site::{PLAIN, Site};

#[tokio::test(start_paused = true)]
async fn a_file_written_in_place_is_reported_once() {
    let mut site = Site::of(PLAIN);
    site.reports_once("echo two > etc/criswitch.toml").await;
    site.reports_once("echo three >> etc/criswitch.toml").await;
}

#[tokio::test(start_paused = true)]
async fn a_file_copied_over_it_is_reported_once() {
    let mut site = Site::of(PLAIN);
    site.reports_once("echo two > staged; cp staged etc/criswitch.toml")
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_file_installed_over_it_is_reported_once() {
    let mut site = Site::of(PLAIN);
    site.reports_once("echo two > staged; install -m 600 staged etc/criswitch.toml")
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_file_renamed_over_it_is_reported_once() {
    let mut site = Site::of(PLAIN);
    let rename = "echo two > etc/.criswitch.toml.x7; mv etc/.criswitch.toml.x7 etc/criswitch.toml";
    site.reports_once(rename).await;
    site.reports_once("sed -i s/two/three/ etc/criswitch.toml")
        .await;
}

#[tokio::test(start_paused = true)]
async fn an_editor_that_moves_the_old_file_away_first_is_reported_once() {
    let mut site = Site::of(PLAIN);
    let edit = "cd etc; echo swap > .criswitch.toml.swp; mv criswitch.toml criswitch.toml~
        echo two > criswitch.toml; rm criswitch.toml~ .criswitch.toml.swp";
    site.reports_once(edit).await;
}

#[tokio::test(start_paused = true)]
async fn a_file_linked_into_its_place_is_reported_once() {
    let mut site = Site::of(PLAIN);
    site.reports_once("echo two > staged; ln -f staged etc/criswitch.toml")
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_removed_is_reported_and_so_is_its_return() {
    let mut site = Site::of(PLAIN);
    site.reports_once("rm etc/criswitch.toml").await;
    site.reports_once("echo one > etc/criswitch.toml").await;
}

#[tokio::test(start_paused = true)]
async fn a_file_in_directories_that_are_not_there_yet_is_reported_when_it_comes() {
    let mut site = Site::of("true");
    site.run("mkdir etc");
    site.is_silent().await;
    site.reports_once("echo one > etc/criswitch.toml").await;
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_comes_with_all_its_files_is_reported_once() {
    let mut site = Site::of("true");
    let staged = PLAIN.replace("etc/", "staged/");
    site.reports_once(&format!("{staged}; mv staged etc")).await;
    site.reports_once("echo b > etc/conf.d/10-a.toml").await;
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_vanishes_is_reported_and_so_is_its_return() {
    let mut site = Site::of(PLAIN);
    site.reports_once("mv etc gone").await;
    site.reports_once("mv gone etc").await;
    site.reports_once("rm -r etc").await;
    site.reports_once(PLAIN).await;
    site.reports_once("echo two > etc/criswitch.toml").await;
}

#[tokio::test(start_paused = true)]
async fn a_different_directory_in_its_place_is_reported_once() {
    let mut site = Site::of(PLAIN);
    site.reports_once("mkdir new; echo two > new/criswitch.toml; mv etc old; mv new etc")
        .await;
    site.run("echo three > old/criswitch.toml");
    site.is_silent().await;
    site.reports_once("echo three > etc/criswitch.toml").await;
}
