//! `criswitch explain -f` on everyday manifests. The answer for plain pods is a plain yes. For fields that reach out of
//! a pod, the answer depends on the kind of runtime.

use std::path::Path;

use expect_test::{Expect, expect};
use serde_json::Value;

use crate::explain_files::Three;

/// The answers for each handler, as `yes`, `no` or `unknown`. `less` is a yes with weakened settings.
fn answers(pod: &Value) -> String {
    let of = |name: &str| {
        let mut handlers = pod["handlers"].as_array().unwrap().iter();
        let handler = handlers.find(|it| it["handler"] == name).unwrap();
        let mut reasons = handler["reasons"].as_array().unwrap().iter();
        match handler["fits"].as_bool() {
            Some(true) if reasons.any(|it| it["effect"] == "weakens") => "less",
            Some(true) => "yes",
            Some(false) => "no",
            None => "unknown",
        }
    };
    let (name, [runc, gvisor, kata]) = (
        pod["name"].as_str().unwrap(),
        ["runc", "gvisor", "kata"].map(of),
    );
    format!("{name:18}{runc:8}{gvisor:8}{kata}\n")
}

async fn shows(expected: Expect) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/everyday.yaml");
    let json = Three::start().json(&[&file]).await;
    assert!(json["skipped"].as_array().unwrap().is_empty());
    let shown: String = json["pods"]
        .as_array()
        .unwrap()
        .iter()
        .map(answers)
        .collect();
    expected.assert_eq(&shown);
    shown
}

#[tokio::test]
async fn each_everyday_manifest_has_the_right_answer_for_each_kind_of_runtime() {
    let shown = shows(expect![[r#"
        nginx             yes     yes     yes
        postgres          yes     yes     yes
        backup            yes     yes     yes
        migrate           yes     yes     yes
        hardened          yes     yes     yes
        restricted        yes     yes     less
        configured        yes     yes     yes
        redis             yes     yes     yes
        scratch           yes     yes     yes
        spread            yes     yes     yes
        native-sidecar    yes     yes     yes
        canary            yes     yes     yes
        function          yes     yes     yes
        secrets-store     yes     yes     yes
        spiffe            yes     unknown no
        timezone          yes     yes     yes
        host-data         yes     unknown unknown
        mesh              yes     no      yes
        node-exporter     yes     no      no
        log-agent         yes     less    less
        csi-node          yes     no      no
        device-plugin     yes     no      no
        gpu               yes     unknown unknown
        docker-in-docker  yes     no      no
        docker-socket     yes     no      no
        cni-agent         yes     no      no
        kube-proxy        yes     no      no
        wireguard         unknown no      less
        fuse              no      unknown unknown
        zigbee            yes     no      no
        block-database    yes     no      yes
        elasticsearch     yes     no      no
        node-sysctl       no      no      no
        safe-sysctl       yes     less    yes
        tuned-proxy       unknown unknown unknown
        huge-pages        yes     less    unknown
        rootless-build    yes     yes     yes
        iis               no      no      no
        debugger          yes     less    less
        model-image       unknown unknown unknown
        accelerator-claim unknown unknown unknown
    "#]])
    .await;
    let unknown = |line: &&str| line.contains("unknown");
    let (all, unknown) = (shown.lines().count(), shown.lines().filter(unknown).count());
    assert!(
        all >= 40 && unknown * 4 <= all,
        "{unknown} of {all} manifests have an unknown answer"
    );
}
