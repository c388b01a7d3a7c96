//! The memory of a backend's replies and cached lists, in the metrics.

use criswitch_cri::codec::cri;
use prost::encoding;

use crate::page::{Page, rig, until};
use crate::support::{Rig, Sim, frame_raw};

const MIB: usize = 1 << 20;
/// The size of the single item of each list.
const LISTS: [(&str, usize); 3] = [
    ("ListPodSandbox", MIB),
    ("ListContainers", 2 * MIB),
    ("ListImages", 3 * MIB),
];
/// More than all other bytes that criswitch holds for the backend, and much less than each of these lists.
const REST: usize = MIB / 16;

async fn list_all(rig: &Rig) {
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
    let request = cri::ListImagesRequest::default();
    rig.images().list_images(request).await.unwrap();
}

/// Waits until criswitch holds one copy of each list of kata, and fewer than `REST` other bytes. The wait is needed
/// because a reply counts until it is dropped.
async fn until_one_of_each_is_held(rig: &Rig, up: bool) {
    let least: usize = LISTS.iter().map(|(_, bytes)| bytes).sum();
    let page = until(rig, |page| {
        let held = page.backend("criswitch_backend_held_bytes", "kata") as usize;
        let is_up = page.backend("criswitch_backend_up", "kata") == 1.0;
        is_up == up && (least..least + REST).contains(&held)
    });
    page.await;
}

#[tokio::test]
async fn the_held_bytes_of_a_backend_count_each_cached_list_once() {
    let rig = rig("", [Sim::new("runc"), Sim::new("kata")]).await;
    let kata = rig.sim("kata");
    for (rpc, bytes) in LISTS {
        let mut unknown = Vec::new();
        encoding::bytes::encode(100, &vec![0; bytes], &mut unknown);
        kata.append_to_items(rpc, unknown);
    }
    rig.run("kata", "web").await;
    for _ in 0..10 {
        list_all(&rig).await;
        until_one_of_each_is_held(&rig, true).await;
    }
    kata.stop().await;
    for _ in 0..10 {
        list_all(&rig).await;
        until_one_of_each_is_held(&rig, false).await;
    }
    let page = Page::of(&rig).await;
    assert_eq!(
        page.backend("criswitch_lists_from_cache_total", "kata"),
        30.0
    );
}

#[tokio::test]
async fn unread_reply_bytes_count_replies_in_flight() {
    let rig = rig("", [Sim::new("runc"), Sim::new("kata")]).await;
    let mut unknown = Vec::new();
    encoding::bytes::encode(100, &vec![0; 3 * MIB], &mut unknown);
    rig.sim("kata").append_raw("ListContainers", unknown);
    let unread = |page: &Page| page.value("criswitch_unread_reply_bytes", &[]) as usize;
    let client = (*rig).raw().await;
    // The reply is larger than the part that HTTP/2 sends before the client reads.
    let path = "/runtime.v1.RuntimeService/ListContainers";
    let reply = client.begin(path, &[], frame_raw(b"")).await.unwrap();
    until(&rig, |page| unread(page) >= 3 * MIB).await;
    drop(reply);
    until(&rig, |page| unread(page) == 0).await;
}
