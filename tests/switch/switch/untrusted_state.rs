//! State files that criswitch does not trust: damaged files, and those of another boot or machine.

use std::fs;

use bytes::Bytes;
use criswitch::store::{Boot, Saved};
use criswitch_cri::codec::cri;
use prost::Message;
use tonic::Code;
use twox_hash::XxHash3_64;

use crate::calls::{assert_names_the_dead, send};
use crate::faults::{names, status, text};
use crate::logged::Logged;
use crate::support::{Rig, frame_raw};
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

/// Changes the saved state of a backend. The file is still as criswitch writes it.
fn change(rig: &Rig, name: &str, change: impl FnOnce(&mut Saved)) {
    let file = state_file(rig, name);
    let content = fs::read(&file).unwrap();
    let start = content.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let mut saved = Saved::decode(&content[start + 8..]).unwrap();
    change(&mut saved);
    let saved = saved.encode_to_vec();
    let hash = XxHash3_64::oneshot(&saved).to_le_bytes();
    fs::write(&file, [&content[..start], &hash, &saved].concat()).unwrap();
}

/// An earlier version of criswitch may have written what this version does not accept.
#[tokio::test]
async fn a_saved_reply_that_no_client_can_decode_is_not_served_after_a_restart() {
    // The id of an item is not UTF-8, nor is the name of a runtime. The features of a handler are cut off.
    let item = Bytes::from_static(b"\x0a\x03\x0a\x01\xff");
    let version = Bytes::from_static(b"\x12\x01\xff");
    let reported = Bytes::from_static(b"\x1a\x09\x0a\x04kata\x12\x01\x08");
    for rpc in ["ListPodSandbox", "ListContainers", "ListImages"] {
        let logged = Logged::here();
        let (mut rig, ..) = with_pods().await;
        rig.sim("kata").stop().await;
        rig.stop_switch().await;
        let item = item.clone();
        change(&rig, "kata", |saved| match rpc {
            "ListPodSandbox" => saved.pods = Some(item),
            "ListContainers" => saved.containers = Some(item),
            _ => saved.images = Some(item),
        });
        rig.restart_switch().await;
        let lines = logged.lines(&["ERROR", "kata", "a saved list cannot be used"]);
        assert_eq!(lines.len(), 1, "{rpc}: {}", logged.text());
        if rpc != "ListImages" {
            let reply = send(&rig, rpc, frame_raw(b"")).await;
            assert_names_the_dead(&reply, rig.sim("kata"), rpc);
        } else {
            let request = cri::ListImagesRequest::default();
            let failed = rig.images().list_images(request).await.unwrap_err();
            assert_eq!(failed.code(), Code::Unavailable, "{failed}");
        }
    }
    let (mut rig, ..) = with_pods().await;
    rig.sim("runc").stop().await;
    rig.sim("kata").stop().await;
    rig.stop_switch().await;
    change(&rig, "runc", |saved| saved.version = version);
    change(&rig, "kata", |saved| saved.status = reported);
    rig.restart_switch().await;
    let shown = send(&rig, "Version", frame_raw(b"")).await;
    assert_eq!(shown.code(), Code::Unavailable);
    assert!(!status(&rig).await.runtime_handlers.is_empty());
}
