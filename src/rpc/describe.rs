//! The table in words, for people: `criswitch routes` and docs/rpcs.md. Decides nothing.

use super::{
    Filter, Goes, ImageRule, Kind, Lacking, List, Merge, Row, Service, Silent, Then, Unknown,
};
use crate::codec::protobuf::Path;

/// A row in words; a cell with nothing to say is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words {
    /// Its service and name, as `RuntimeService/Version`.
    pub rpc: String,
    /// Which backends get it.
    pub goes_to: &'static str,
    /// Where the request says so: field numbers, a dot between a message and a field inside of it.
    pub key: String,
    /// What the client gets.
    pub reply: String,
    /// The answer where no backend knows the id.
    pub unknown_id: &'static str,
}

impl Row {
    /// What becomes of the RPC, in words.
    pub fn words(&self) -> Words {
        Words {
            rpc: format!("{}/{}", short(self.service), self.name),
            goes_to: self.goes_to(),
            key: self.key(),
            reply: self.reply(),
            unknown_id: self.unknown_id(),
        }
    }

    fn goes_to(&self) -> &'static str {
        match &self.goes {
            Goes::Default => "the default backend",
            Goes::Handler(_) => "the handler's backend",
            Goes::Owner(Kind::Pod, ..) | Goes::OwnerWithImage(_) => "the pod's owner",
            Goes::Owner(Kind::Container, ..) => "the container's owner",
            Goes::All(filter, _) if paths(filter).next().is_some() => "all, or the filter's owner",
            Goes::All(..) => "all",
            Goes::Image(_, ImageRule::Find(_) | ImageRule::Pull(_)) => {
                "the handler's backend, the pod's, or all"
            }
            Goes::Image(_, ImageRule::Remove) => {
                "the handler's backend, or all that have the image"
            }
            Goes::Image(_, ImageRule::List(_)) => "the handler's backend, or all",
        }
    }

    fn key(&self) -> String {
        let keys: Vec<Path> = match &self.goes {
            Goes::Default => Vec::new(),
            Goes::Handler(key) | Goes::Owner(_, key, _) | Goes::OwnerWithImage(key) => vec![*key],
            Goes::All(filter, _) => paths(filter).collect(),
            Goes::Image(handler, ImageRule::Find(pod) | ImageRule::Pull(pod)) => {
                vec![*handler, *pod]
            }
            Goes::Image(handler, ImageRule::Remove | ImageRule::List(_)) => vec![*handler],
        };
        let keys: Vec<String> = keys.into_iter().map(dotted).collect();
        keys.join(", ")
    }

    fn reply(&self) -> String {
        let reply = match &self.goes {
            Goes::All(_, merge) | Goes::Image(_, ImageRule::List(merge)) => {
                merged(merge) + merge.silent().map_or("", instead)
            }
            Goes::Image(_, ImageRule::Find(_)) => {
                "unchanged; of several backends, only if they have the same image".into()
            }
            Goes::Image(_, ImageRule::Pull(_)) => {
                "unchanged; of several backends, the default backend's".into()
            }
            Goes::Image(_, ImageRule::Remove) => "OK if every backend returns OK".into(),
            _ => "unchanged".into(),
        };
        match (&self.then, &self.goes) {
            (Then::Rename(_) | Then::List(List::Pods), _) | (_, Goes::All(_, Merge::Events)) => {
                reply + "; handlers are renamed to the routing table's names"
            }
            (Then::List(List::PodMetrics), _) => {
                reply + "; label values in the order of the keys of ListMetricDescriptors"
            }
            _ => reply,
        }
    }

    fn unknown_id(&self) -> &'static str {
        match &self.goes {
            Goes::Owner(_, _, Unknown::Ok) => "OK",
            Goes::Owner(_, _, Unknown::NotFound) | Goes::OwnerWithImage(_) => "NotFound",
            Goes::All(filter, _) if paths(filter).next().is_some() => "an empty list",
            _ => "",
        }
    }
}

fn merged(merge: &Merge) -> String {
    match merge {
        Merge::Concat(lacking, _) => format!("concatenated{}", without(*lacking)),
        Merge::Distinct(_, lacking, _) => {
            format!(
                "concatenated; of entries with one name, the first{}",
                without(*lacking)
            )
        }
        Merge::Images => "one entry per image id".into(),
        Merge::Interleave(list) => format!(
            "interleaved; {} for a backend that does not implement it",
            list.name
        ),
        Merge::Events => "interleaved, if every backend implements it".into(),
        Merge::Status => "the default backend's, with the handlers of the routing table".into(),
        Merge::RuntimeConfig => "the default backend's".into(),
        Merge::UpdateRuntimeConfig => "OK if every reachable backend accepts it".into(),
    }
}

fn instead(silent: Silent) -> &'static str {
    match silent {
        Silent::LastKnown => "; the cached list of a backend that does not answer",
        Silent::LastKnownOrOmitted => {
            "; the cached stats of a backend that does not answer, or without that backend"
        }
        Silent::OmittedUnlessDefault => {
            "; without a backend that does not answer, unless it is the default backend"
        }
    }
}

fn without(lacking: Lacking) -> &'static str {
    match lacking {
        Lacking::Fails => "",
        Lacking::FailsForPods => "; Unimplemented if a backend with pods does not implement it",
        Lacking::LeftOut => "; without a backend that does not implement it",
    }
}

fn short(service: Service) -> &'static str {
    let name = service.name();
    name.rsplit_once('.').map_or(name, |(_, short)| short)
}

fn paths(filter: &Filter) -> impl Iterator<Item = Path> {
    let id = filter.id.map(|(_, path)| path);
    [id, filter.pod, filter.labels].into_iter().flatten()
}

fn dotted(path: Path) -> String {
    let numbers: Vec<String> = path.iter().map(u32::to_string).collect();
    numbers.join(".")
}
