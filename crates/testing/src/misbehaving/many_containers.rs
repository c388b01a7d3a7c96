//! A list of 100,000 containers: valid, but more than a node ever has.

use super::{Reply, containers, fine};

pub const MANY: usize = 100_000;

pub fn many_containers(rpc: &str) -> Option<Reply> {
    (rpc == "ListContainers").then(|| {
        let ids: Vec<_> = (0..MANY).map(|number| format!("{number:064}")).collect();
        fine(&containers(ids.iter().map(String::as_str)))
    })
}
