//! What changes nothing that would be read, and so tells nothing.

use std::fs::File;
use std::io::Write;

use crate::site::{PLAIN, Site};

#[tokio::test]
async fn a_touch_or_the_same_bytes_again_are_not_told() {
    let mut site = Site::of(PLAIN);
    site.keeps_quiet_about("touch etc/criswitch.toml etc/conf.d/10-a.toml etc/conf.d")
        .await;
    site.keeps_quiet_about("cp etc/criswitch.toml staged; cp staged etc/criswitch.toml")
        .await;
    site.keeps_quiet_about("cp etc/criswitch.toml staged; mv staged etc/criswitch.toml")
        .await;
    site.keeps_quiet_about("echo b > etc/conf.d/10-a.toml; echo a > etc/conf.d/10-a.toml")
        .await;
}

#[tokio::test]
async fn files_that_would_not_be_read_are_not_told() {
    let mut site = Site::of(PLAIN);
    let editors = "echo 1 > .10-a.toml.swp; echo 2 > .hidden.toml; echo 3 > 10-a.toml~";
    site.keeps_quiet_about(&format!("cd etc/conf.d; {editors}"))
        .await;
    site.keeps_quiet_about("cd etc/conf.d; echo 1 > README; mkdir sub; echo 2 > sub/a.toml")
        .await;
    site.keeps_quiet_about("echo 1 > etc/other.toml; echo 2 > criswitch.toml")
        .await;
}

#[tokio::test]
async fn a_swap_file_that_an_editor_keeps_open_holds_nothing_up() {
    let mut site = Site::of(PLAIN);
    let mut swap = File::create(site.path("etc/conf.d/.10-a.toml.swp")).unwrap();
    swap.write_all(b"swap").unwrap();
    site.tells_of("echo b > etc/conf.d/10-a.toml").await;
    drop(swap);
    site.is_silent().await;
}

#[tokio::test]
async fn a_directory_that_goes_and_comes_back_at_once_is_not_told() {
    let mut site = Site::of(PLAIN);
    site.keeps_quiet_about("mv etc gone; mv gone etc").await;
    site.keeps_quiet_about("cp -r etc copy; rm -r etc; mv copy etc")
        .await;
}
