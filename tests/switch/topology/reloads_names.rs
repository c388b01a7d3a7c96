//! The names of handlers and backends before and after a reload.

use crate::faults::state_of;
use crate::support::{Rig, Sim};
use crate::topology::reloads::{old_alone, owner, reload, run_when_ready};

#[tokio::test]
async fn a_handler_that_moves_within_its_backend_is_reported_with_the_backends_names() {
    let rig = old_alone().await;
    let row = |handler| format!("runc = {{ backend = \"old\", handler = {handler:?} }}");
    let changes = reload(&rig, "runc", &row("kata"), &["old"]);
    assert_eq!(
        changes.to_string(),
        "handler moved: runc from old to old as kata"
    );
    let changes = reload(&rig, "runc", &row(""), &["old"]);
    let shown = "handler moved: runc from old as kata to old (its own default)";
    assert_eq!(changes.to_string(), shown);
}

#[tokio::test]
async fn a_pod_keeps_its_handler_name_after_a_rename_and_new_pods_get_the_new_name() {
    let rig = old_alone().await;
    rig.run_pod("runc", "a").await;
    let std = "std = { backend = \"old\", handler = \"runc\" }";
    reload(&rig, "std", std, &["old"]);
    rig.run_pod("std", "b").await;
    let pods = rig.pods().await.unwrap();
    let mut handlers: Vec<_> = pods.into_iter().map(|pod| pod.runtime_handler).collect();
    handlers.sort();
    assert_eq!(handlers, ["runc", "std"]);
}

#[tokio::test]
async fn a_socket_under_another_name_is_the_same_backend() {
    let rig = old_alone().await;
    let pod = rig.run_pod("runc", "web").await;
    let outcome = rig.reload(|directory| {
        format!("default_handler = \"runc\"\n[handlers]\nrunc = \"stock\"\n[backends]\nstock = \"{directory}/old.sock\"\n")
    });
    let changes = outcome.result.unwrap();
    assert_eq!(
        (&changes.backends_added, &changes.backends_removed),
        (&vec![], &vec![])
    );
    let shown = state_of(&rig, "stock").await;
    assert_eq!(
        (&shown["state"], &shown["pods"], &shown["transitions"]),
        (&"ready".into(), &1.into(), &1.into())
    );
    rig.stop_pod(&pod).await.unwrap();
}

#[cfg(unix)] // A pipe has no links.
#[tokio::test]
async fn a_row_keeps_the_backend_of_its_own_path_if_another_path_becomes_a_link_to_it() {
    let rig = old_alone().await;
    reload(&rig, "runc", "runc = \"new\"", &["old", "new"]);
    run_when_ready(&rig, "runc", "web").await;
    rig.sim("old").stop().await;
    let [old, new] = ["old", "new"].map(|name| rig.sim(name).socket());
    std::fs::remove_file(&old).unwrap();
    std::os::unix::fs::symlink(new, old).unwrap();
    let changes = reload(&rig, "runc", "runc = \"new\"", &["new"]);
    assert_eq!(changes.to_string(), "backend removed: old");
    assert_eq!(state_of(&rig, "new").await["pods"], 1);
    assert_eq!(state_of(&rig, "new").await["transitions"], 1);
}

#[cfg(unix)] // A pipe has no links.
#[tokio::test]
async fn a_socket_under_another_path_is_the_same_backend() {
    let mut rig = old_alone().await;
    rig.run_pod("runc", "web").await;
    let outcome = rig.reload(|directory| {
        std::os::unix::fs::symlink(directory, format!("{directory}/link")).unwrap();
        format!("default_handler = \"runc\"\n[handlers]\nrunc = \"old\"\n[backends]\nold = \"{directory}/link/old.sock\"\n")
    });
    let changes = outcome.result.unwrap();
    assert_eq!(
        (&changes.backends_added, &changes.backends_removed),
        (&vec![], &vec![])
    );
    // criswitch still dials the old path. A start uses the path in the row.
    let warning = changes.to_string();
    assert!(
        warning.starts_with("old path in use: backend old"),
        "{warning}"
    );
    assert_eq!(rig.pods().await.unwrap().len(), 1);
    assert_eq!(state_of(&rig, "old").await["transitions"], 1);
    rig.restart_switch().await;
    assert_eq!(rig.pods().await.unwrap().len(), 1);
    assert_eq!(
        rig.reload_file().result.unwrap().to_string(),
        "nothing changed"
    );
}

#[tokio::test]
async fn another_socket_under_the_same_name_is_another_backend() {
    let rig = old_alone().await;
    let before = rig.run_pod("runc", "before").await;
    let outcome = rig.reload(|directory| {
        format!("default_handler = \"runc\"\n[handlers]\nrunc = \"old\"\n[backends]\nold = \"{directory}/new.sock\"\n")
    });
    let changes = outcome.result.unwrap();
    assert_eq!(changes.backends_retiring[0].name, "old-old");
    let renamed = "backend renamed: old is now old-old, because the name old has another socket";
    assert!(changes.lines.contains(&renamed.to_owned()), "{changes}");
    let after = run_when_ready(&rig, "runc", "after").await;
    assert_eq!((owner(&rig, &before), owner(&rig, &after)), ("old", "new"));
    assert_eq!(state_of(&rig, "old-old").await["pods"], 1);
}

#[tokio::test]
async fn a_backend_whose_name_is_given_to_another_socket_gets_a_different_valid_name() {
    let longest = "o".repeat(63);
    let sims = [Sim::new("old"), Sim::new("new")].map(|sim| sim.handlers(["runc"]));
    let text = |directory: &str, socket| {
        format!(
            "default_handler = \"runc\"\nstart_wait = \"0s\"\n[handlers]\nrunc = {longest:?}\n[backends]\n{longest} = \"{directory}/{socket}.sock\"\n"
        )
    };
    let rig = Rig::with_config(sims, |directory| text(directory, "old")).await;
    rig.run_pod("runc", "before").await;
    let outcome = rig.reload(|directory| text(directory, "new"));
    let changes = outcome.result.unwrap();
    let name = &changes.backends_retiring[0].name;
    assert_eq!(*name, format!("{}-old", &longest[..50]));
}
