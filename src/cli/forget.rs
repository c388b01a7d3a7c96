//! `criswitch forget`: makes the daemon forget a backend whose runtime is gone for good.

use std::io::{self, BufRead, IsTerminal};

use anyhow::{bail, ensure};
use criswitch::codec::admin::{Backend, State};

use super::running::{self, Running};
use super::{Forget, Verdict, pods, print, terminal};

impl Forget {
    pub(super) fn run(self) -> anyhow::Result<Verdict> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(self.forget())
    }

    async fn forget(&self) -> anyhow::Result<Verdict> {
        let daemon = self.daemon.connect().await?;
        let state = daemon.state().await?;
        let backend = running::backend(&state, &self.backend)?;
        ensure!(
            backend.state != "ready",
            "backend {:?} ({}) answers, so its pods can be removed; nothing is forgotten",
            backend.name,
            backend.socket
        );
        if !self.yes {
            print(shown(&daemon, &state, backend).await?)?;
            if !confirmed(&format!("Forget backend {}? [y/N] ", backend.name))? {
                bail!("nothing is forgotten");
            }
        }
        daemon.forget(backend.name.clone()).await?;
        print(format!("forgotten: {}\n", backend.name))
    }
}

/// The pods that are lost, and what that means.
async fn shown(daemon: &Running, state: &State, backend: &Backend) -> anyhow::Result<String> {
    let table = pods::of_backend(daemon, state, &backend.name).await;
    let table = table.unwrap_or_else(|cause| {
        let cause = format!(
            "The pods of backend {} cannot be listed: {cause:#}",
            backend.name
        );
        terminal::wrapped_first(&cause)
    });
    let warning = format!(
        "The kubelet takes these pods of backend {} ({}) for dead and starts new ones. Processes of theirs that still run \
         are nobody's then. Only go on if the runtime is gone for good.",
        backend.name, backend.socket
    );
    Ok(table + &terminal::wrapped_first(&warning))
}

fn confirmed(question: &str) -> anyhow::Result<bool> {
    ensure!(
        io::stdin().is_terminal(),
        "standard input is no terminal; to go on without a question, add --yes"
    );
    print(question.to_owned())?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
