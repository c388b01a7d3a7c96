//! criswitch's filters of cached lists, compared with the same filters on lists that prost decodes.

use std::collections::HashMap;
use std::fmt::Debug;

use arbitrary::Unstructured;
use bytes::Bytes;
use criswitch_cri::codec::cri;
use criswitch_cri::rpc::List;
use criswitch_cri::rpc::filter;
use prost::Message;

use super::lists::keeps_order;
use super::messages::{self, decode};

pub fn check(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let _ = checked(&mut u);
}

fn checked(u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let unwanted = messages::text(u)?;
    match u.int_in_range(0..=5)? {
        0 => {
            let names = ("ListPodSandboxResponse", "ListPodSandboxRequest");
            compare(u, List::Pods, names, pods, &unwanted)
        }
        1 => {
            let names = ("ListContainersResponse", "ListContainersRequest");
            compare(u, List::Containers, names, containers, &unwanted)
        }
        2 => {
            let names = ("ListImagesResponse", "ListImagesRequest");
            compare(u, List::Images, names, images, &unwanted)
        }
        3 => {
            let names = ("ListContainerStatsResponse", "ListContainerStatsRequest");
            compare(u, List::ContainerStats, names, container_stats, &unwanted)
        }
        4 => {
            let names = ("ListPodSandboxStatsResponse", "ListPodSandboxStatsRequest");
            compare(u, List::PodStats, names, pod_stats, &unwanted)
        }
        _ => {
            let stats = messages::message(u, "ListPodSandboxStatsResponse")?.into();
            compare_inside(List::PodStats, &stats, inside_stats, &unwanted);
            let metrics = messages::message(u, "ListPodSandboxMetricsResponse")?.into();
            compare_inside(List::PodMetrics, &metrics, inside_metrics, &unwanted);
            Ok(())
        }
    }
}

fn compare<L, R>(
    u: &mut Unstructured<'_>,
    list: List,
    (items, request): (&str, &str),
    slow: fn(&mut L, R, &str),
    unwanted: &str,
) -> arbitrary::Result<()>
where
    L: Message + Default + PartialEq + Debug,
    R: Message + Default,
{
    let request = messages::message(u, request)?;
    let items = Bytes::from(messages::message(u, items)?);
    let filtered = filter::filter(list, &items, &request, |id| id != unwanted);
    if let Ok(filtered) = &filtered {
        keeps_order(std::slice::from_ref(&items), filtered);
        let again = filter::filter(list, filtered, &request, |_| true);
        assert_eq!(again.as_ref(), Ok(filtered));
    }
    if let (Some(mut wanted), Some(request)) = (decode(&items), decode(&request)) {
        slow(&mut wanted, request, unwanted);
        let filtered = L::decode(filtered.expect("prost can read it"));
        assert_eq!(filtered.as_ref(), Ok(&wanted));
    }
    Ok(())
}

fn pods(
    list: &mut cri::ListPodSandboxResponse,
    request: cri::ListPodSandboxRequest,
    unwanted: &str,
) {
    let filter = request.filter.unwrap_or_default();
    list.items.retain(|pod| {
        pod.id != unwanted
            && pod.id.starts_with(&filter.id)
            && filter.state.is_none_or(|state| state.state == pod.state)
            && has(&pod.labels, &filter.label_selector)
    });
}

fn containers(
    list: &mut cri::ListContainersResponse,
    request: cri::ListContainersRequest,
    unwanted: &str,
) {
    let filter = request.filter.unwrap_or_default();
    list.containers.retain(|container| {
        container.id != unwanted
            && container.id.starts_with(&filter.id)
            && container.pod_sandbox_id.starts_with(&filter.pod_sandbox_id)
            && filter
                .state
                .is_none_or(|state| state.state == container.state)
            && has(&container.labels, &filter.label_selector)
    });
}

fn container_stats(
    list: &mut cri::ListContainerStatsResponse,
    request: cri::ListContainerStatsRequest,
    unwanted: &str,
) {
    let filter = request.filter.unwrap_or_default();
    list.stats.retain(|stats| {
        let attributes = stats.attributes.clone().unwrap_or_default();
        attributes.id != unwanted
            && attributes.id.starts_with(&filter.id)
            && has(&attributes.labels, &filter.label_selector)
    });
}

fn pod_stats(
    list: &mut cri::ListPodSandboxStatsResponse,
    request: cri::ListPodSandboxStatsRequest,
    unwanted: &str,
) {
    let filter = request.filter.unwrap_or_default();
    list.stats.retain(|stats| {
        let attributes = stats.attributes.clone().unwrap_or_default();
        attributes.id != unwanted
            && attributes.id.starts_with(&filter.id)
            && has(&attributes.labels, &filter.label_selector)
    });
}

/// Compares the filter that removes containers from the stats and metrics of pods.
fn compare_inside<L: Message + Default + PartialEq + Debug>(
    list: List,
    items: &Bytes,
    slow: fn(&mut L, &str),
    unwanted: &str,
) {
    let without = filter::without_nested_containers(list, items, |id| id != unwanted);
    if let Some(mut wanted) = decode::<L>(items) {
        slow(&mut wanted, unwanted);
        let without = without.expect("prost can read it");
        let without = L::decode(without.as_ref().unwrap_or(items).as_ref());
        assert_eq!(without.as_ref(), Ok(&wanted));
    }
}

fn inside_stats(list: &mut cri::ListPodSandboxStatsResponse, unwanted: &str) {
    for stats in &mut list.stats {
        let is_wanted = |attributes: &Option<cri::ContainerAttributes>| {
            attributes.clone().unwrap_or_default().id != unwanted
        };
        if let Some(linux) = &mut stats.linux {
            linux.containers.retain(|it| is_wanted(&it.attributes));
        }
        if let Some(windows) = &mut stats.windows {
            windows.containers.retain(|it| is_wanted(&it.attributes));
        }
    }
}

fn inside_metrics(list: &mut cri::ListPodSandboxMetricsResponse, unwanted: &str) {
    for pod in &mut list.pod_metrics {
        pod.container_metrics
            .retain(|it| it.container_id != unwanted);
    }
}

fn has(labels: &HashMap<String, String>, selector: &HashMap<String, String>) -> bool {
    selector
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}

fn images(list: &mut cri::ListImagesResponse, request: cri::ListImagesRequest, unwanted: &str) {
    let filter = request.filter.unwrap_or_default();
    let name = filter.image.unwrap_or_default().image;
    list.images.retain(|image| {
        let mut names = image.repo_tags.iter().chain(&image.repo_digests);
        image.id != unwanted
            && (name.is_empty() || image.id == name || names.any(|its| *its == name))
    });
}
