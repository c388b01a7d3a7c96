//! The configuration that `criswitch discover` prints for simulated runtimes on real sockets.

use criswitch_cri::codec::cri::{
    CgroupDriver, RuntimeCondition, RuntimeFeatures, RuntimeHandlerFeatures,
};
use expect_test::expect;
use serde_json::json;

use crate::runtimes::{CONTAINERD, CRIO, Node, containerd, containerd_config, crio};
use crate::support::Sim;

#[tokio::test]
async fn two_runtimes_become_a_commented_configuration() {
    let userns = RuntimeHandlerFeatures {
        recursive_read_only_mounts: true,
        user_namespaces: true,
        ..Default::default()
    };
    let node = Node::new()
        .with(
            CONTAINERD,
            containerd(["runc", "gvisor"]).features("runc", userns),
        )
        .with(CRIO, crio(["kata"]));
    let printed = node.configuration(&[]).await;
    assert_eq!(printed.shown, "");
    expect![[r##"
        # Written by criswitch discover. `criswitch check --probe` checks it and asks
        # the backends. All keys: criswitch.toml(5).

        # The socket for the kubelet (--container-runtime-endpoint) and crictl.
        #listen = "/run/criswitch/criswitch.sock"

        # The row for pods without a RuntimeClass: containerd's own default.
        default_handler = "runc"

        # The backend for the pods of each RuntimeClass handler.
        [handlers]
        gvisor = "containerd"
        runc   = "containerd"  # recursive_read_only_mounts, user_namespaces
        kata   = "crio"

        # The runtimes that responded. The first one also runs pods without a
        # RuntimeClass.
        [backends]
        # containerd 2.4.2, cgroup driver systemd, supplemental_groups_policy
        containerd = "/node/run/containerd/containerd.sock"
        # cri-o 1.37.0, cgroup driver systemd, supplemental_groups_policy
        crio = "/node/run/crio/crio.sock"
    "##]]
    .assert_eq(&printed.text);
    assert_eq!(
        printed.rows(),
        [
            r#"gvisor -> containerd "gvisor""#,
            r#"kata -> crio "kata""#,
            r#"*runc -> containerd "runc""#,
        ]
    );
}

#[tokio::test]
async fn a_handler_whose_program_is_of_no_known_kind_gets_a_remark() {
    let shim = |binary: &str| json!({ "runtimeType": "io.containerd.runc.v2", "options": { "BinaryName": binary } });
    let config = json!({ "containerd": { "defaultRuntimeName": "nvidia", "runtimes": {
        "nvidia": shim("/usr/bin/nvidia-container-runtime.cdi"),
        "runc-like": shim("/usr/bin/sysbox-runc"),
    } } });
    let sim = containerd(["nvidia", "runc-like"]).set(|settings| settings.config = Some(config));
    let printed = Node::new().with(CONTAINERD, sim).configuration(&[]).await;
    let rows: Vec<_> = printed
        .text
        .split_once("[handlers]\n")
        .unwrap()
        .1
        .lines()
        .take(2)
        .collect();
    let remark = r#"runc-like = "containerd"  # unknown kind of runtime: set kind"#;
    assert_eq!(rows, [r#"nvidia    = "containerd""#, remark]);
}

#[tokio::test]
async fn every_problem_is_in_the_file_and_on_standard_error() {
    let cgroupfs = crio(["crun", "runc"])
        .cgroup_driver(CgroupDriver::Cgroupfs)
        .set(|settings| settings.features.supplemental_groups_policy = false);
    let broken = Sim::new("broken");
    broken.hold("Version");
    let node = Node::new()
        .with(CONTAINERD, containerd(["runc"]))
        .with(CRIO, cgroupfs)
        .with("run/k0s/containerd.sock", broken);
    std::fs::write(node.path("run/cri-dockerd.sock"), "").unwrap();
    let printed = node.configuration(&[]).await;
    expect![[r##"
        # Written by criswitch discover. `criswitch check --probe` checks it and asks
        # the backends. All keys: criswitch.toml(5).
        #
        # Read this first:
        # - crio uses the cgroup driver cgroupfs, but containerd uses systemd; set the
        #   same driver for the kubelet and all backends.
        # - Rows of crio are commented out under [handlers]: runc (taken by containerd,
        #   which comes first).
        # - No backend at /node/run/k0s/containerd.sock: no answer within 3s.
        # - No backend at /node/run/cri-dockerd.sock: it is a file, not a
        #   socket.
        # - The node only has features that all backends have. Missing in crio:
        #   supplemental_groups_policy.

        # The socket for the kubelet (--container-runtime-endpoint) and crictl.
        #listen = "/run/criswitch/criswitch.sock"

        # The row for pods without a RuntimeClass: containerd's own default.
        default_handler = "runc"

        # The backend for the pods of each RuntimeClass handler.
        [handlers]
        runc  = "containerd"
        crun  = "crio"
        #runc = "crio"  # taken by containerd, which comes first

        # The runtimes that responded. The first one also runs pods without a
        # RuntimeClass.
        [backends]
        # containerd 2.4.2, cgroup driver systemd, supplemental_groups_policy
        containerd = "/node/run/containerd/containerd.sock"
        # cri-o 1.37.0, cgroup driver cgroupfs
        crio = "/node/run/crio/crio.sock"
        # Does not respond.
        #k0s = "/node/run/k0s/containerd.sock"
    "##]]
    .assert_eq(&printed.text);
    expect![[r#"
        criswitch: crio uses the cgroup driver cgroupfs, but containerd uses systemd; set the same driver for the kubelet and all backends.
        criswitch: Rows of crio are commented out under [handlers]: runc (taken by containerd, which comes first).
        criswitch: No backend at /node/run/k0s/containerd.sock: no answer within 3s.
        criswitch: No backend at /node/run/cri-dockerd.sock: it is a file, not a socket.
        criswitch: The node only has features that all backends have. Missing in crio: supplemental_groups_policy.
    "#]].assert_eq(&printed.shown);
    assert_eq!(
        printed.rows(),
        [r#"crun -> crio "crun""#, r#"*runc -> containerd "runc""#]
    );
}

#[tokio::test]
async fn a_handler_of_two_backends_routes_to_the_first_and_the_second_row_is_commented_out() {
    let node = Node::new()
        .with(CONTAINERD, containerd(["runc"]))
        .with(CRIO, crio(["runc"]));
    let printed = node.configuration(&[]).await;
    assert_eq!(printed.rows(), [r#"*runc -> containerd "runc""#]);
    expect![[r#"
        criswitch: Rows of crio are commented out under [handlers]: runc (taken by containerd, which comes first).
    "#]]
    .assert_eq(&printed.shown);
    let row = "\n#runc = \"crio\"  # taken by containerd, which comes first\n";
    assert!(printed.text.contains(row), "{}", printed.text);
}

#[tokio::test]
async fn a_runtime_that_reports_no_default_chooses_the_handler_unless_it_has_only_one() {
    let node = Node::new().with(CRIO, crio(["crun", "runc"]));
    let printed = node.configuration(&[]).await;
    assert_eq!(
        printed.rows(),
        [
            r#"*crio -> crio """#,
            r#"crun -> crio "crun""#,
            r#"runc -> crio "runc""#,
        ]
    );
    assert!(
        printed.text.contains("crio's own default.\ndefault"),
        "{}",
        printed.text
    );
    // If a runtime has only one handler, this handler is its default.
    let node = Node::new().with(CRIO, crio(["crun"]));
    assert_eq!(
        node.configuration(&[]).await.rows(),
        [r#"*crun -> crio "crun""#]
    );
}

#[tokio::test]
async fn the_default_handler_of_crio_is_read_from_its_configuration() {
    let crio = crio(["crun", "runc"]).set(|settings| {
        settings.config = Some(json!({
            "sandboxImage": "registry.k8s.io/pause:3.10",
            "crio": { "DefaultRuntime": "runc", "Runtimes": { "crun": {}, "runc": {} } },
        }));
    });
    let printed = Node::new().with(CRIO, crio).configuration(&[]).await;
    assert_eq!(
        printed.rows(),
        [r#"crun -> crio "crun""#, r#"*runc -> crio "runc""#]
    );
}

#[tokio::test]
async fn a_runtime_that_does_not_report_its_handlers_gets_those_of_its_configuration_or_its_default()
 {
    let silent = |sim: Sim| sim.set(|settings| settings.advertises_handlers = false);
    let old = silent(containerd(["kata"]))
        .version("1.6.20")
        .set(|settings| {
            settings.config = Some(containerd_config(Some("crun"), &["crun", "kata"]));
        });
    let docker = silent(Sim::new("docker"));
    let node = Node::new()
        .with(CONTAINERD, old)
        .with("run/cri-dockerd.sock", docker);
    let printed = node.configuration(&[]).await;
    assert_eq!(
        printed.rows(),
        [
            r#"cri-dockerd -> cri-dockerd """#,
            r#"*crun -> containerd "crun""#,
            r#"kata -> containerd "kata""#,
        ]
    );
    let (_, handlers) = printed.text.split_once("[handlers]\n").unwrap();
    let (handlers, _) = handlers.split_once("\n\n").unwrap();
    expect![[r##"
        # containerd does not report its handlers. The next rows are from its
        # configuration.
        crun        = "containerd"
        kata        = "containerd"
        # cri-dockerd does not report its handlers. The next row is its own default. Add
        # a row for each other handler.
        cri-dockerd = { backend = "cri-dockerd", handler = "" }  # unknown kind of runtime: set kind"##]]
    .assert_eq(handlers);
}

#[tokio::test]
async fn each_handler_gets_one_row_however_many_there_are() {
    let kata = ["kata", "kata-clh", "kata-fc", "kata-qemu", "runc"];
    let node = Node::new()
        .with(CONTAINERD, containerd(["runc"]))
        .with("run/kata/containerd.sock", containerd(kata))
        .with(CRIO, crio(["kata", "crun", "runc"]));
    let printed = node
        .configuration(&["--all", "NODE/run/kata/containerd.sock"])
        .await;
    let (_, handlers) = printed.text.split_once("[handlers]\n").unwrap();
    let (handlers, _) = handlers.split_once("\n\n").unwrap();
    expect![[r#"
        kata      = "kata"
        kata-clh  = "kata"
        kata-fc   = "kata"
        kata-qemu = "kata"
        runc      = "kata"
        #runc     = "containerd"  # taken by kata, which comes first
        crun      = "crio"
        #kata     = "crio"  # taken by kata, which comes first
        #runc     = "crio"  # taken by kata, which comes first"#]]
    .assert_eq(handlers);
    let backends = &printed.config.table.backends;
    assert!(backends.iter().all(|backend| !backend.auto_register));
    expect![[r#"
        criswitch: Rows of containerd are commented out under [handlers]: runc (taken by kata, which comes first).
        criswitch: Rows of crio are commented out under [handlers]: kata, runc (taken by kata, which comes first).
    "#]]
    .assert_eq(&printed.shown);
}

#[tokio::test]
async fn a_handler_keeps_its_row_if_a_later_backend_has_the_same_name() {
    let docker = Sim::new("docker").set(|settings| settings.advertises_handlers = false);
    let node = Node::new()
        .with(CONTAINERD, containerd(["runc", "cri-dockerd"]))
        .with("run/cri-dockerd.sock", docker)
        .with("run/k0s/containerd.sock", crio(["k0s", "kata"]));
    let printed = node
        .configuration(&["--all", "NODE/run/k0s/containerd.sock"])
        .await;
    assert_eq!(
        printed.rows(),
        [
            r#"cri-dockerd -> containerd "cri-dockerd""#,
            r#"*k0s -> k0s "k0s""#,
            r#"kata -> k0s "kata""#,
            r#"runc -> containerd "runc""#,
        ]
    );
    let row = r#"#cri-dockerd = { backend = "cri-dockerd", handler = "" }  # taken by containerd, which comes first"#;
    assert!(printed.text.contains(row), "{}", printed.text);
}

#[tokio::test]
async fn a_handler_with_a_name_that_no_runtimeclass_can_have_is_commented_out() {
    let node = Node::new().with(CRIO, crio(["runc", "Kata_QEMU", "RunC", "\u{1b}[31m\n"]));
    let printed = node.configuration(&[]).await;
    let row = r##"#"Kata_QEMU"    = "crio"  # not valid in a RuntimeClass"##;
    assert!(
        printed.text.contains(&format!("\n{row}\n")),
        "{}",
        printed.text
    );
    assert!(!printed.text.contains('\u{1b}'));
    expect![[r#"
        criswitch: Rows of crio are commented out under [handlers]: "\u{1b}[31m\n", "Kata_QEMU", "RunC" (not valid in a RuntimeClass).
    "#]]
    .assert_eq(&printed.shown);
}

#[tokio::test]
async fn a_runtime_that_is_not_ready_is_shown_with_its_reason() {
    let not_ready = RuntimeCondition {
        r#type: "NetworkReady".to_owned(),
        status: false,
        reason: "NetworkPluginNotReady".to_owned(),
        message: "cni plugin\nnot initialized".to_owned(),
    };
    let sim = containerd(["runc"]).set(|settings| settings.conditions[1] = not_ready);
    let node = Node::new().with(CONTAINERD, sim);
    expect![[r#"
        criswitch: containerd: it is not ready (NetworkReady is false): cni plugin not initialized
    "#]]
    .assert_eq(&node.configuration(&[]).await.shown);
}

/// The simulated runtimes answer as the real containerds of tests/system do.
#[tokio::test]
async fn the_documentation_shows_the_output_for_a_current_and_an_old_containerd() {
    let features = |user_namespaces: bool| RuntimeHandlerFeatures {
        recursive_read_only_mounts: !user_namespaces,
        user_namespaces,
        ..Default::default()
    };
    let new = containerd(["runc", "gvisor", "runsc"]).version("2.4.2+unknown");
    let new = ["gvisor", "runsc"]
        .into_iter()
        .fold(new, |sim, name| sim.features(name, features(true)))
        .features("runc", features(false))
        .cgroup_driver(CgroupDriver::Cgroupfs)
        .set(|settings| settings.features.user_namespaces_host_network = true);
    let old = Sim::new("containerd")
        .version("1.6.20~ds1")
        .lacks(["RuntimeConfig", "GetContainerEvents"])
        .set(|settings| {
            settings.advertises_handlers = false;
            settings.features = RuntimeFeatures::default();
            settings.config = Some(containerd_config(Some("crun"), &["crun"]));
        });
    let node = Node::new()
        .with(CONTAINERD, new)
        .with("run/old/containerd.sock", old);
    let given = [
        "NODE/run/containerd/containerd.sock",
        "NODE/run/old/containerd.sock",
    ];
    let printed = node.configuration(&given).await.text.replace("/node/", "/");
    let page = include_str!("../../docs/commands.md");
    let (_, block) = page.split_once("$ criswitch discover /run/").unwrap();
    let (block, _) = block.split_once("\n\nA row").unwrap();
    let documented: Vec<_> = block.lines().skip(1).map(str::trim_start).collect();
    let parts: Vec<_> = documented
        .split(|line| *line == "...")
        .filter(|part| !part.is_empty())
        .map(|part| part.join("\n"))
        .collect();
    assert_eq!(parts.len(), 3, "{parts:#?}");
    let mut rest = printed.as_str();
    for part in parts {
        let after = rest.split_once(&format!("\n{part}\n"));
        let Some((_, after)) = after else {
            panic!("{part}\nis not in\n{rest}");
        };
        rest = after;
    }
}
