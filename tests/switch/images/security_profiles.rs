//! Security profiles: a pull goes to the pod's backend, the list has the profiles of all backends, and a removal goes
//! to the backends that have the profile.

use criswitch_cri::codec::cri;
use tonic::{Code, Status};

use crate::calls::{holds, stopped};
use crate::faults::{directly, node, runc_and_kata, status};
use crate::kubelet::{asked, forget};
use crate::support::{RawReply, Rig, Sim, frame_raw, image_spec, pod_config};

const PULL: &str = "PullSecurityProfile";
const LIST: &str = "ListSecurityProfiles";
const REMOVE: &str = "RemoveSecurityProfile";
const RPCS: [&str; 3] = [PULL, LIST, REMOVE];

const DIGEST: &str = "sha256:1";
const PROFILE: &str = "registry.example/a@sha256:1";
const MIRRORED: &str = "mirror.example/a@sha256:1";
const OTHER: &str = "registry.example/b@sha256:2";

/// The request of the kubelet for a pod.
fn request(pod: &str, handler: &str) -> cri::PullSecurityProfileRequest {
    cri::PullSecurityProfileRequest {
        image: Some(cri::ImageSpec {
            runtime_handler: handler.to_owned(),
            ..image_spec(PROFILE)
        }),
        auth: Some(cri::AuthConfig {
            password: "secret".to_owned(),
            ..Default::default()
        }),
        sandbox_config: Some(pod_config(pod)),
        profile_kind: cri::SecurityProfileKind::Seccomp.into(),
    }
}

async fn pull(rig: &Rig, pod: &str, handler: &str) -> Result<bool, Status> {
    let request = request(pod, handler);
    let reply = rig.images().pull_security_profile(request).await?;
    Ok(reply.into_inner().cached)
}

async fn list(rig: &Rig) -> Result<Vec<cri::SecurityProfileInfo>, Status> {
    let request = cri::ListSecurityProfilesRequest {};
    let reply = rig.images().list_security_profiles(request).await?;
    Ok(reply.into_inner().profiles)
}

async fn remove(rig: &Rig, digest: &str) -> Result<(), Status> {
    let digest = digest.to_owned();
    let request = cri::RemoveSecurityProfileRequest { digest };
    rig.images().remove_security_profile(request).await?;
    Ok(())
}

/// Sends an empty request.
async fn raw(rig: &Rig, rpc: &str) -> RawReply {
    let path = format!("/runtime.v1.ImageService/{rpc}");
    rig.raw(&path, &[], frame_raw(b"")).await
}

async fn digests(rig: &Rig) -> Vec<String> {
    let profiles = list(rig).await.unwrap().into_iter();
    profiles.map(|profile| profile.digest).collect()
}

/// The digests of the profiles that a backend has.
async fn at(rig: &Rig, name: &str) -> Vec<String> {
    let request = cri::ListSecurityProfilesRequest {};
    let backend = directly(rig.sim(name));
    let reply = backend.images().list_security_profiles(request).await;
    let profiles = reply.unwrap().into_inner().profiles.into_iter();
    profiles.map(|profile| profile.digest).collect()
}

#[tokio::test]
async fn a_profile_and_its_credentials_go_to_the_pods_backend_alone() {
    let rig = runc_and_kata().await;
    for name in ["kata", "runc"] {
        rig.run_pod(name, &format!("on-{name}")).await;
        for is_cached in [false, true] {
            let pulled = pull(&rig, &format!("on-{name}"), "").await;
            assert_eq!(pulled.unwrap(), is_cached);
        }
        assert_eq!(asked(&rig, PULL), [name]);
        forget(&rig);
    }
}

#[tokio::test]
async fn a_profile_for_a_handler_goes_to_the_backend_of_the_handler() {
    let rig = runc_and_kata().await;
    pull(&rig, "new", "kata").await.unwrap();
    assert_eq!(asked(&rig, PULL), ["kata"]);
    let failed = pull(&rig, "new", "nosuch").await.unwrap_err();
    assert_eq!(failed.code(), Code::InvalidArgument, "{failed}");
}

/// The kubelet pulls a profile before it creates the pod. Without a handler in the request, any backend may get the
/// pod.
#[tokio::test]
async fn a_profile_for_a_pod_that_does_not_exist_yet_goes_to_all_backends_with_handlers() {
    let rig = runc_and_kata().await;
    pull(&rig, "new", "").await.unwrap();
    assert_eq!(asked(&rig, PULL), ["runc", "kata"]);
    let failed = Status::unavailable("registry unavailable: EOF");
    rig.sim("kata").fail(PULL, failed);
    let failed = pull(&rig, "new", "").await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
    assert!(failed.message().starts_with("registry unavailable: EOF"));
    assert!(failed.message().contains("kata"), "{failed}");
}

/// The reply of one store counts for all stores.
#[tokio::test]
async fn a_malformed_reply_to_a_pull_into_all_stores_is_an_error_that_names_the_backend() {
    for (rpc, name) in [(PULL, "runc"), (PULL, "kata"), (REMOVE, "kata")] {
        let rig = runc_and_kata().await;
        pull(&rig, "new", "").await.unwrap();
        rig.sim(name).append_raw(rpc, b"\x0a\x7f".as_slice());
        let failed = match rpc {
            PULL => pull(&rig, "new", "").await.unwrap_err(),
            _ => remove(&rig, DIGEST).await.unwrap_err(),
        };
        let words = [name, "its reply is malformed"];
        assert!(
            words.iter().all(|it| failed.message().contains(it)),
            "{failed}"
        );
    }
}

#[tokio::test]
async fn the_error_of_the_pods_backend_passes_unchanged() {
    let rig = runc_and_kata().await;
    rig.run_pod("kata", "web").await;
    let text = "security profile invalid: wrong media type";
    rig.sim("kata").fail(PULL, Status::invalid_argument(text));
    let failed = pull(&rig, "web", "").await.unwrap_err();
    let failed = (failed.code(), failed.message());
    assert_eq!(failed, (Code::InvalidArgument, text));
}

#[tokio::test]
async fn a_list_has_one_entry_for_each_digest_with_the_references_of_all_backends() {
    let rig = runc_and_kata().await;
    rig.sim("runc").add_profile(PROFILE);
    rig.sim("kata").add_profile(OTHER);
    for reference in [PROFILE, MIRRORED] {
        rig.sim("kata").add_profile(reference);
    }
    let profile = |digest: &str, refs: &[&str], copies: u64| cri::SecurityProfileInfo {
        digest: digest.to_owned(),
        refs: refs.iter().map(|it| (*it).to_owned()).collect(),
        size: copies << 10,
    };
    let expected = [
        profile(DIGEST, &[PROFILE, MIRRORED], 2),
        profile("sha256:2", &[OTHER], 1),
    ];
    assert_eq!(list(&rig).await.unwrap(), expected);
}

#[tokio::test]
async fn a_list_fails_if_an_answer_cannot_be_used_and_names_the_backend() {
    let rig = node("start_wait = \"0s\"", ["runc", "kata"].map(Sim::new)).await;
    rig.sim("runc").add_profile(PROFILE);
    let kata = rig.sim("kata");
    kata.fail(LIST, Status::internal("the store is broken"));
    let failed = list(&rig).await.unwrap_err();
    assert_eq!(failed.code(), Code::Internal);
    assert!(failed.message().contains("kata"), "{failed}");
    kata.heal(LIST);
    // The reference of a profile is not UTF-8.
    kata.append_raw(LIST, b"\x0a\x03\x12\x01\xff".as_slice());
    let failed = list(&rig).await.unwrap_err();
    assert!(failed.message().contains("kata"), "{failed}");
    stopped(&rig, "kata").await;
    let failed = list(&rig).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
}

#[tokio::test]
async fn a_removal_goes_to_the_backends_that_have_the_profile() {
    let sims = ["runc", "kata", "gvisor"].map(Sim::new);
    let rig = Rig::start(sims).await;
    for (name, reference) in [("runc", PROFILE), ("kata", MIRRORED), ("gvisor", OTHER)] {
        rig.sim(name).add_profile(reference);
    }
    remove(&rig, DIGEST).await.unwrap();
    assert_eq!(asked(&rig, REMOVE), ["runc", "kata"]);
    assert_eq!(digests(&rig).await, ["sha256:2"]);
    forget(&rig);
    // No backend has the profile now.
    remove(&rig, DIGEST).await.unwrap();
    assert!(asked(&rig, REMOVE).is_empty());
}

#[tokio::test]
async fn a_removal_that_one_backend_fails_is_an_error_and_the_others_remove_the_profile() {
    let rig = node("start_wait = \"0s\"", ["runc", "kata"].map(Sim::new)).await;
    for name in ["runc", "kata"] {
        rig.sim(name).add_profile(PROFILE);
    }
    let kata = rig.sim("kata");
    kata.fail(REMOVE, Status::internal("the store is broken"));
    let failed = remove(&rig, DIGEST).await.unwrap_err();
    assert_eq!(failed.code(), Code::Internal);
    assert!(failed.message().contains("kata"), "{failed}");
    assert!(at(&rig, "runc").await.is_empty());
    assert_eq!(at(&rig, "kata").await, [DIGEST]);
    // The profile was removed between the list and the removal.
    kata.fail(REMOVE, Status::not_found("no such profile"));
    remove(&rig, DIGEST).await.unwrap();
    kata.heal(REMOVE);
    // A backend that does not answer may have the profile.
    rig.sim("runc").add_profile(PROFILE);
    stopped(&rig, "kata").await;
    let failed = remove(&rig, DIGEST).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
    assert!(at(&rig, "runc").await.is_empty());
}

#[tokio::test]
async fn a_backend_that_lacks_the_rpcs_is_omitted_from_lists_and_removals() {
    let old = Sim::new("old").lacks(RPCS);
    let rig = Rig::start([Sim::new("runc"), old]).await;
    rig.sim("runc").add_profile(PROFILE);
    assert_eq!(digests(&rig).await, [DIGEST]);
    remove(&rig, DIGEST).await.unwrap();
    assert!(digests(&rig).await.is_empty());
    rig.run_pod("old", "web").await;
    let failed = pull(&rig, "web", "").await.unwrap_err();
    assert_eq!(failed.code(), Code::Unimplemented);
}

#[tokio::test]
async fn the_rpcs_are_unimplemented_if_all_backends_lack_them() {
    let old = |name| Sim::new(name).lacks(RPCS);
    let rig = Rig::start(["runc", "kata"].map(old)).await;
    for rpc in RPCS {
        let reply = raw(&rig, rpc).await;
        assert_eq!(reply.code(), Code::Unimplemented, "{rpc}");
    }
}

#[tokio::test]
async fn the_replies_of_a_single_backend_pass_unchanged() {
    let rig = Rig::start([Sim::new("runc")]).await;
    rig.sim("runc").add_profile(PROFILE);
    rig.sim("runc")
        .append_raw(LIST, b"\xc2\xb8\x02\x03new".as_slice());
    let reply = raw(&rig, LIST).await;
    assert!(holds(&reply, "new"));
    let text = "the profile is in use";
    rig.sim("runc")
        .fail(REMOVE, Status::failed_precondition(text));
    let failed = remove(&rig, DIGEST).await.unwrap_err();
    assert_eq!(failed.message(), text);
}

/// The node has the feature only if all backends have it, so that the kubelet makes no call that a backend lacks.
#[tokio::test]
async fn the_node_has_the_feature_if_all_backends_have_it() {
    let with = |name: &str| Sim::new(name).set(|it| it.features.seccomp_profile_oci = true);
    let has = async |sims: [Sim; 2]| {
        let rig = Rig::start(sims).await;
        let features = status(&rig).await.features;
        features.unwrap_or_default().seccomp_profile_oci
    };
    assert!(has([with("runc"), with("kata")]).await);
    assert!(!has([with("runc"), Sim::new("kata")]).await);
}
