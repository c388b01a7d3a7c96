//! Secrets in calls are neither in the log at its most verbose level nor in `Status`.

use std::collections::HashMap;
use std::path::Path;

use criswitch_cri::codec::cri;
use prost::Message;
use tonic::Code;

use crate::logged_daemon::LoggedDaemon;
use crate::support::{Client, IMAGE, Sim, container_config, native, pod_config};
use crate::{main_file, text};

/// A word that every secret contains. Each field that may hold a secret gets a secret of its own.
pub(crate) const SECRET: &str = "hunter2";

pub(crate) fn secret(place: &str) -> String {
    format!("{SECRET}-in-{place}")
}

fn auth() -> cri::AuthConfig {
    cri::AuthConfig {
        username: secret("username"),
        password: secret("password"),
        auth: secret("auth"),
        server_address: secret("server-address"),
        identity_token: secret("identity-token"),
        registry_token: secret("registry-token"),
    }
}

fn annotations(place: &str) -> HashMap<String, String> {
    HashMap::from([("annotation".to_owned(), secret(place))])
}

fn pod() -> cri::PodSandboxConfig {
    cri::PodSandboxConfig {
        annotations: annotations("pod"),
        ..pod_config("web")
    }
}

fn container() -> cri::ContainerConfig {
    let variable = cri::KeyValue {
        key: "PASSWORD".to_owned(),
        value: secret("environment").into(),
    };
    cri::ContainerConfig {
        envs: vec![variable],
        annotations: annotations("container"),
        ..container_config("web", IMAGE)
    }
}

/// Makes calls for `handler`, one of each RPC whose request can contain secrets. The calls may fail. Returns the status
/// code of `PullImage`.
pub(crate) async fn whisper(client: &Client, handler: &str) -> Code {
    let request = cri::PullImageRequest {
        image: Some(cri::ImageSpec {
            annotations: annotations("image"),
            runtime_handler: handler.to_owned(),
            ..crate::support::image_spec(IMAGE)
        }),
        auth: Some(auth()),
        sandbox_config: Some(pod()),
    };
    let profile = cri::PullSecurityProfileRequest {
        image: request.image.clone(),
        auth: Some(auth()),
        sandbox_config: Some(pod()),
        ..Default::default()
    };
    let pulled = client
        .images()
        .pull_image(request)
        .await
        .map_or_else(|failed| failed.code(), |_| Code::Ok);
    client.images().pull_security_profile(profile).await.ok();
    let request = cri::RunPodSandboxRequest {
        config: Some(pod()),
        runtime_handler: handler.to_owned(),
    };
    let ran = client.runtime().run_pod_sandbox(request).await;
    let id = ran.map(|ran| ran.into_inner().pod_sandbox_id);
    let request = cri::CreateContainerRequest {
        pod_sandbox_id: id.unwrap_or_else(|_| "nobodys".to_owned()),
        config: Some(container()),
        sandbox_config: Some(pod()),
    };
    let created = client.runtime().create_container(request).await;
    let id = created.map(|created| created.into_inner().container_id);
    let request = cri::ExecSyncRequest {
        container_id: id.unwrap_or_else(|_| "nobodys".to_owned()),
        cmd: vec![secret("command")],
        timeout: 1,
    };
    client.runtime().exec_sync(request).await.ok();
    pulled
}

async fn lists(client: &Client) {
    client.pods().await.ok();
    client.containers().await.ok();
}

async fn status(client: &Client) -> Vec<u8> {
    let request = cri::StatusRequest { verbose: true };
    let status = client.runtime().status(request).await.unwrap();
    status.into_inner().encode_to_vec()
}

fn configure(directory: &Path, format: &str) -> String {
    let at = |name: &str| directory.join(name);
    format!(
        "listen = {:?}\ndefault_handler = 'runc'\nstart_wait = '0s'\nlog.level = 'trace'\n
        log.format = '{format}'\n
        [handlers]\nrunc = {:?}\ndead = {:?}",
        at("listen"),
        at("runc"),
        at("dead")
    )
}

#[tokio::test]
async fn secrets_of_calls_are_in_no_log_and_in_no_status() {
    no_user_reads_them("text", "rpc=\"{}\"").await;
}

#[tokio::test]
async fn secrets_of_calls_are_in_no_log_of_json() {
    no_user_reads_them("json", "\"rpc\":\"{}\"").await;
}

/// Checks that a log in this format contains no secret. `named` is the log's text for an RPC, with `{}` in place of the
/// RPC's name.
async fn no_user_reads_them(format: &str, named: &str) {
    let files = main_file("");
    let path = files.main();
    let directory = path.parent().unwrap();
    std::fs::write(&path, native(&configure(directory, format))).unwrap();
    let runc = Sim::new("runc");
    runc.serve_on(&directory.join("runc"));
    runc.add_image(IMAGE);
    let mut serve = crate::daemon(text(&path));
    let output = directory.join("output");
    serve.stdout(std::fs::File::create(&output).unwrap());
    let shown = LoggedDaemon::start_as(serve);
    let client = Client::new(&directory.join("listen"));
    // A handler of a running backend, a handler of an unreachable backend, and an unknown handler.
    for (handler, pulled) in [
        ("runc", Code::Ok),
        ("dead", Code::Unavailable),
        ("nosuch", Code::InvalidArgument),
    ] {
        assert_eq!(whisper(&client, handler).await, pulled, "{handler}");
        lists(&client).await;
        // criswitch logs a successful `Status` only at TRACE, the most verbose level.
        status(&client).await;
    }
    let bad = bytes::Bytes::from([&[0; 5][..], secret("bad-frame").as_bytes()].concat());
    let run = "/runtime.v1.RuntimeService/RunPodSandbox";
    let headers = secret("header");
    let headers = [("authorization", headers.as_str())];
    client.raw().await.call(run, &headers, bad).await;
    let status = status(&client).await;
    let log = shown.end();
    for rpc in [
        "PullImage",
        "PullSecurityProfile",
        "RunPodSandbox",
        "CreateContainer",
        "ExecSync",
    ] {
        assert!(log.contains(&named.replace("{}", rpc)), "{rpc} in {log}");
        assert!(!runc.calls(rpc).is_empty(), "{rpc} came to the runtime");
    }
    assert!(log.contains("TRACE"), "{log}");
    assert!(!log.contains(SECRET), "{log}");
    let output = std::fs::read_to_string(output).unwrap();
    assert!(!output.contains(SECRET), "{output}");
    for library in ["h2::", "hyper::", "tokio::", "mio::"] {
        assert!(!log.contains(library), "{library} in {log}");
    }
    assert!(!String::from_utf8_lossy(&status).contains(SECRET));
}
