//! The consequences that a backend has for its pods and for clients of the node, besides those of missing features.

use std::borrow::Cow;

use criswitch_client::probe::{DOCKER, Probed};
use serde::Serialize;

use super::features::named;

/// The backends that have a consequence.
enum Cause {
    /// Backends without this RPC.
    Lacks(&'static str),
    /// Backends whose runtime has this name.
    Runtime(&'static str),
}

use Cause::{Lacks, Runtime};

const CONSEQUENCES: &[(Cause, &str)] = &[
    (
        Lacks("ListPodSandboxStats"),
        "ListPodSandboxStats is missing. While the backend has pods, this call is Unimplemented for the whole node: the \
         kubelet takes the stats of pods from cAdvisor, and `crictl statsp` fails.",
    ),
    (
        Lacks("GetContainerEvents"),
        "GetContainerEvents is missing, so this call is Unimplemented for the whole node: the kubelet lists pods and \
         containers instead, and `crictl events` fails.",
    ),
    (
        Lacks("PodSandboxStats"),
        "PodSandboxStats is missing. With the feature gate PodAndContainerStatsFromCRI, the kubelet asks for it at its \
         start, and then takes the stats of the pods of all backends from cAdvisor.",
    ),
    (
        Lacks("ListPodSandboxMetrics"),
        "ListPodSandboxMetrics is missing. The pods of the backend are not in the reply of this call: `crictl metricsp` \
         does not show them, and with the feature gate PodAndContainerStatsFromCRI they are not in /metrics/cadvisor of the \
         kubelet.",
    ),
    (
        Runtime(DOCKER),
        "cri-dockerd has no handlers of its own. Its rows need `handler = \"\"` or `handler = \"docker\"`.",
    ),
    (
        Runtime(DOCKER),
        "With Docker's log driver json-file, the logs of its containers are Docker's JSON, not the text of the CRI. Log \
         agents must read this format.",
    ),
];

/// A consequence, and the names of the backends that it comes from.
#[derive(Serialize)]
pub(super) struct Consequence<'a> {
    pub(super) backends: Vec<&'a str>,
    pub(super) what: Cow<'static, str>,
}

/// The consequences of backends that answered the probe, with their names.
pub(super) fn of_backends<'a>(backends: &[(&'a str, &Probed)]) -> Vec<Consequence<'a>> {
    let consequences = CONSEQUENCES
        .iter()
        .map(|(cause, what)| Consequence {
            backends: backends
                .iter()
                .filter(|(_, found)| match cause {
                    Lacks(rpc) => found.lacking.contains(rpc),
                    Runtime(name) => found.runtime == *name,
                })
                .map(|(name, _)| *name)
                .collect(),
            what: Cow::Borrowed(*what),
        })
        .filter(|consequence| !consequence.backends.is_empty());
    let unpinned = backends.iter().filter_map(|(name, found)| {
        Some(Consequence {
            backends: vec![*name],
            what: Cow::Owned(found.pause_image_warning()?),
        })
    });
    consequences.chain(unpinned).collect()
}

impl Consequence<'_> {
    pub(super) fn line(&self) -> String {
        let backends = named("backend", self.backends.iter());
        format!("{backends}: {}", self.what)
    }
}
