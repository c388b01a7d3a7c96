//! URLs of streaming servers: a URL that begins with `//` gets the scheme `http`, and no other byte of a reply changes.

use criswitch_cri::codec::protobuf;
use tonic::Code;

use crate::calls::{ID_CALLS, part, text_of};
use crate::support::{RawReply, Rig, Sim};

/// The replies of the backend docker to Exec, Attach and PortForward with URLs that begin with `server`: the RPC, the
/// message that the backend sent, and the reply that the client got.
async fn urls(rig: &Rig, server: &str) -> Vec<(&'static str, Vec<u8>, RawReply)> {
    let docker = rig.sim("docker");
    docker
        .clone()
        .set(|settings| settings.streaming = server.to_owned());
    let (pod, container) = rig.run("docker", server).await;
    let mut replies = Vec::new();
    for call in ID_CALLS {
        if ["Exec", "Attach", "PortForward"].contains(&call.rpc) {
            let reply = call.send(rig, call.pick(&pod, &container)).await;
            replies.push((call.rpc, docker.sent(call.rpc)[5..].to_vec(), reply));
        }
    }
    assert_eq!(replies.len(), 3);
    replies
}

/// cri-dockerd beside another backend, and alone.
async fn rigs() -> [Rig; 2] {
    let docker = || Sim::new("docker").newer();
    [
        Rig::start([Sim::new("runc"), docker()]).await,
        Rig::start([docker()]).await,
    ]
}

#[tokio::test]
async fn a_url_that_begins_with_two_slashes_gets_http_and_no_other_byte_changes() {
    for rig in rigs().await {
        for server in ["//127.0.0.1:41369/cri", "//[::1]:80", "//docker"] {
            for (rpc, sent, reply) in urls(&rig, server).await {
                let url = protobuf::string(&sent, &[1]).unwrap();
                let begin = part(1, url.as_bytes().to_vec());
                let rest = sent.strip_prefix(&*begin).unwrap();
                assert!(!rest.is_empty(), "the backend sends an unknown field");
                let whole = part(1, format!("http:{url}").into_bytes());
                assert_eq!(reply.messages(), [[&*whole, rest].concat()], "{rpc}");
            }
        }
    }
}

#[tokio::test]
async fn a_url_with_a_scheme_passes_byte_for_byte() {
    for rig in rigs().await {
        for server in ["http://h:1", "HTTPS://[::1]", "a+b-c.1://h//x", "unix:/x"] {
            for (rpc, sent, reply) in urls(&rig, server).await {
                assert_eq!(reply.messages(), [sent], "{rpc}");
            }
        }
    }
}

#[tokio::test]
async fn a_url_without_scheme_and_host_is_an_error_that_names_the_backend_and_hides_the_token() {
    for rig in rigs().await {
        let socket = rig.sim("docker").socket().display().to_string();
        for server in [
            "",
            "/cri",
            "///cri",
            "127.0.0.1:41369",
            "//?x",
            "//:80/x",
            "1a://h",
        ] {
            for (rpc, sent, reply) in urls(&rig, server).await {
                let text = text_of(&reply);
                assert_eq!(reply.code(), Code::Internal, "{rpc} {server}: {text}");
                for word in ["\"docker\"", &socket, "streaming server"] {
                    assert!(text.contains(word), "{rpc} {server}: {text}");
                }
                let url = protobuf::string(&sent, &[1]).unwrap();
                let (_, token) = url.rsplit_once('/').unwrap();
                assert!(!text.contains(token), "{rpc} {server}: {text}");
            }
        }
    }
}

/// In protobuf the last value of a field counts.
#[tokio::test]
async fn the_last_url_of_a_reply_counts() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("docker")]).await;
    let docker = rig.sim("docker");
    docker.append_raw("Exec", part(1, Vec::new()));
    docker.append_raw("Attach", part(1, b"//last".to_vec()));
    let replies = urls(&rig, "https://first").await;
    for (rpc, _, reply) in &replies {
        let messages = reply.messages();
        let url = messages
            .first()
            .map(|it| protobuf::string(it, &[1]).unwrap());
        match *rpc {
            "Exec" => assert_eq!((reply.code(), url), (Code::Internal, None)),
            "Attach" => assert_eq!(url, Some("http://last")),
            _ => assert!(url.unwrap().starts_with("https://first/")),
        }
    }
}
