//! criswitch forwards long texts of backends unchanged. In its own texts, criswitch quotes them in a shortened form.

use criswitch_cri::codec::cri;
use criswitch_cri::error_text::LONGEST_TEXT;
use tonic::{Code, Status};

use crate::calls::{send, text_of};
use crate::fanout::status::{condition, status};
use crate::logged::Logged;
use crate::support::{Rig, Sim, frame};
use crate::wait;

/// The length of a long text in bytes. The encoded text fits into the limit of HTTP/2 headers.
const LONG: usize = 200 << 10;
/// The largest length of the words that criswitch adds to a text: the backend's name and socket, and the code.
const OWN_WORDS: usize = 500;
/// The largest size of a small `Status` reply.
const SMALL: usize = 64 << 10;

fn long(letter: char) -> Status {
    Status::internal(letter.to_string().repeat(LONG))
}

async fn two() -> Rig {
    Rig::start([Sim::new("runc"), Sim::new("kata")]).await
}

fn count(text: &str, letter: char) -> usize {
    text.matches(letter).count()
}

#[tokio::test]
async fn the_first_backends_error_passes_whole_and_further_errors_are_cut() {
    let rig = two().await;
    rig.sim("runc").fail("RunPodSandbox", long('#'));
    let run = frame(&cri::RunPodSandboxRequest::default());
    let reply = send(&rig, "RunPodSandbox", run).await;
    assert_eq!(text_of(&reply).len(), LONG);
    // criswitch sends a removal only to backends that have the image.
    for sim in &rig.sims {
        sim.add_image("busybox");
    }
    rig.sim("runc").fail("RemoveImage", long('#'));
    rig.sim("kata").fail("RemoveImage", long('Y'));
    let image = Some(cri::ImageSpec {
        image: "busybox".to_owned(),
        ..Default::default()
    });
    let request = frame(&cri::RemoveImageRequest { image });
    let reply = rig
        .raw("/runtime.v1.ImageService/RemoveImage", &[], request)
        .await;
    let text = text_of(&reply);
    assert_eq!((reply.code(), count(&text, '#')), (Code::Internal, LONG));
    assert!(
        (1000..LONGEST_TEXT).contains(&count(&text, 'Y')),
        "{}",
        count(&text, 'Y')
    );
}

#[tokio::test]
async fn status_and_the_log_have_only_the_beginning_of_a_long_error() {
    let logged = Logged::here();
    let kata = Sim::new("kata");
    kata.fail("ListPodSandbox", long('Y'));
    let rig = Rig::start([Sim::new("runc"), kata]).await;
    wait::until(async || !logged.lines(&["backend is down", "YYY"]).is_empty()).await;
    rig.sim("kata").heal("ListPodSandbox");
    rig.run_pod("kata", "web").await;
    rig.sim("kata").fail("Status", long('Y'));
    let shown = status(&rig).await;
    let ready = condition(&shown, "BackendsReady");
    assert!(!ready.status && ready.message.len() < LONGEST_TEXT + OWN_WORDS);
    assert!(count(&ready.message, 'Y') > 1000, "{}", ready.message);
    let longest = logged.text().lines().map(str::len).max().unwrap();
    assert!(longest < LONGEST_TEXT + OWN_WORDS, "{longest}");
    let state = rig.state().await.to_string();
    assert!(
        state.len() < 2 * LONGEST_TEXT + 10 * OWN_WORDS,
        "{}",
        state.len()
    );
}

#[tokio::test]
async fn a_long_condition_passes_from_the_default_and_is_cut_in_backends_ready() {
    let rig = two().await;
    for sim in &rig.sims {
        sim.clone().set(|settings| {
            settings.conditions[1].status = false;
            settings.conditions[1].message = "Z".repeat(40 << 10);
        });
    }
    let shown = status(&rig).await;
    assert_eq!(condition(&shown, "NetworkReady").message.len(), 40 << 10);
    let ready = &condition(&shown, "BackendsReady").message;
    assert!(
        ready.len() < 2 * (LONGEST_TEXT + OWN_WORDS),
        "{}",
        ready.len()
    );
    assert!(ready.contains("kata.sock"), "{ready}");
}

#[tokio::test]
async fn of_many_faults_status_has_the_first_and_the_number_of_others() {
    let names: Vec<_> = (0..12).map(|number| format!("kata{number}")).collect();
    let sims = names.iter().map(|name| Sim::new(name));
    let rig = Rig::start(sims).await;
    rig.pods().await.unwrap();
    rig.sims
        .iter()
        .for_each(|sim| sim.fail("Status", long('Y')));
    let shown = status(&rig).await;
    let ready = &condition(&shown, "BackendsReady").message;
    assert!(ready.len() < 5 * LONGEST_TEXT, "{}", ready.len());
    assert!(ready.ends_with(" more"), "{ready}");
}

/// Makes a runtime's `Status` too large.
type Grow = fn(&Sim);

#[tokio::test]
async fn a_backends_status_that_is_too_large_is_rejected_and_the_nodes_status_stays_small() {
    let oversized: [(&str, Grow); 3] = [
        ("its Status without info has", |sim| {
            let message = "Z".repeat(LONG);
            sim.clone()
                .set(|settings| settings.conditions[0].message = message);
        }),
        ("a handler in its Status has", |sim| {
            // The handler has a field that this build does not know.
            let handler = [&[0x9a, 0x06, 0xd0, 0x0f][..], &[b'z'; 2000]].concat();
            let handler = [&[0x1a, 0xd4, 0x0f][..], &handler].concat();
            sim.append_raw("Status", handler);
        }),
        ("the features in its Status has", |sim| {
            let features = (0..2000).flat_map(|_| [0x22, 2, 0x08, 1]);
            sim.append_raw("Status", features.collect::<Vec<u8>>());
        }),
    ];
    for (what, grow) in oversized {
        let rig = two().await;
        grow(rig.sim("kata"));
        grow(rig.sim("runc"));
        rig.pods().await.unwrap();
        let request = cri::StatusRequest { verbose: false };
        let reply = send(&rig, "Status", frame(&request)).await;
        assert!(reply.body.len() < SMALL, "{what}: {}", reply.body.len());
        let shown = status(&rig).await;
        let ready = &condition(&shown, "BackendsReady").message;
        assert!(
            ready.contains("kata.sock") && ready.contains(what),
            "{ready}"
        );
    }
}

#[tokio::test]
async fn a_backend_whose_version_is_too_large_is_down() {
    let long = "9".repeat(LONG);
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata").version(&long)]).await;
    let error = rig.try_run("kata", "web").await.unwrap_err();
    assert!(error.message().contains("its Version has"), "{error}");
    rig.run_pod("runc", "web").await;
}
