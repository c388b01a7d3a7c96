//! State files that criswitch does not trust: damaged files, and those of another boot or machine.

use std::fs;

use criswitch::store::Boot;

use crate::faults::{names, text};
use crate::switch::saved_state::{
    lists_fail, lists_heal, restarted_without_kata, state_file, with_pods,
};

/// A way to damage a file.
type Damage = fn(&mut Vec<u8>);

#[tokio::test]
async fn a_damaged_file_is_set_aside_and_lists_are_errors_until_the_backend_is_back() {
    let damages: [(&str, Damage); 6] = [
        ("empty", Vec::clear),
        ("cut off", |content| content.truncate(content.len() / 2)),
        ("torn", |content| {
            let half = content.len() / 2;
            content[half..].fill(0);
        }),
        ("one bit", |content| *content.last_mut().unwrap() ^= 1),
        ("of another format", |content| content[0] ^= 1),
        ("other bytes", |content| *content = b"nonsense".repeat(100)),
    ];
    for (what, damage) in damages {
        let (mut rig, ..) = with_pods().await;
        rig.sim("kata").stop().await;
        rig.stop_switch().await;
        let file = state_file(&rig, "kata");
        let mut content = fs::read(&file).unwrap();
        damage(&mut content);
        fs::write(&file, content).unwrap();
        rig.restart_switch().await;
        lists_fail(&rig).await;
        let problems = rig.state_problems().join("\n");
        assert!(
            problems.contains(file.to_str().unwrap()),
            "{what}: {problems}"
        );
        assert!(file.with_extension("backend.bad").exists(), "{what}");
        lists_heal(&rig).await;
    }
}

#[cfg(unix)] // Only a test for Unix uses this.
/// A way to make a file untrusted, given its content of an earlier run.
type Spoil = fn(&std::path::PathBuf, &[u8]);

#[cfg(unix)] // Windows has no file modes.
#[tokio::test]
async fn a_file_that_is_missing_outdated_unreadable_or_writable_by_others_is_not_trusted() {
    let spoil: [(&str, Spoil); 4] = [
        ("lost", |file, _| fs::remove_file(file).unwrap()),
        ("old", |file, old| fs::write(file, old).unwrap()),
        ("open", |file, _| {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(file, fs::Permissions::from_mode(0o666)).unwrap();
        }),
        ("unreadable", |file, _| {
            fs::remove_file(file).unwrap();
            fs::create_dir(file).unwrap();
        }),
    ];
    for (what, spoil) in spoil {
        let (mut rig, ..) = with_pods().await;
        let old = fs::read(state_file(&rig, "kata")).unwrap();
        rig.restart_switch().await;
        rig.run("kata", "since").await;
        crate::switch::saved_state::all(&rig).await;
        rig.sim("kata").stop().await;
        rig.stop_switch().await;
        spoil(&state_file(&rig, "kata"), &old);
        for _ in 0..2 {
            rig.restart_switch().await;
            lists_fail(&rig).await;
        }
        rig.sim("kata").start();
        crate::wait::until(async || rig.pods().await.is_ok()).await;
        let pods = rig.pods().await.unwrap();
        assert_eq!(names(&pods), ["boxed", "plain", "since"], "{what}");
    }
}

#[tokio::test]
async fn after_a_reboot_a_backend_that_is_down_counts_as_empty_after_start_wait() {
    let (mut rig, ..) = with_pods().await;
    rig.sim("kata").stop().await;
    rig.boot.id = "second".to_owned();
    for _ in 0..2 {
        rig.restart_switch().await;
        assert_eq!(names(&rig.pods().await.unwrap()), ["plain"]);
    }
    lists_heal(&rig).await;
    restarted_without_kata(&mut rig).await;
    assert_eq!(names(&rig.pods().await.unwrap()), ["boxed", "plain"]);
}

#[tokio::test]
async fn after_a_reboot_lists_wait_for_backends_up_to_start_wait() {
    let (mut rig, ..) = with_pods().await;
    rig.sim("kata").stop().await;
    rig.boot.id = "second".to_owned();
    let sims = rig.sims.clone();
    rig.restart_switch_with(|directory| text("start_wait = \"1h\"", &sims, directory))
        .await;
    let mut listed = std::pin::pin!(rig.pods());
    tokio::select! {
        _ = &mut listed => panic!("listed without kata"),
        answered = (*rig).run_pod("runc", "meanwhile") => drop(answered.unwrap()),
    }
    rig.sim("kata").start();
    assert_eq!(
        names(&listed.await.unwrap()),
        ["boxed", "meanwhile", "plain"]
    );
}

#[tokio::test]
async fn the_state_of_another_machine_is_ignored() {
    let (mut rig, ..) = with_pods().await;
    rig.sim("kata").stop().await;
    rig.boot = Boot {
        id: "other".to_owned(),
        machine: "other".to_owned(),
    };
    rig.restart_switch().await;
    lists_fail(&rig).await;
    lists_heal(&rig).await;
}
