//! A restart while a backend is down: lists are as before, or an error if criswitch cannot be certain of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use criswitch_cri::codec::cri;
use criswitch_platform::replace::hidden;
use tokio::time::Instant;
use tonic::Code;

use crate::calls::{ID_CALLS, assert_names_the_dead, holds, send, stopped};
use crate::faults::{backends_ready, directly, names, runc_and_kata, state_of, status, text};
use crate::support::{Rig, frame_raw};
use crate::wait;

/// A node where kata has an image, and a pod with a container. criswitch has listed everything.
pub async fn with_pods() -> (Rig, String, String) {
    let rig = runc_and_kata().await;
    rig.run("runc", "plain").await;
    let (pod, container) = rig.run("kata", "boxed").await;
    all(&rig).await;
    (rig, pod, container)
}

/// Makes every write of a file fail.
pub fn block(file: &Path) {
    fs::create_dir_all(hidden(file).unwrap().join("in the way")).unwrap();
}

/// The pods, containers and images that criswitch lists.
pub async fn all(rig: &Rig) -> (Vec<cri::PodSandbox>, Vec<cri::Container>, Vec<cri::Image>) {
    let images = rig
        .images()
        .list_images(cri::ListImagesRequest::default())
        .await;
    let images = images.unwrap().into_inner().images;
    let mut containers = rig.containers().await.unwrap();
    containers.sort_by(|a, b| a.id.cmp(&b.id));
    let mut pods = rig.pods().await.unwrap();
    pods.sort_by(|a, b| a.id.cmp(&b.id));
    (pods, containers, images)
}

/// Stops kata and restarts criswitch.
pub async fn restarted_without_kata(rig: &mut Rig) {
    rig.sim("kata").stop().await;
    rig.restart_switch().await;
}

/// The file with the saved state of a backend.
pub fn state_file(rig: &Rig, name: &str) -> PathBuf {
    let file = find_state_file(rig, name);
    file.unwrap_or_else(|| panic!("no file of {name}")).0
}

/// The path and the content of a backend's file. Wine replaces a file in two steps, with no file in between.
fn find_state_file(rig: &Rig, name: &str) -> Option<(PathBuf, Vec<u8>)> {
    let files = fs::read_dir(rig.state_directory()).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    let backends = paths.filter(|path| path.extension().is_some_and(|it| it == "backend"));
    let mut contents = backends.filter_map(|path| Some((path.clone(), fs::read(&path).ok()?)));
    contents.find(|(_, content)| has(content, &format!("{name}.sock")))
}

fn has(content: &[u8], text: &str) -> bool {
    let mut parts = content.windows(text.len());
    parts.any(|part| part == text.as_bytes())
}

/// Whether the file of a backend contains this text.
pub fn is_saved(rig: &Rig, name: &str, text: &str) -> bool {
    find_state_file(rig, name).is_some_and(|(_, content)| has(&content, text))
}

/// Asserts that every list is an error that names kata.
pub async fn lists_fail(rig: &Rig) {
    for rpc in ["ListPodSandbox", "ListContainers"] {
        let reply = send(rig, rpc, frame_raw(b"")).await;
        assert_names_the_dead(&reply, rig.sim("kata"), rpc);
    }
}

pub async fn lists_heal(rig: &Rig) {
    rig.sim("kata").start();
    let are_whole = async || {
        let pods = rig.pods().await;
        pods.is_ok_and(|pods| names(&pods) == ["boxed", "plain"])
    };
    wait::until(are_whole).await;
}

#[tokio::test]
async fn a_restart_while_a_backend_is_down_changes_no_list() {
    let (mut rig, pod, container) = with_pods().await;
    let before = all(&rig).await;
    for _ in 0..2 {
        restarted_without_kata(&mut rig).await;
        assert_eq!(all(&rig).await, before);
    }
    for call in ID_CALLS {
        let reply = call.send(&rig, call.pick(&pod, &container)).await;
        assert_names_the_dead(&reply, rig.sim("kata"), call.rpc);
    }
    rig.run("runc", "new").await;
    assert_eq!(names(&rig.pods().await.unwrap()), ["boxed", "new", "plain"]);
    rig.sim("kata").start();
    wait::until(async || state_of(&rig, "kata").await["state"] == "ready").await;
    rig.stop(&container).await.unwrap();
    rig.remove_pod(&pod).await.unwrap();
    assert_eq!(names(&rig.pods().await.unwrap()), ["new", "plain"]);
}

#[tokio::test]
async fn the_handler_that_a_pod_was_created_with_is_known_after_a_restart() {
    let crio = crate::support::Sim::new("crio")
        .set(|settings| settings.shows_handlers = crate::support::ShowsHandlers::Nowhere);
    let mut rig = crate::faults::node(
        "start_wait = \"0s\"",
        [crate::support::Sim::new("runc"), crio],
    )
    .await;
    rig.run_pod("crio", "web").await;
    rig.pods().await.unwrap();
    rig.sim("crio").stop().await;
    rig.restart_switch().await;
    assert_eq!(rig.pods().await.unwrap()[0].runtime_handler, "crio");
}

#[tokio::test]
async fn a_pod_that_was_created_without_a_handler_is_known_as_such_after_a_restart() {
    let sims = ["runc", "kata"].map(crate::support::Sim::new);
    let mut rig = crate::faults::node("start_wait = \"0s\"", sims).await;
    let pod = rig.run_pod("", "plain").await;
    rig.run_pod("runc", "named").await;
    let known = async |rig: &Rig| rig.state().await["backends"][0]["defaultPodIds"].clone();
    assert_eq!(known(&rig).await, serde_json::json!([pod]));
    rig.pods().await.unwrap();
    rig.restart_switch().await;
    rig.pods().await.unwrap();
    assert_eq!(known(&rig).await, serde_json::json!([pod]));
}

#[tokio::test]
async fn pods_created_after_the_last_list_are_listed_after_a_restart() {
    let (mut rig, ..) = with_pods().await;
    let (pod, container) = rig.run("kata", "since").await;
    restarted_without_kata(&mut rig).await;
    let (pods, containers, _) = all(&rig).await;
    assert_eq!(names(&pods), ["boxed", "plain", "since"]);
    let listed = pods.iter().find(|listed| listed.id == pod).unwrap();
    let real = rig.sim("kata").pods();
    let real = real.iter().find(|real| real.id == pod).unwrap();
    let expected = cri::PodSandbox {
        created_at: listed.created_at,
        ..real.clone()
    };
    assert_eq!(*listed, expected);
    assert!(containers.iter().any(|listed| listed.id == container));
}

#[tokio::test]
async fn pods_removed_after_the_last_list_are_not_listed_after_a_restart() {
    let (mut rig, pod, container) = with_pods().await;
    let kept = rig.run("kata", "kept").await;
    all(&rig).await;
    rig.remove_pod(&pod).await.unwrap();
    rig.stop(&kept.1).await.unwrap();
    rig.remove(&kept.1).await.unwrap();
    restarted_without_kata(&mut rig).await;
    let (pods, containers, _) = all(&rig).await;
    assert_eq!(names(&pods), ["kept", "plain"]);
    assert!(
        !containers
            .iter()
            .any(|it| [&container, &kept.1].contains(&&it.id))
    );
}

#[tokio::test]
async fn a_pod_created_by_others_is_listed_after_a_restart_if_it_was_listed_before() {
    let (mut rig, ..) = with_pods().await;
    directly(rig.sim("kata"))
        .run_pod("kata", "others")
        .await
        .unwrap();
    all(&rig).await;
    restarted_without_kata(&mut rig).await;
    assert_eq!(
        names(&rig.pods().await.unwrap()),
        ["boxed", "others", "plain"]
    );
}

#[tokio::test]
async fn no_cached_list_of_containers_is_older_than_a_pod_created_by_others() {
    let (mut rig, ..) = with_pods().await;
    directly(rig.sim("kata"))
        .run_pod("kata", "others")
        .await
        .unwrap();
    // A client sees the new pod, but criswitch has never listed the pod's containers.
    rig.sim("kata").hold("ListContainers");
    rig.pods().await.unwrap();
    stopped(&rig, "kata").await;
    for _ in 0..2 {
        assert_eq!(
            names(&rig.pods().await.unwrap()),
            ["boxed", "others", "plain"]
        );
        let reply = send(&rig, "ListContainers", frame_raw(b"")).await;
        assert_names_the_dead(&reply, rig.sim("kata"), "ListContainers");
        restarted_without_kata(&mut rig).await;
    }
}

#[tokio::test]
async fn an_unchanged_list_of_containers_completes_the_state_after_a_new_pod() {
    let (mut rig, ..) = with_pods().await;
    let kata = rig.sim("kata");
    kata.stop().await;
    kata.hold("ListPodSandbox");
    kata.hold("ListContainers");
    kata.start();
    directly(kata).run_pod("kata", "others").await.unwrap();
    kata.release("ListPodSandbox");
    // The state is saved without containers, because their list is older than the pod.
    wait::until(async || is_saved(&rig, "kata", "others")).await;
    kata.release("ListContainers");
    wait::until(async || state_of(&rig, "kata").await["state"] == "ready").await;
    restarted_without_kata(&mut rig).await;
    let (pods, containers, _) = all(&rig).await;
    assert_eq!(names(&pods), ["boxed", "others", "plain"]);
    assert_eq!(containers.len(), 2);
}

#[tokio::test]
async fn a_container_created_by_others_and_seen_by_a_client_is_soon_in_the_cached_list() {
    let (mut rig, pod, _) = with_pods().await;
    let kata = directly(rig.sim("kata"));
    kata.create(&pod, "others").await.unwrap();
    let filter = Some(cri::ContainerFilter {
        pod_sandbox_id: pod.clone(),
        ..Default::default()
    });
    let request = cri::ListContainersRequest { filter };
    let listed = rig.runtime().list_containers(request).await.unwrap();
    assert_eq!(listed.into_inner().containers.len(), 2);
    wait::until(async || is_saved(&rig, "kata", "others")).await;
    for _ in 0..2 {
        stopped(&rig, "kata").await;
        let (_, containers, _) = all(&rig).await;
        assert_eq!(
            containers
                .iter()
                .filter(|it| it.pod_sandbox_id == pod)
                .count(),
            2
        );
        rig.restart_switch().await;
    }
}

/// The ids of the containers in this state, as a client filters them.
async fn in_state(rig: &Rig, state: cri::ContainerState) -> Vec<String> {
    let filter = Some(cri::ContainerFilter {
        state: Some(cri::ContainerStateValue {
            state: state.into(),
        }),
        ..Default::default()
    });
    let request = cri::ListContainersRequest { filter };
    let listed = rig
        .runtime()
        .list_containers(request)
        .await
        .unwrap()
        .into_inner()
        .containers
        .into_iter();
    let mut ids: Vec<_> = listed.map(|container| container.id).collect();
    ids.sort_unstable();
    ids
}

#[tokio::test]
async fn cached_lists_have_the_states_that_later_calls_have_changed() {
    use cri::ContainerState::{ContainerCreated, ContainerExited, ContainerRunning};
    let mut rig = runc_and_kata().await;
    let before = rig.run("kata", "before").await;
    let stopped_pod = rig.run("kata", "stopped").await;
    let listed = rig.create(&before.0, "listed").await;
    let created = rig.create(&before.0, "created").await;
    all(&rig).await;
    let since = rig.create(&before.0, "since").await;
    for container in [&listed, &since] {
        rig.start(container).await.unwrap();
    }
    rig.stop(&created).await.unwrap();
    rig.stop(&before.1).await.unwrap();
    rig.stop_pod(&stopped_pod.0).await.unwrap();
    stopped(&rig, "kata").await;
    let sorted = |mut ids: Vec<String>| {
        ids.sort_unstable();
        ids
    };
    let running = sorted(vec![listed, since]);
    let exited = sorted(vec![before.1, stopped_pod.1]);
    for _ in 0..2 {
        assert_eq!(in_state(&rig, ContainerRunning).await, running);
        assert_eq!(in_state(&rig, ContainerExited).await, exited);
        assert_eq!(in_state(&rig, ContainerCreated).await, [created.as_str()]);
        let pods = rig.pods().await.unwrap();
        let not_ready = pods.iter().filter(|pod| pod.state != 0);
        assert_eq!(names(&not_ready.cloned().collect::<Vec<_>>()), ["stopped"]);
        rig.restart_switch().await;
    }
}

#[cfg(unix)] // A pipe has no links.
#[tokio::test]
async fn a_start_with_another_path_of_a_socket_adds_no_second_backend_even_if_it_is_killed() {
    let (mut rig, ..) = with_pods().await;
    rig.stop_switch().await;
    let register = rig.state_directory().join("backends.register");
    let old = [state_file(&rig, "kata"), register].map(|path| (fs::read(&path).unwrap(), path));
    let link = rig.directory().join("link.sock");
    std::os::unix::fs::symlink(rig.sim("kata").socket(), link).unwrap();
    let sims = rig.sims.clone();
    rig.restart_switch_with(|directory| {
        text("start_wait = \"0s\"", &sims, directory).replace("kata.sock", "link.sock")
    })
    .await;
    rig.stop_switch().await;
    // Restore the older files, as if criswitch had been killed before it wrote the register.
    for (content, path) in old {
        fs::write(path, content).unwrap();
    }
    restarted_without_kata(&mut rig).await;
    assert_eq!(names(&rig.pods().await.unwrap()), ["boxed", "plain"]);
    let state = rig.state().await;
    assert_eq!(state["backends"].as_array().unwrap().len(), 2, "{state}");
}

#[cfg(unix)] // A pipe has no links.
#[tokio::test]
async fn of_two_paths_of_one_socket_the_path_of_the_row_has_the_state_at_a_start() {
    let mut rig = runc_and_kata().await;
    all(&rig).await;
    wait::until(async || find_state_file(&rig, "kata").is_some()).await;
    rig.stop_switch().await;
    let register = rig.state_directory().join("backends.register");
    let old = [state_file(&rig, "kata"), register].map(|path| (fs::read(&path).unwrap(), path));
    let link = rig.directory().join("link.sock");
    std::os::unix::fs::symlink(rig.sim("kata").socket(), link).unwrap();
    let sims = rig.sims.clone();
    rig.restart_switch_with(|directory| {
        text("start_wait = \"0s\"", &sims, directory).replace("kata.sock", "link.sock")
    })
    .await;
    rig.run("kata", "boxed").await;
    all(&rig).await;
    rig.stop_switch().await;
    // Restore the older files, which have no pod, beside the file of the path in the row.
    for (content, path) in old {
        fs::write(path, content).unwrap();
    }
    restarted_without_kata(&mut rig).await;
    assert_eq!(state_of(&rig, "kata").await["pods"], 1);
}

#[tokio::test]
async fn a_backend_added_by_a_reload_that_never_answered_is_omitted_from_lists_across_restarts() {
    let (mut rig, ..) = with_pods().await;
    let sims = rig.sims.clone();
    let with_new = |directory: &str| {
        let table = text("start_wait = \"0s\"", &sims, directory);
        table + &format!("new = \"{directory}/new.sock\"\n")
    };
    rig.reload(with_new).result.unwrap();
    for _ in 0..3 {
        assert_eq!(names(&rig.pods().await.unwrap()), ["boxed", "plain"]);
        rig.restart_switch().await;
    }
}

#[tokio::test]
async fn a_backend_added_by_a_reload_is_saved_before_its_pods_are_listed() {
    // In every second round the backend has no image service, so no list of images triggers a save of the other lists.
    for lacks in [&[][..], &["ListImages"]].repeat(5) {
        let mut rig = crate::topology::reloads::old_alone().await;
        let new = rig.sim("new").clone().lacks(lacks.iter().copied());
        directly(&new).run_pod("runc", "web").await.unwrap();
        let rows = "runc = \"old\"\nkata = \"new\"";
        crate::topology::reloads::reload(&rig, "runc", rows, &["old", "new"]);
        wait::until(async || !rig.pods().await.unwrap().is_empty()).await;
        // The shutdown saves nothing, so the state must be on disk already.
        rig.stop_switch().await;
        rig.sim("new").stop().await;
        rig.restart_switch().await;
        assert_eq!(names(&rig.pods().await.unwrap()), ["web"]);
    }
}

#[tokio::test]
async fn a_restored_pod_is_not_forgotten_by_a_restart() {
    let (mut rig, pod, _) = with_pods().await;
    let checkpoint = cri::CheckpointPodRequest {
        pod_sandbox_id: pod.clone(),
        output_path: "/checkpoints/boxed".to_owned(),
        ..Default::default()
    };
    rig.runtime().checkpoint_pod(checkpoint).await.unwrap();
    rig.remove_pod(&pod).await.unwrap();
    all(&rig).await;
    for rpc in ["ListPodSandbox", "ListContainers"] {
        rig.sim("kata").hold(rpc);
    }
    let restore = cri::RestorePodRequest {
        checkpoint_path: "/checkpoints/boxed".to_owned(),
        runtime_handler: "kata".to_owned(),
        ..Default::default()
    };
    rig.runtime().restore_pod(restore).await.unwrap();
    restarted_without_kata(&mut rig).await;
    lists_fail(&rig).await;
    for rpc in ["ListPodSandbox", "ListContainers"] {
        rig.sim("kata").release(rpc);
    }
    lists_heal(&rig).await;
}

#[tokio::test]
async fn a_retiring_backend_keeps_its_pods_across_restarts() {
    let (mut rig, pod, _) = with_pods().await;
    let runc = [rig.sim("runc").clone()];
    let without = |directory: &str| text("start_wait = \"0s\"", &runc, directory);
    rig.reload(without).result.unwrap();
    restarted_without_kata(&mut rig).await;
    assert_eq!(names(&rig.pods().await.unwrap()), ["boxed", "plain"]);
    rig.sim("kata").start();
    wait::until(async || rig.remove_pod(&pod).await.is_ok()).await;
    rig.restart_switch().await;
    assert_eq!(names(&rig.pods().await.unwrap()), ["plain"]);
    assert!(!backends_ready(&status(&rig).await).contains("kata"));
}

#[tokio::test]
async fn the_last_pod_of_a_retiring_backend_is_removed_from_disk_before_the_reply() {
    // One round with a register that can be written, and one with a register that cannot.
    for can_write in [true, false] {
        let rig = crate::topology::reloads::old_alone().await;
        let pod = rig.run_pod("runc", "web").await;
        crate::topology::reloads::reload(&rig, "runc", "runc = \"new\"", &["new"]);
        wait::until(async || state_of(&rig, "new").await["state"] == "ready").await;
        rig.pods().await.unwrap();
        let file = state_file(&rig, "old");
        if !can_write {
            block(&rig.state_directory().join("backends.register"));
        }
        rig.remove_pod(&pod).await.unwrap();
        assert!(!file.exists(), "the register can be written: {can_write}");
    }
}

#[tokio::test]
async fn a_removed_backend_leaves_the_register_as_soon_as_the_register_can_be_written() {
    let mut rig = crate::topology::reloads::old_alone().await;
    let pod = rig.run_pod("runc", "web").await;
    crate::topology::reloads::reload(&rig, "runc", "runc = \"new\"", &["new"]);
    wait::until(async || state_of(&rig, "new").await["state"] == "ready").await;
    rig.pods().await.unwrap();
    let register = rig.state_directory().join("backends.register");
    let names_old = || has(&fs::read(&register).unwrap(), "old.sock");
    block(&register);
    rig.remove_pod(&pod).await.unwrap();
    assert!(names_old());
    fs::remove_dir_all(hidden(&register).unwrap()).unwrap();
    wait::until(async || !names_old()).await;
    rig.sim("old").stop().await;
    rig.restart_switch().await;
    assert!(rig.pods().await.unwrap().is_empty());
}

#[tokio::test]
async fn lists_are_errors_until_a_retiring_backend_with_a_damaged_file_is_back() {
    let (mut rig, ..) = with_pods().await;
    let runc = [rig.sim("runc").clone()];
    let without = |directory: &str| text("start_wait = \"0s\"", &runc, directory);
    rig.reload(without).result.unwrap();
    rig.sim("kata").stop().await;
    rig.stop_switch().await;
    fs::write(state_file(&rig, "kata"), "nonsense").unwrap();
    for _ in 0..2 {
        rig.restart_switch().await;
        let failed = rig.pods().await.unwrap_err();
        assert_eq!(failed.code(), Code::Unavailable);
        assert!(failed.message().contains("kata.sock"), "{failed}");
    }
    lists_heal(&rig).await;
}

#[tokio::test]
async fn version_and_status_wait_for_the_default_alone_and_lists_briefly_for_a_known_backend() {
    let (mut rig, ..) = with_pods().await;
    rig.sim("kata").stop().await;
    let sims = rig.sims.clone();
    rig.restart_switch_with(|directory| text("start_wait = \"1h\"", &sims, directory))
        .await;
    let begun = Instant::now();
    status(&rig).await;
    let version = rig.runtime().version(cri::VersionRequest::default()).await;
    assert_eq!(version.unwrap().into_inner().runtime_name, "runc");
    assert!(
        begun.elapsed() < Duration::from_millis(100),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(names(&rig.pods().await.unwrap()), ["boxed", "plain"]);
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
}

/// How long kata has been down. No age is larger than the time since the boot, which may have been minutes ago.
const DOWN: Duration = Duration::from_secs(120);

/// A restart after kata has been down for [`DOWN`].
async fn down_before_the_start() -> Rig {
    let (mut rig, ..) = with_pods().await;
    rig.sim("kata").stop().await;
    rig.stop_switch().await;
    let file = state_file(&rig, "kata");
    let file = fs::File::options().write(true).open(file).unwrap();
    file.set_modified(std::time::SystemTime::now() - DOWN)
        .unwrap();
    rig.restart_switch().await;
    rig.pods().await.unwrap();
    rig
}

#[tokio::test]
async fn the_age_of_a_cached_list_counts_from_the_backends_last_reply() {
    let rig = down_before_the_start().await;
    let age = state_of(&rig, "kata").await["staleListAgeSeconds"]
        .as_u64()
        .unwrap();
    assert!((120..220).contains(&age), "{age}");
}

#[tokio::test]
async fn a_backend_that_is_down_at_the_start_is_down_since_its_last_reply() {
    let rig = down_before_the_start().await;
    let kata = state_of(&rig, "kata").await;
    assert_eq!(kata["state"], "down");
    let since = humantime::parse_rfc3339(kata["since"].as_str().unwrap()).unwrap();
    let age = since.elapsed().unwrap().as_secs();
    assert!((120..220).contains(&age), "{kata}");
    rig.sim("kata").start();
    wait::until(async || state_of(&rig, "kata").await["state"] == "ready").await;
    let kata = state_of(&rig, "kata").await;
    let since = humantime::parse_rfc3339(kata["since"].as_str().unwrap()).unwrap();
    assert!(since.elapsed().unwrap().as_secs() < 100, "{kata}");
}

#[tokio::test]
async fn a_cached_list_is_served_until_the_backend_is_back_unless_a_limit_is_set() {
    for (row, served) in [("", true), (", stale_lists = \"5m\"", false)] {
        let sims = ["runc", "kata"].map(crate::support::Sim::new);
        let rig = Rig::with_config(sims, |directory| {
            format!(
                "default_handler = \"runc\"\nstart_wait = \"0s\"\n[handlers]\nrunc = \"{directory}/runc.sock\"\nkata = \"kata\"\n\
                 [backends]\nkata = {{ socket = \"{directory}/kata.sock\"{row} }}\n"
            )
        })
        .await;
        rig.run("kata", "boxed").await;
        all(&rig).await;
        stopped(&rig, "kata").await;
        crate::support::clock::later(Duration::from_secs(30 * 24 * 3600)).await;
        let reply = send(&rig, "ListPodSandbox", frame_raw(b"")).await;
        assert_eq!(
            reply.code() == Code::Ok,
            served,
            "{row:?}: {}",
            reply.text()
        );
        assert_eq!(holds(&reply, "boxed"), served);
    }
}

#[tokio::test]
async fn on_a_node_where_criswitch_never_ran_lists_need_every_backend() {
    let rig = Rig::with_config([crate::support::Sim::new("runc")], |directory| {
        format!(
            "default_handler = \"runc\"\nstart_wait = \"0s\"\n[handlers]\nrunc = \"{directory}/runc.sock\"\n\
             kata = \"{directory}/no.sock\"\n"
        )
    })
    .await;
    let failed = rig.pods().await.unwrap_err();
    assert!(failed.message().contains("\"kata\""), "{failed}");
}

#[tokio::test]
async fn lists_are_errors_if_the_file_of_a_backend_that_is_not_required_is_damaged() {
    for first in [true, false] {
        let sims = ["runc", "kata"].map(crate::support::Sim::new);
        let mut rig = Rig::with_config(sims, |directory| {
            format!(
                "default_handler = \"runc\"\nstart_wait = \"0s\"\n[handlers]\nrunc = \"{directory}/runc.sock\"\nkata = \"kata\"\n\
                 [backends]\nkata = {{ socket = \"{directory}/kata.sock\", required = false }}\n"
            )
        })
        .await;
        rig.run("kata", "boxed").await;
        all(&rig).await;
        rig.sim("kata").stop().await;
        rig.stop_switch().await;
        if first {
            rig.restart_switch_without_state().await;
            assert!(rig.pods().await.unwrap().is_empty());
            continue;
        }
        fs::write(state_file(&rig, "kata"), "nonsense").unwrap();
        for _ in 0..2 {
            rig.restart_switch().await;
            lists_fail(&rig).await;
        }
    }
}
