//! Three simulated runtimes, and a client that calls them through criswitch as a kubelet does. The only argument is a
//! folder; the sockets of the runtimes and of criswitch are below this folder. SIGUSR1 stops the runtime kata, and
//! SIGUSR2 starts it again. docs/pictures/node.py runs this program.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use criswitch_cri::codec::cri;
use criswitch_testing::{Client, IMAGE, Sim};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::interval;
use tonic::Status;

/// The period of lists of pods and containers, as in the kubelet.
const RELIST: Duration = Duration::from_secs(1);
/// The time between the ends of two pods of a handler.
const PERIOD: Duration = Duration::from_millis(500);

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        return Err(std::io::Error::other("usage: runtimes FOLDER"));
    };
    let kata = Sim::new("kata").runtime_name("containerd").version("2.4.2");
    let crio = Sim::new("crio").runtime_name("cri-o").version("1.36.0");
    for sim in [
        &Sim::new("containerd").handlers(["runc"]).version("2.4.2"),
        &kata,
        &crio.handlers(["runsc"]),
    ] {
        let own = folder.join(sim.name());
        std::fs::create_dir_all(&own)?;
        sim.add_image(IMAGE);
        sim.serve_on(&own.join(format!("{}.sock", sim.name())));
    }
    let client = Client::new(&folder.join("criswitch/criswitch.sock"));
    tokio::select! {
        ended = fail_and_return(&kata) => ended,
        () = load(&client) => Ok(()),
    }
}

async fn fail_and_return(sim: &Sim) -> std::io::Result<()> {
    let mut fail = signal(SignalKind::user_defined1())?;
    let mut again = signal(SignalKind::user_defined2())?;
    loop {
        fail.recv().await;
        sim.stop().await;
        again.recv().await;
        sim.start();
    }
}

/// Makes the calls of a kubelet, and starts and ends pods. Calls fail while a runtime is stopped.
async fn load(client: &Client) {
    tokio::join!(
        relist(client),
        pods(client, "runc", 12),
        pods(client, "kata", 4),
        pods(client, "gvisor", 6),
    );
}

async fn relist(client: &Client) {
    let mut period = interval(RELIST);
    loop {
        period.tick().await;
        let stats = cri::ListContainerStatsRequest::default();
        let (mut runtime, mut images) = (client.runtime(), client.images());
        let status = cri::StatusRequest::default();
        tokio::join!(client.pods(), client.containers()).0.ok();
        runtime.list_container_stats(stats).await.ok();
        runtime.status(status).await.ok();
        images.image_fs_info(cri::ImageFsInfoRequest {}).await.ok();
    }
}

/// Keeps `wanted` pods of a handler running: in each period the oldest pod ends, and a new pod starts.
async fn pods(client: &Client, handler: &str, wanted: usize) {
    let mut running: VecDeque<(String, String)> = VecDeque::new();
    let mut period = interval(PERIOD);
    for number in 0_u64.. {
        if running.len() >= wanted {
            period.tick().await;
            if let Some((pod, container)) = running.front()
                && end(client, pod, container).await.is_ok()
            {
                running.pop_front();
            }
        }
        match run(client, handler, &format!("{handler}-{number}")).await {
            Ok(pod) => running.push_back(pod),
            Err(_) => drop(period.tick().await),
        }
    }
}

async fn run(client: &Client, handler: &str, name: &str) -> Result<(String, String), Status> {
    let pod = client.run_pod(handler, name).await?;
    let container = client.create(&pod, "main").await?;
    client.start(&container).await?;
    Ok((pod, container))
}

async fn end(client: &Client, pod: &str, container: &str) -> Result<(), Status> {
    client.stop(container).await?;
    client.remove(container).await?;
    client.stop_pod(pod).await?;
    client.remove_pod(pod).await
}
