//! `criswitch forget`: makes the daemon forget a backend whose runtime is gone for good.

use std::io::{self, BufRead, IsTerminal};

use anyhow::{bail, ensure};
use clap::Args;
use clap_complete::ArgValueCandidates;
use criswitch_advice::verdict;
use criswitch_client::arguments::Daemon;
use criswitch_client::exit::Verdict;
use criswitch_client::program::block_on;
use criswitch_client::running::{self, Running};
use criswitch_client::terminal::{self, print};
use criswitch_cri::codec::admin::{Backend, State};

use super::{complete, pods};

/// The arguments of `criswitch forget`.
#[derive(Args)]
pub(super) struct ForgetArguments {
    #[command(flatten)]
    daemon: Daemon,
    /// The name of the backend, as shown by `criswitch status`.
    #[arg(add = ArgValueCandidates::new(complete::backends))]
    backend: String,
    /// Forget the backend without showing its pods first, and without a confirmation.
    #[arg(long)]
    yes: bool,
}

impl ForgetArguments {
    pub(super) fn run(self) -> anyhow::Result<Verdict> {
        block_on(self.forget())
    }

    async fn forget(&self) -> anyhow::Result<Verdict> {
        let daemon = self.daemon.connect().await?;
        let state = daemon.state().await?;
        let backend = running::backend(&state, &self.backend)?;
        ensure!(
            !verdict::is_ready(backend),
            "backend {:?} ({}) answers, so it is not forgotten; remove its pods instead",
            backend.name,
            backend.socket
        );
        if !self.yes {
            print(shown(&daemon, &state, backend).await?)?;
            if !confirmed(&format!("Forget backend {}? [y/N] ", backend.name))? {
                bail!("not confirmed: nothing is forgotten");
            }
        }
        daemon.forget(backend.name.clone()).await?;
        print(format!("forgotten: {}\n", backend.name))
    }
}

/// The text before the confirmation: the pods of the backend, and the effect of forgetting the backend.
async fn shown(daemon: &Running, state: &State, backend: &Backend) -> anyhow::Result<String> {
    let table = pods::of_backend(daemon, state, &backend.name)
        .await
        .unwrap_or_else(|cause| {
            terminal::wrapped_first(&format!(
                "The pods of backend {} cannot be listed: {cause:#}",
                backend.name
            ))
        });
    let warning = format!(
        "Pods of backend {} ({}) that another backend lists pass to that backend. The kubelet will treat the other pods as \
         dead and start new ones. Processes of the other pods that still run become unmanaged. Continue only if the runtime \
         is gone for good, or now serves another socket.",
        backend.name, backend.socket
    );
    Ok(table + &terminal::wrapped_first(&warning))
}

fn confirmed(question: &str) -> anyhow::Result<bool> {
    ensure!(
        io::stdin().is_terminal(),
        "standard input is not a terminal, so nothing is forgotten; add --yes to skip the confirmation"
    );
    print(question.to_owned())?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
