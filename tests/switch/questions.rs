//! The questions that the switch asks of its own: how many, as the runtimes see them.

use crate::support::{Journal, Rig, Sim};

/// How many lists of pods the switch itself has asked a runtime for; a question to all is one at each.
pub fn asked(sim: &Sim) -> usize {
    let calls = sim.calls("ListPodSandbox");
    calls.iter().filter(|call| is_own(call)).count()
}

fn is_own(call: &crate::support::Call) -> bool {
    call.header("user-agent")
        .is_some_and(|agent| agent.starts_with("criswitch/"))
}

/// How many lists of containers likewise; a question ends with it.
pub fn answered(journal: &Journal) -> usize {
    journal
        .calls_of("ListContainers")
        .filter(|call| is_own(call))
        .count()
}

/// Every backend is connected and listed; nothing else is known.
pub async fn settled(rig: &Rig) {
    for sim in &rig.sims {
        settled_at(sim).await;
    }
    // Goes to all, so all of them are ready once it is answered.
    rig.runtime()
        .list_container_stats(criswitch::codec::cri::ListContainerStatsRequest { filter: None })
        .await
        .unwrap();
}

/// A runtime has answered a question of the switch.
pub async fn settled_at(sim: &Sim) {
    sim.until(|journal| answered(journal) > 0).await;
}

/// Counts the questions from here on.
pub struct Since(Vec<usize>);

impl Since {
    pub async fn now(rig: &Rig) -> Since {
        settled(rig).await;
        Since(rig.sims.iter().map(asked).collect())
    }

    /// How many each runtime was asked.
    pub fn asked(&self, rig: &Rig) -> Vec<usize> {
        let counts = rig.sims.iter().zip(&self.0);
        counts.map(|(sim, before)| asked(sim) - before).collect()
    }
}
