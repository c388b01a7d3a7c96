//! Events that change no file of the configuration, so criswitch reports no change.

use crate::site::{PLAIN, Site};

#[tokio::test(start_paused = true)]
async fn files_that_are_not_read_bring_no_report() {
    let site = Site::of(PLAIN);
    let editors = "echo 1 > .10-a.toml.swp; echo 2 > .hidden.toml; echo 3 > 10-a.toml~";
    site.ignores(&format!("cd etc/conf.d; {editors}")).await;
    site.ignores("cd etc/conf.d; echo 1 > README; mkdir sub; echo 2 > sub/a.toml")
        .await;
    site.ignores("echo 1 > etc/other.toml; echo 2 > criswitch.toml")
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_is_moved_away_and_back_brings_no_report() {
    let site = Site::of(PLAIN);
    site.ignores("mv etc gone; mv gone etc").await;
    site.ignores("mv etc/conf.d gone; mv gone etc/conf.d").await;
}
