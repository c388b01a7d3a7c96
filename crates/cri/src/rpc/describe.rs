//! Describes rows of the RPC table in words, for `criswitch routes` and docs/rpcs.md.

use serde::{Serialize, Serializer};

use super::{
    Filter, Goes, IfUnimplemented, ImageRule, Join, Kind, List, Merge, Row, Service, Silent, Then,
    Unknown,
};

/// A row of the RPC table in words. Any text may be empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Words {
    /// The service and name, such as `RuntimeService/Version`.
    pub rpc: String,
    /// The backends that receive the call.
    pub goes_to: &'static str,
    /// The routing fields of the request: names of fields, with a dot between a message and a field in it.
    pub key: String,
    /// The client's reply.
    pub reply: String,
    /// The reply for an id that no backend knows.
    pub unknown_id: &'static str,
    /// `yes` if a runtime may lack the RPC.
    #[serde(serialize_with = "is_yes")]
    pub optional: &'static str,
}

fn is_yes<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(!text.is_empty())
}

impl Row {
    /// Describes the row in words.
    pub fn words(&self) -> Words {
        Words {
            rpc: format!("{}/{}", short_name(self.service), self.name),
            goes_to: self.goes_to(),
            key: self.key(),
            reply: self.reply(),
            unknown_id: self.unknown_id(),
            optional: if self.may_lack { "yes" } else { "" },
        }
    }

    fn goes_to(&self) -> &'static str {
        match &self.goes {
            Goes::Default => "the default backend",
            Goes::Handler(_) => "the handler's backend",
            Goes::Owner(Kind::Pod, ..) | Goes::OwnerWithImage(_) => "the pod's owner",
            Goes::Owner(Kind::Container, ..) => "the container's owner",
            Goes::All(filter, _) if !filter_key(filter).is_empty() => {
                "all, or the owner of the filter's id"
            }
            Goes::All(_, Merge::RemoveProfile) => "all that list the digest",
            Goes::All(..) => "all",
            Goes::Image(_, ImageRule::Find(_)) => "the backend of the handler or pod, else all",
            Goes::Image(_, ImageRule::Pull(_)) => {
                "the backend of the handler or pod, else all that a handler routes to"
            }
            Goes::Image(_, ImageRule::Remove) => {
                "the handler's backend, else all that have the image"
            }
            Goes::Image(_, ImageRule::List(_)) => "the handler's backend, else all",
        }
    }

    fn key(&self) -> String {
        match &self.goes {
            Goes::Default => String::new(),
            Goes::Handler(_) => "runtime_handler".into(),
            Goes::Owner(Kind::Pod, ..) | Goes::OwnerWithImage(_) => "pod_sandbox_id".into(),
            Goes::Owner(Kind::Container, ..) => "container_id".into(),
            Goes::All(filter, _) => filter_key(filter),
            Goes::Image(_, ImageRule::Find(_)) => "image.runtime_handler, image.annotations".into(),
            Goes::Image(_, ImageRule::Pull(_)) => {
                "image.runtime_handler, sandbox_config.metadata.uid".into()
            }
            Goes::Image(_, ImageRule::Remove) => "image.runtime_handler".into(),
            Goes::Image(_, ImageRule::List(_)) => "filter.image.runtime_handler".into(),
        }
    }

    fn reply(&self) -> String {
        let reply = match &self.goes {
            Goes::All(_, merge) | Goes::Image(_, ImageRule::List(merge)) => {
                merged(merge) + merge.items().map_or("", |items| instead(items.silent))
            }
            Goes::Image(_, ImageRule::Find(_)) => {
                "unchanged; an error if several backends have different images".into()
            }
            Goes::Image(_, ImageRule::Pull(_)) => {
                "unchanged; the default backend's if several backends are called".into()
            }
            Goes::Image(_, ImageRule::Remove) => {
                "OK if every backend returns OK or does not have the image afterwards".into()
            }
            _ => "unchanged".into(),
        };
        let probe = match self.probe() {
            Some(_) => "; with an empty id Unimplemented if a backend that gets pods lacks it",
            None => "",
        };
        let edited = match (&self.then, &self.goes) {
            (Then::Rename(_) | Then::HaveImage(_), _)
            | (Then::List(List::Pods | List::Containers | List::Images), _)
            | (_, Goes::All(_, Merge::Events)) => "; handlers have the names of the rows",
            (Then::CompleteUrl(_), _) => "; a URL that begins with // gets the scheme http",
            (Then::List(List::PodMetrics), _) => {
                "; label values are in the order of ListMetricDescriptors"
            }
            _ => "",
        };
        reply + probe + edited
    }

    fn unknown_id(&self) -> &'static str {
        match &self.goes {
            Goes::Owner(_, _, Unknown::Ok) => "OK",
            Goes::Owner(_, _, Unknown::NotFound) | Goes::OwnerWithImage(_) => "NotFound",
            Goes::All(filter, _) if !filter_key(filter).is_empty() => "an empty list",
            _ => "",
        }
    }
}

fn joined(join: &Join) -> &'static str {
    match join {
        Join::Concat => "concatenated",
        Join::Distinct(_) => "concatenated; duplicate entries are omitted",
        Join::Images => "one entry per image id",
        Join::Profiles => "one entry per digest, with the references of all backends",
        Join::Descriptors => "one entry per metric, with the label keys of all backends",
    }
}

fn merged(merge: &Merge) -> String {
    match merge {
        Merge::Items(items) => {
            joined(&items.join).to_owned() + without(items.lacking)
        }
        Merge::Streamed(list, items) => {
            let joined = joined(&items.join);
            format!("{joined}; {} of a backend that lacks the RPC", list.name)
        }
        Merge::Events => "interleaved; Unimplemented if a backend lacks it".into(),
        Merge::Status => "the default backend's, with the handlers of the routing table".into(),
        Merge::RuntimeConfig => {
            "the default backend's; if it lacks the RPC, the cgroup driver of its configuration, else the first reply of another backend".into()
        }
        Merge::UpdateRuntimeConfig => "OK if every reachable backend accepts it".into(),
        Merge::Profiles => {
            let joined = joined(&Join::Profiles).to_owned() + without(IfUnimplemented::Omitted);
            joined + "; an error if any other answer cannot be used"
        }
        Merge::RemoveProfile => "OK if every backend that lists the profile returns OK; backends that lack it are omitted".into(),
    }
}

fn instead(silent: Silent) -> &'static str {
    match silent {
        Silent::LastKnown => "; with cached lists",
        Silent::LastKnownOrOmitted => "; with cached stats",
        Silent::OmittedUnlessDefault => {
            "; backends other than the default are omitted if their answers cannot be used"
        }
    }
}

fn without(lacking: IfUnimplemented) -> &'static str {
    match lacking {
        IfUnimplemented::Error => "",
        IfUnimplemented::FailsForPods => "; Unimplemented if a backend with pods lacks it",
        IfUnimplemented::Omitted => "; backends that lack it are omitted",
    }
}

fn short_name(service: Service) -> &'static str {
    let name = service.name();
    name.rsplit_once('.').map_or(name, |(_, short)| short)
}

/// The fields of a filter that narrow a list; empty if it has none.
fn filter_key(filter: &Filter) -> String {
    [
        filter.id.map(|_| "filter.id"),
        filter.pod.map(|_| "filter.pod_sandbox_id"),
        filter.labels.map(|_| "filter.label_selector"),
    ]
    .into_iter()
    .flatten()
    .collect::<Vec<_>>()
    .join(", ")
}
