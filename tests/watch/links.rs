//! Symbolic links, as in the mount of a ConfigMap, and hard links.

use crate::site::{PLAIN, Site};

/// Replaces all files of the ConfigMap in the directory `$1` with the files of `$2` at once, as the kubelet does.
const SWAP: &str = r#"swap() {
    cp -r $2 $1/..$2; ln -s ..$2 $1/..data_tmp; old=$(readlink $1/..data || :)
    mv -T $1/..data_tmp $1/..data; [ -z "$old" ] || rm -r $1/$old
    for file in $2/*.toml; do [ ! -e $file ] || ln -sfn ..data/${file##*/} $1/${file##*/}; done
    for link in $1/*.toml; do [ -e $link ] || rm -f $link; done
}
"#;

fn swap(rest: &str) -> String {
    format!("{SWAP}{rest}")
}

#[tokio::test(start_paused = true)]
async fn each_swap_of_a_config_map_is_reported_once() {
    let mut site = Site::of(&swap(
        "mkdir etc first; echo one > first/criswitch.toml; swap etc first",
    ));
    for version in ["second", "third"] {
        let next = format!(
            "mkdir {version}; echo {version} > {version}/criswitch.toml; swap etc {version}"
        );
        site.reports_once(&swap(&next)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn drop_ins_in_a_config_map_of_their_own_are_reported_when_they_come_change_and_go() {
    let mut site = Site::of(&swap(
        "mkdir -p etc/conf.d first; echo one > etc/criswitch.toml; swap etc/conf.d first",
    ));
    let added = "mkdir second; echo a > second/10-a.toml; swap etc/conf.d second";
    site.reports_once(&swap(added)).await;
    let changed = "mkdir third; echo b > third/10-a.toml; swap etc/conf.d third";
    site.reports_once(&swap(changed)).await;
    let gone = "mkdir fourth; swap etc/conf.d fourth";
    site.reports_once(&swap(gone)).await;
}

#[tokio::test(start_paused = true)]
async fn a_directory_elsewhere_is_reported_when_it_changes_and_when_the_link_to_it_does() {
    let mut site = Site::of(
        "mkdir etc one two; echo one > etc/criswitch.toml; echo a > one/a.toml; echo b > two/a.toml
        ln -s ../one etc/conf.d",
    );
    site.reports_once("echo c > one/c.toml").await;
    site.reports_once("ln -sfn $PWD/two etc/conf.d").await;
    site.run("echo d > one/c.toml");
    site.is_silent().await;
    site.reports_once("echo d > two/a.toml").await;
}

#[tokio::test(start_paused = true)]
async fn the_directory_of_the_file_may_be_a_link_that_is_swapped() {
    let mut site = Site::of(
        "mkdir -p releases/1 releases/2; ln -s releases/1 etc
        echo one > releases/1/criswitch.toml; echo two > releases/2/criswitch.toml",
    );
    site.reports_once("ln -sfn releases/2 etc").await;
    site.reports_once("echo three > releases/2/criswitch.toml")
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_target_of_a_link_is_reported_when_it_is_rewritten_replaced_or_moved_with_its_directory()
 {
    let mut site = Site::of(
        "mkdir -p etc far/away; echo one > far/away/real
        ln -s ../far/../far/away/real etc/criswitch.toml",
    );
    site.reports_once("echo two > far/away/real").await;
    site.reports_once("echo three > new; mv new far/away/real")
        .await;
    site.reports_once("mv far near").await;
    site.reports_once("mv near far").await;
}

#[tokio::test(start_paused = true)]
async fn the_target_of_a_drop_ins_link_is_reported_when_it_is_rewritten() {
    let mut site = Site::of(&format!(
        "{PLAIN}; echo kata > kata; ln -s ../../kata etc/conf.d/90-kata.toml"
    ));
    site.reports_once("echo more > kata").await;
}

#[tokio::test(start_paused = true)]
async fn a_link_to_a_file_is_reported() {
    let mut site = Site::of(&format!("{PLAIN}; echo kata > kata"));
    site.reports_once("ln kata etc/conf.d/90-kata.toml").await;
    site.reports_once("ln -s ../../kata etc/conf.d/91-kata.toml")
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_link_that_leads_back_through_the_main_files_directory_hides_nothing_there() {
    let mut site = Site::of(&format!(
        "{PLAIN}; mkdir etc/sub; echo k > etc/sub/k; ln -s $PWD/etc/sub/k etc/conf.d/90-k.toml"
    ));
    site.reports_once("rm etc/criswitch.toml").await;
    site.reports_once("echo two > etc/criswitch.toml").await;
}

#[tokio::test(start_paused = true)]
async fn a_link_to_nothing_is_reported_when_its_target_comes() {
    let mut site = Site::of("mkdir etc; ln -s ../far/real etc/criswitch.toml");
    site.reports_once("mkdir far; echo one > far/real").await;
}

#[tokio::test(start_paused = true)]
async fn links_in_a_circle_are_reported_when_they_end_somewhere() {
    let mut site =
        Site::of("mkdir etc; ln -s there etc/criswitch.toml; ln -s criswitch.toml etc/there");
    site.reports_once("rm etc/there; echo one > etc/there")
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_write_through_another_name_of_the_file_is_reported() {
    let mut site = Site::of(&format!(
        "{PLAIN}; ln etc/criswitch.toml other; ln etc/conf.d/10-a.toml a"
    ));
    site.reports_once("echo two > other").await;
    site.reports_once("echo b > a").await;
}
