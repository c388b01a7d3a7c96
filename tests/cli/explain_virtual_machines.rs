//! `explain -f` for the virtual machines of Kata Containers: files that they only copy, and their size.

use serde_json::{Value, json};

use crate::explain_files::{Three, configured, ids, of};

#[tokio::test]
async fn files_that_a_virtual_machine_only_copies_are_no_place_for_data() {
    let node = Three::start();
    let kata_sim = &node.sims[2];
    let claim = "containers: [{ name: c, image: i, volumeMounts: [{ name: v, mountPath: /v }] }], \
                 volumes: [{ name: v, persistentVolumeClaim: { claimName: v } }]";
    let options = |path: &str| {
        json!({
            "runtimeType": "io.containerd.kata.v2",
            "privileged_without_host_devices": true,
            "options": { "ConfigPath": path },
        })
    };
    node.file("root/opt/a.toml", "[hypervisor.qemu]\nshared_fs = 'none'\n");
    node.file("root/opt/b.toml", "[hypervisor.firecracker]\npath = '/x'\n");
    node.file(
        "root/opt/c.toml",
        "[hypervisor.clh]\nshared_fs = 'virtio-fs'\n",
    );
    for (path, fits) in [
        ("/opt/a.toml", json!(false)),
        ("/opt/b.toml", json!(false)),
        ("/opt/c.toml", json!(true)),
        ("/opt/configuration-qemu.toml", json!(true)),
        ("/opt/configuration-qemu-snp.toml", json!(false)),
        ("/opt/configuration-qemu-nvidia-gpu.toml", Value::Null),
    ] {
        configured(kata_sim, "kata-qemu", options(path));
        let pod = node.pod(claim).await;
        assert_eq!(of(&pod, "kata")["fits"], fits, "{path}");
        // A device is not copied, but Kata Containers may be unable to pass it on.
        let device = claim.replace("volumeMounts", "volumeDevices");
        let pod = node
            .pod(&device.replace("mountPath: /v", "devicePath: /dev/v"))
            .await;
        let fits = Some(&fits).filter(|fits| **fits == true);
        assert_eq!(of(&pod, "kata")["fits"], json!(fits), "{path}");
    }
    let set = "{ apiVersion: apps/v1, kind: StatefulSet, metadata: { name: s }, spec: {
        volumeClaimTemplates: [{ metadata: { name: v } }], template: { spec: { volumes: [{ name: w, emptyDir: {} }],
        containers: [{ name: c, image: c, volumeMounts: [{ name: v, mountPath: /v }] }] } } } }";
    configured(kata_sim, "kata-qemu", options("/opt/a.toml"));
    let pod = node.only_pod(set).await;
    assert_eq!(of(&pod, "kata")["fits"], false);
    assert_eq!(
        of(&pod, "kata")["reasons"][0]["fields"],
        json!(["spec.volumeClaimTemplates[0]"])
    );
    let part = "volumeMounts: [{ name: v, mountPath: /v, subPath: a }]";
    let parts = format!(
        "containers: [{{ name: c, image: i, {part} }}, {{ name: d, image: i, {part} }}], volumes: [{{ name: v, emptyDir: {{}} }}]"
    );
    let pod = node.pod(&parts).await;
    assert_eq!(ids(&pod, "kata", "reasons"), ["kata-copied-parts"]);
    // Kata Containers merges the files in config.d, but explain does not.
    node.file("root/opt/config.d/10.toml", "shared_fs = 'none'\n");
    configured(kata_sim, "kata-qemu", options("/opt/c.toml"));
    let pod = node.pod(claim).await;
    assert_eq!(of(&pod, "kata")["fits"], json!(null));
}

#[tokio::test]
async fn the_size_of_a_virtual_machine_and_two_mounts_of_a_volume_are_judged() {
    let node = Three::start();
    let container = |more: &str| {
        format!(
            "containers: [{{ name: c, image: i, {more} }}], volumes: [{{ name: v, emptyDir: {{}} }}]"
        )
    };
    for (spec, kata, gvisor) in [
        (
            "resources: { requests: { memory: 8Gi } }",
            vec!["kata-memory"],
            vec![],
        ),
        (
            "resources: { requests: { memory: 8Gi }, limits: { memory: 8Gi } }",
            vec![],
            vec![],
        ),
        (
            "resources: { requests: { cpu: 2 } }",
            vec!["kata-processors"],
            vec![],
        ),
        (
            "tty: true }], resources: { requests: { memory: 8Gi, cpu: 2 } }, initContainers: [{ name: i, image: i",
            vec!["kata-memory", "kata-processors"],
            vec![],
        ),
        (
            "volumeMounts: [{ name: v, mountPath: /a }, { name: v, mountPath: /b, subPath: b }]",
            vec!["kata-volume-parts"],
            vec![],
        ),
        (
            "volumeMounts: [{ name: v, mountPath: /a }] }, { name: d, image: i, volumeMounts: [{ name: v, mountPath: /a }]",
            vec![],
            vec!["gvisor-shared-volumes"],
        ),
    ] {
        let pod = node.pod(&container(spec)).await;
        assert_eq!(ids(&pod, "kata", "reasons"), kata, "{spec}");
        assert_eq!(ids(&pod, "gvisor", "reasons"), gvisor, "{spec}");
        assert_eq!(of(&pod, "runc")["why"], "no known limit applies", "{spec}");
    }
}

#[tokio::test]
async fn a_host_process_container_runs_only_without_hyper_v_isolation() {
    let mut node = Three::start();
    node.table = "default_handler = 'runhcs-wcow-process'\n[handlers]\nrunhcs-wcow-process = 'SOCKETS/runc'\n\
                  runhcs-wcow-hypervisor = 'SOCKETS/runc'"
        .to_owned();
    node.sims[0].clone().set(|settings| settings.config = None);
    let pod = node
        .pod("hostNetwork: true, securityContext: { windowsOptions: { hostProcess: true } }, containers: [{ name: c, image: i }]")
        .await;
    for (handler, limits) in [
        ("runhcs-wcow-process", vec![]),
        ("runhcs-wcow-hypervisor", vec!["windows-hypervisor"]),
    ] {
        let found = ids(&pod, handler, "reasons");
        assert_eq!(found, limits, "{handler}: {pod}");
    }
}

#[tokio::test]
async fn a_volume_without_known_mapped_ids_makes_a_user_namespace_no_yes() {
    let node = Three::start();
    let volume = "containers: [{ name: c, image: i, volumeMounts: [{ name: v, mountPath: /v }] }], \
                  volumes: [{ name: v, persistentVolumeClaim: { claimName: v } }]";
    for (users, is_undecided) in [("hostUsers: false,", true), ("", false)] {
        let pod = node.pod(&format!("{users} {volume}")).await;
        let found = ids(&pod, "runc", "undecided");
        let is_found = found.iter().any(|limit| limit == "host-users-volumes");
        assert_eq!(is_found, is_undecided, "{pod}");
    }
}
