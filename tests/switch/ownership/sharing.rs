//! Calls with unknown ids share a few questions to all backends. A call uses only a question that began after the call.

use futures_util::future::join_all;
use tonic::Code;

use crate::calls::ID_CALLS;
use crate::questions::{Since, answered, settled};
use crate::support::{Client, Rig, Sim};

async fn runc_and_kata() -> Rig {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    settled(&rig).await;
    rig
}

/// Once this call returns, earlier calls on the same connection have been routed.
async fn version(rig: &Rig) {
    let request = criswitch_cri::codec::cri::VersionRequest::default();
    rig.runtime().version(request).await.unwrap();
}

async fn status(rig: &Rig, pod: &str) -> Code {
    let request = criswitch_cri::codec::cri::PodSandboxStatusRequest {
        pod_sandbox_id: pod.to_owned(),
        verbose: false,
    };
    let reply = rig.runtime().pod_sandbox_status(request).await;
    reply.map_or_else(|status| status.code(), |_| Code::Ok)
}

#[tokio::test]
async fn a_hundred_concurrent_calls_for_unknown_ids_share_one_query_while_four_run() {
    let rig = runc_and_kata().await;
    let since = Since::now(&rig).await;
    rig.sim("runc").hold("ListPodSandbox");
    let first = status(&rig, "nobodys");
    let others = async {
        rig.sim("runc").until_held("ListPodSandbox").await;
        let misses = (0..100).map(async |n| status(&rig, &format!("nobodys-{n}")).await);
        let release = async {
            version(&rig).await;
            rig.sim("runc").release("ListPodSandbox");
        };
        tokio::join!(join_all(misses), release).0
    };
    let (first, others) = tokio::join!(first, others);
    assert_eq!(first, Code::NotFound);
    assert_eq!(others, [Code::NotFound; 100]);
    assert_eq!(since.asked(&rig), [5, 5]);
}

#[tokio::test]
async fn a_miss_does_not_use_a_question_that_began_before_it() {
    let rig = runc_and_kata().await;
    let kata = rig.sim("kata");
    let before = kata.calls("ListContainers").len();
    rig.sim("runc").hold("ListPodSandbox");
    let first = status(&rig, "nobodys");
    let second = async {
        // At this moment kata has answered the question, but runc has not.
        kata.until(|journal| answered(journal) > before).await;
        let direct = Client::new(&kata.socket());
        let pod = direct.run_pod("", "new").await.unwrap();
        let release = async {
            version(&rig).await;
            rig.sim("runc").release("ListPodSandbox");
        };
        tokio::join!(status(&rig, &pod), release).0
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!(first, Code::NotFound);
    assert_eq!(second, Code::Ok);
}

#[tokio::test]
async fn a_client_that_cancels_takes_the_answer_from_no_other_client() {
    let rig = runc_and_kata().await;
    let pod = Client::new(&rig.sim("kata").socket())
        .run_pod("", "web")
        .await
        .unwrap();
    let runc = rig.sim("runc");
    runc.hold("ListPodSandbox");
    tokio::select! {
        _ = status(&rig, "nobodys") => panic!("answered while held"),
        () = runc.until_held("ListPodSandbox") => {}
    }
    let release = async {
        version(&rig).await;
        runc.release("ListPodSandbox");
    };
    let (found, ()) = tokio::join!(status(&rig, &pod), release);
    assert_eq!(found, Code::Ok);
}

#[tokio::test]
async fn a_question_that_no_call_waits_for_ends_at_the_backends() {
    let rig = runc_and_kata().await;
    let runc = rig.sim("runc");
    runc.hold("ListPodSandbox");
    let call = ID_CALLS[0].send(&rig, "nobodys");
    tokio::select! {
        _ = call => panic!("answered while held"),
        () = runc.until_held("ListPodSandbox") => {}
    }
    runc.until(|journal| journal.cancelled == ["ListPodSandbox"])
        .await;
}
