//! Symlinks, as a ConfigMap's mount has them, and other names of the same file.

use crate::site::{PLAIN, Site};

/// What the kubelet does for a ConfigMap in the directory `$1`: the files of `$2`, swapped in as a whole.
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

#[tokio::test]
async fn each_swap_of_a_config_map_is_told_once() {
    let mut site = Site::of(&swap(
        "mkdir etc first; echo one > first/criswitch.toml; swap etc first",
    ));
    for version in ["second", "third"] {
        let next = format!(
            "mkdir {version}; echo {version} > {version}/criswitch.toml; swap etc {version}"
        );
        site.tells_of(&swap(&next)).await;
    }
}

#[tokio::test]
async fn a_swap_to_the_same_bytes_is_not_told() {
    let mut site = Site::of(&swap(
        "mkdir etc first; echo one > first/criswitch.toml; swap etc first",
    ));
    let same = "mkdir second; echo one > second/criswitch.toml; swap etc second";
    site.keeps_quiet_about(&swap(same)).await;
}

#[tokio::test]
async fn drop_ins_in_a_config_map_of_their_own_are_told_when_they_come_change_and_go() {
    let mut site = Site::of(&swap(
        "mkdir -p etc/conf.d first; echo one > etc/criswitch.toml; swap etc/conf.d first",
    ));
    let added = "mkdir second; echo a > second/10-a.toml; swap etc/conf.d second";
    site.tells_of(&swap(added)).await;
    let changed = "mkdir third; echo b > third/10-a.toml; swap etc/conf.d third";
    site.tells_of(&swap(changed)).await;
    let gone = "mkdir fourth; swap etc/conf.d fourth";
    site.tells_of(&swap(gone)).await;
}

#[tokio::test]
async fn a_directory_elsewhere_is_told_when_it_changes_and_when_the_link_to_it_does() {
    let mut site = Site::of(
        "mkdir etc one two; echo one > etc/criswitch.toml; echo a > one/a.toml; echo b > two/a.toml
        ln -s ../one etc/conf.d",
    );
    site.tells_of("echo c > one/c.toml").await;
    site.tells_of("ln -sfn $PWD/two etc/conf.d").await;
    site.run("echo d > one/c.toml");
    site.is_silent().await;
    site.tells_of("echo d > two/a.toml").await;
}

#[tokio::test]
async fn the_directory_of_the_file_may_be_a_link_that_is_swapped() {
    let mut site = Site::of(
        "mkdir -p releases/1 releases/2; ln -s releases/1 etc
        echo one > releases/1/criswitch.toml; echo two > releases/2/criswitch.toml",
    );
    site.tells_of("ln -sfn releases/2 etc").await;
    site.tells_of("echo three > releases/2/criswitch.toml")
        .await;
}

#[tokio::test]
async fn the_target_of_a_link_is_told_when_it_is_rewritten_replaced_or_moved_with_its_directory() {
    let mut site = Site::of(
        "mkdir -p etc far/away; echo one > far/away/real
        ln -s ../far/../far/away/real etc/criswitch.toml",
    );
    site.tells_of("echo two > far/away/real").await;
    site.tells_of("echo three > new; mv new far/away/real")
        .await;
    site.tells_of("mv far near").await;
    site.tells_of("mv near far").await;
}

#[tokio::test]
async fn the_target_of_a_drop_ins_link_is_told_when_it_is_rewritten() {
    let mut site = Site::of(&format!(
        "{PLAIN}; echo kata > kata; ln -s ../../kata etc/conf.d/90-kata.toml"
    ));
    site.tells_of("echo more > kata").await;
}

#[tokio::test]
async fn a_link_made_to_a_whole_file_is_told_as_nobody_has_to_write_it() {
    let mut site = Site::of(&format!("{PLAIN}; echo kata > kata"));
    site.tells_of("ln kata etc/conf.d/90-kata.toml").await;
    site.tells_of("ln -s ../../kata etc/conf.d/91-kata.toml")
        .await;
}

#[tokio::test]
async fn a_link_that_leads_back_through_the_main_files_directory_hides_nothing_there() {
    let mut site = Site::of(&format!(
        "{PLAIN}; mkdir etc/sub; echo k > etc/sub/k; ln -s $PWD/etc/sub/k etc/conf.d/90-k.toml"
    ));
    site.tells_of("rm etc/criswitch.toml").await;
    site.tells_of("echo two > etc/criswitch.toml").await;
}

#[tokio::test]
async fn a_link_to_nothing_is_told_when_its_target_comes() {
    let mut site = Site::of("mkdir etc; ln -s ../far/real etc/criswitch.toml");
    site.tells_of("mkdir far; echo one > far/real").await;
}

#[tokio::test]
async fn links_in_a_circle_are_told_when_they_end_somewhere() {
    let mut site =
        Site::of("mkdir etc; ln -s there etc/criswitch.toml; ln -s criswitch.toml etc/there");
    site.tells_of("rm etc/there; echo one > etc/there").await;
}

#[tokio::test]
async fn a_write_through_another_name_of_the_file_is_told() {
    let mut site = Site::of(&format!(
        "{PLAIN}; ln etc/criswitch.toml other; ln etc/conf.d/10-a.toml a"
    ));
    site.tells_of("echo two > other").await;
    site.tells_of("echo b > a").await;
}
