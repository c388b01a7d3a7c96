//! The demo: the real criswitch in front of three simulated runtimes. The demo shows what criswitch does, then keeps
//! running for your own commands.
//!
//! Run it with `cargo run -p criswitch-demo`. With `-- --once` at the end of the command, the demo exits
//! instead of waiting, and `-- --help` says what it does. The demo checks the results that it shows. If one is wrong,
//! the demo prints an error and exits with status 1.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod show;

use std::path::Path;
use std::process::ExitCode;

use criswitch_cri::codec::admin::{GetStateRequest, ReloadRequest, reload};

use anyhow::{Context, Result, bail, ensure};
use criswitch_advice::verdict::NodeVerdict;
use criswitch_cri::facts::Level;
use criswitch_rig::{Client, IMAGE, Rig, Sim, container_config, container_in, pod_config};
use tokio::signal::unix::{SignalKind, signal};

const USAGE: &str = "usage: cargo run -p criswitch-demo [-- --once | -- status DIR]";
const HELP: &str = "\
The demo starts criswitch in front of three simulated runtimes, on sockets in a
new temporary directory. It creates a pod and a container for each handler,
lists them through criswitch, and shows the rejection of an unknown handler.
It stops one runtime, shows what fails and what goes on, and starts it again.
Then it prints commands for another terminal, and serves until Ctrl-C.

It needs no container runtime, no kubelet and no root, and leaves no files.

  --once      check everything and exit: status 0, or 1 if a result is wrong
  status DIR  print the verdict and the pods of a demo that serves in DIR
  --help      print this text";

/// The expected routing of one handler.
struct Row {
    /// The handler that the pod asks for. Empty means the default handler.
    asked: &'static str,
    /// The handler's name in the routing table, which lists show.
    handler: &'static str,
    runtime: &'static str,
    /// The handler's name at that runtime.
    known_as: &'static str,
}

const ROWS: [Row; 4] = [
    row("runc", "runc", "runc", "runc"),
    row("kata", "kata", "kata", "kata"),
    row("gvisor", "gvisor", "gvisor", "runsc"),
    row("", "runc", "runc", "runc"),
];

/// The pod and container that were created for a row.
struct Ran {
    row: &'static Row,
    pod: String,
    container: String,
}

const fn row(
    asked: &'static str,
    handler: &'static str,
    runtime: &'static str,
    known_as: &'static str,
) -> Row {
    Row {
        asked,
        handler,
        runtime,
        known_as,
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match *arguments.iter().map(String::as_str).collect::<Vec<_>>() {
        ["--help" | "-h"] => {
            println!("{HELP}\n\n{USAGE}");
            return ExitCode::SUCCESS;
        }
        [] => demo(false).await,
        ["--once"] => demo(true).await,
        ["status", directory] => status_of(directory).await,
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(64);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nThe demo failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the demo until it ends or a signal ends it. Then its temporary directory is removed.
async fn demo(once: bool) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let sims = [
        Sim::new("runc").image(IMAGE),
        Sim::new("kata").image(IMAGE),
        Sim::new("gvisor").handlers(["runsc"]).image(IMAGE),
    ];
    for sim in &sims {
        // `criswitch try` waits for a line in the log of its container.
        sim.clone().set(|settings| settings.writes_logs = true);
    }
    let mut rig = Rig::with_config(sims, table).await.on_a_real_clock();
    let ended = tokio::select! {
        ended = show_everything(&rig, once) => ended,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    rig.stop_switch().await;
    ended
}

/// Shows and checks everything. Then it ends with `once`, and otherwise serves.
async fn show_everything(rig: &Rig, once: bool) -> Result<()> {
    show::opening(rig, &table("DIR"));
    let ran = run_everything(rig).await?;
    show::who_ran_what(&ran);
    merged_lists(rig, &ran).await?;
    unknown_handler(rig).await?;
    stopped_runtime(rig).await?;
    if once {
        check_reload(rig).await?;
        println!("\nAll checks passed.");
    } else {
        write_configs(rig.directory())?;
        show::commands(rig);
        rig.answer_reloads().await;
    }
    Ok(())
}

fn table(directory: &str) -> String {
    format!(
        r#"default_handler = "runc"
shutdown_timeout = "1s"

[handlers]
runc   = "{directory}/runc.sock"
kata   = "{directory}/kata.sock"
gvisor = {{ socket = "{directory}/gvisor.sock", handler = "runsc" }}
"#
    )
}

/// Creates a pod and a running container for each row, and checks that only the right runtime has them.
async fn run_everything(rig: &Rig) -> Result<Vec<Ran>> {
    let mut ran = Vec::new();
    for row in &ROWS {
        ran.push(
            run(rig, row)
                .await
                .with_context(|| format!("asked for the handler \"{}\"", row.asked))?,
        );
    }
    Ok(ran)
}

/// Creates the pod and the container of a row, and checks which runtimes have them.
async fn run(rig: &Rig, row: &'static Row) -> Result<Ran> {
    let client: &Client = rig;
    let name = match row.asked {
        "" => "plain",
        handler => handler,
    };
    let pod = client.run_pod(row.asked, name).await?;
    let container = client
        .create_from(&pod, container_in(&pod_config(name).labels, name, IMAGE))
        .await?;
    client.start(&container).await?;
    let ran = Ran {
        row,
        pod,
        container,
    };
    rig.sims.iter().try_for_each(|sim| check_place(sim, &ran))?;
    Ok(ran)
}

fn check_place(sim: &Sim, ran: &Ran) -> Result<()> {
    let (name, row) = (sim.name(), ran.row);
    let pod = sim.pods().into_iter().find(|pod| pod.id == ran.pod);
    let has_container = sim.containers().iter().any(|c| c.id == ran.container);
    let belongs = name == row.runtime;
    for (what, is_there) in [("pod", pod.is_some()), ("container", has_container)] {
        let found = if is_there { "is" } else { "is not" };
        ensure!(is_there == belongs, "the {what} {found} in {name}");
    }
    if let Some(asked) = pod.map(|pod| pod.runtime_handler) {
        ensure!(asked == row.known_as, "{name} was asked for \"{asked}\"");
    }
    Ok(())
}

/// Shows the merged lists, and checks them: the default backend's pods come first, and each pod has the name of its
/// handler in the routing table.
async fn merged_lists(rig: &Rig, ran: &[Ran]) -> Result<()> {
    let pods = rig.pods().await.context("the list of pods")?;
    let containers = rig.containers().await.context("the list of containers")?;
    show::lists(&pods, &containers);
    let handlers: Vec<&str> = pods.iter().map(|pod| &*pod.runtime_handler).collect();
    ensure!(
        handlers == ["runc", "runc", "kata", "gvisor"],
        "the list of pods has the handlers {handlers:?}"
    );
    for Ran { row, pod, .. } in ran {
        let handler = pods
            .iter()
            .find(|listed| listed.id == *pod)
            .map(|listed| &*listed.runtime_handler);
        ensure!(
            handler == Some(row.handler),
            "pod {pod} is listed under {handler:?}"
        );
    }
    for Ran { pod, container, .. } in ran {
        let of = containers
            .iter()
            .find(|listed| listed.id == *container)
            .map(|listed| &listed.pod_sandbox_id);
        ensure!(
            of == Some(pod),
            "container {container} is listed under {of:?}"
        );
    }
    ensure!(containers.len() == ran.len(), "a container is listed twice");
    Ok(())
}

async fn unknown_handler(rig: &Rig) -> Result<()> {
    let client: &Client = rig;
    let Err(rejection) = client.run_pod("firecracker", "lost").await else {
        bail!("a pod with an unknown handler was run")
    };
    show::rejection(&rejection);
    ensure!(
        rejection.code() == tonic::Code::InvalidArgument
            && rejection.message().contains("\"firecracker\""),
        "the rejection should be InvalidArgument and name the handler"
    );
    let pods: usize = rig.sims.iter().map(|sim| sim.pods().len()).sum();
    ensure!(pods == ROWS.len(), "the refused pod was created");
    Ok(())
}

/// Stops the runtime kata, and checks that the list stays complete and that pods of the other runtimes start. Then
/// starts kata again.
async fn stopped_runtime(rig: &Rig) -> Result<()> {
    let (client, kata): (&Client, _) = (rig, rig.sim("kata"));
    let before = client.pods().await.context("the list of pods")?;
    kata.stop().await;
    verdict_until(rig, |level| level != Level::Serving).await?;
    let pods = client.pods().await.context("the list without kata")?;
    show::stopped(&verdict_until(rig, |_| true).await?, &pods);
    ensure!(pods.len() == before.len(), "the list lost a pod: {pods:?}");
    let pod = client
        .run_pod("gvisor", "meanwhile")
        .await
        .context("a pod of gvisor while kata is down")?;
    let Err(why) = client.run_pod("kata", "later").await else {
        bail!("a pod of kata started while kata is down")
    };
    show::meanwhile(&pod, &why);
    kata.start();
    show::healed(&verdict_until(rig, |level| level == Level::Serving).await?);
    client
        .run_pod("kata", "later")
        .await
        .context("a pod of kata, which is back")?;
    Ok(())
}

/// The verdict of `criswitch status`, as soon as `is_wanted` accepts its level. A change takes milliseconds, but the
/// demo has no time limit: Ctrl-C ends it.
async fn verdict_until(rig: &Rig, is_wanted: impl Fn(Level) -> bool) -> Result<NodeVerdict> {
    loop {
        let verdict = verdict(rig).await?;
        if is_wanted(verdict.level) {
            return Ok(verdict);
        }
        tokio::task::yield_now().await;
    }
}

async fn verdict(client: &Client) -> Result<NodeVerdict> {
    let state = client.admin().get_state(GetStateRequest {}).await?;
    Ok(NodeVerdict::of(&state.into_inner(), Vec::new(), None))
}

/// Shows the verdict and the pods of a demo that runs in this directory.
async fn status_of(directory: &str) -> Result<()> {
    let client = Client::new(&Path::new(directory).join("criswitch.sock"));
    show::status(&verdict(&client).await.context("no demo runs there")?);
    show::pods(&client.pods().await?);
    Ok(())
}

/// Checks that the daemon answers the call with which `criswitch reload` requests a reload.
async fn check_reload(rig: &Rig) -> Result<()> {
    let mut admin = rig.admin();
    let result = tokio::select! {
        reloaded = admin.reload(ReloadRequest {}) => {
            reloaded?.into_inner().reload.and_then(|reload| reload.result)
        }
        () = rig.answer_reloads() => None,
    };
    ensure!(
        matches!(result, Some(reload::Result::Changes(_))),
        "a reload ends with {result:?}"
    );
    Ok(())
}

/// Writes the files for `crictl runp` and `crictl create`.
fn write_configs(directory: &Path) -> Result<()> {
    let metadata = pod_config("mine").metadata.unwrap_or_default();
    let pod = serde_json::json!({
        "metadata": { "name": metadata.name, "uid": metadata.uid, "namespace": metadata.namespace }
    });
    let container = serde_json::json!({
        "metadata": { "name": "mine" },
        "image": { "image": IMAGE },
        "command": container_config("mine", IMAGE).command,
    });
    std::fs::write(directory.join("pod.json"), pod.to_string())?;
    std::fs::write(directory.join("container.json"), container.to_string())?;
    Ok(())
}
