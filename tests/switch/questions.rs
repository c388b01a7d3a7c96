//! criswitch's own questions to the runtimes, counted at the runtimes. A question lists pods and containers, for
//! example to find the owner of an unknown id.

use crate::support::{Journal, Rig, Sim};

/// The number of pod lists that criswitch itself requested from a runtime. A question to all backends requests one list
/// from each backend.
pub fn asked(sim: &Sim) -> usize {
    let calls = sim.calls("ListPodSandbox");
    calls.iter().filter(|call| is_own(call)).count()
}

fn is_own(call: &crate::support::Call) -> bool {
    call.header("user-agent")
        .is_some_and(crate::support::is_own_agent)
}

/// The number of container lists that criswitch itself requested. Each question ends with such a list.
pub fn answered(journal: &Journal) -> usize {
    journal
        .calls_of("ListContainers")
        .filter(|call| is_own(call))
        .count()
}

/// Waits until criswitch has connected to every backend and has listed every backend. Until the next call criswitch
/// knows only the contents of these lists.
pub async fn settled(rig: &Rig) {
    for sim in &rig.sims {
        settled_at(sim).await;
    }
    // This call goes to all backends, so they are ready when it returns.
    rig.runtime()
        .list_container_stats(criswitch_cri::codec::cri::ListContainerStatsRequest { filter: None })
        .await
        .unwrap();
}

/// Waits until a runtime has answered a question of criswitch.
pub async fn settled_at(sim: &Sim) {
    sim.until(|journal| answered(journal) > 0).await;
}

/// Counts criswitch's questions from the creation of this value on.
pub struct Since(Vec<usize>);

impl Since {
    pub async fn now(rig: &Rig) -> Since {
        settled(rig).await;
        Since(rig.sims.iter().map(asked).collect())
    }

    /// The number of questions to each runtime.
    pub fn asked(&self, rig: &Rig) -> Vec<usize> {
        let counts = rig.sims.iter().zip(&self.0);
        counts.map(|(sim, before)| asked(sim) - before).collect()
    }
}
