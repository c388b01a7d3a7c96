//! The shipped files that use metrics refer only to existing metrics, and the tools of Prometheus accept these files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use criswitch::operator::metrics::{FAMILIES, MetricKind};
use criswitch_cri::codec::cri;
use serde_json::Value as Json;

use crate::page::{Page, REAL, ask_for_disks, rig};
use crate::support::{Rig, Sim, frame};

/// Metrics that the dashboard does not show, because other metrics in the dashboard show the same facts.
const SPARE: [&str; 12] = [
    "criswitch_verdict",
    "criswitch_backend_state_since_timestamp_seconds",
    "criswitch_backend_listed",
    "criswitch_stale_lists",
    "criswitch_backend_failing_rpcs",
    "criswitch_backend_claimed_items",
    "criswitch_backend_dropped_items_total",
    "criswitch_image_fs_used_inodes",
    "criswitch_reloads_total",
    "criswitch_log_lines_dropped_total",
    "process_virtual_memory_bytes",
    "process_start_time_seconds",
];

fn shipped(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

fn dashboard() -> Json {
    serde_json::from_str(&shipped("config/grafana-dashboard.json")).unwrap()
}

/// Every string value of this key in the JSON, at any depth.
fn under<'a>(key: &str, json: &'a Json) -> Vec<&'a str> {
    match json {
        Json::Object(map) => {
            let own = map.get(key).and_then(Json::as_str);
            let inner = map.values().flat_map(|value| under(key, value));
            own.into_iter().chain(inner).collect()
        }
        Json::Array(all) => all.iter().flat_map(|value| under(key, value)).collect(),
        _ => Vec::new(),
    }
}

/// The metrics in a query: the words that begin with `criswitch_` or `process_`.
fn names(query: &str) -> BTreeSet<&str> {
    let words = query.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words
        .filter(|word| word.starts_with("criswitch_") || word.starts_with("process_"))
        .collect()
}

/// The name of every series that a query can use.
fn series() -> BTreeSet<String> {
    let names = FAMILIES.iter().flat_map(|family| {
        let parts: &[&str] = match family.kind {
            MetricKind::Histogram => &["_bucket", "_sum", "_count"],
            MetricKind::Counter | MetricKind::Gauge => &[""],
        };
        parts
            .iter()
            .map(move |part| format!("{}{part}", family.name))
    });
    names.collect()
}

fn assert_all_there(asked: &BTreeSet<&str>) {
    let there = series();
    let missing: Vec<_> = asked
        .iter()
        .filter(|name| !there.contains(**name))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_dashboard_uses_existing_metrics_and_most_of_them() {
    let dashboard = dashboard();
    let queries = [under("expr", &dashboard), under("query", &dashboard)].concat();
    let asked: BTreeSet<_> = queries.iter().flat_map(|query| names(query)).collect();
    assert_all_there(&asked);
    let unshown: Vec<_> = FAMILIES
        .iter()
        .map(|family| family.name)
        .filter(|family| !asked.iter().any(|name| name.starts_with(family)))
        .collect();
    assert_eq!(unshown, SPARE);
}

#[test]
fn each_panel_has_a_unique_id_a_place_and_a_description() {
    let dashboard = dashboard();
    let shown = dashboard["panels"].as_array().unwrap();
    let collapsed: Vec<_> = shown
        .iter()
        .filter_map(|row| row["panels"].as_array())
        .collect();
    let first = shown.iter().filter(|panel| panel["type"] != "row");
    assert_eq!(first.count(), 15);
    let ids: Vec<_> = shown
        .iter()
        .chain(collapsed.iter().copied().flatten())
        .map(|panel| panel["id"].as_u64().unwrap())
        .collect();
    assert_eq!(BTreeSet::from_iter(&ids).len(), ids.len());
    // Grafana moves the panels below an opened row, so the panels of each collapsed row are checked separately.
    for panels in [shown].into_iter().chain(collapsed) {
        assert_panels(panels);
    }
}

#[test]
fn the_dashboard_shows_the_open_panels_first_and_then_only_collapsed_rows() {
    let dashboard = dashboard();
    let shown = dashboard["panels"].as_array().unwrap();
    let is_collapsed = |panel: &Json| panel["collapsed"] == true;
    let first = shown.iter().position(is_collapsed).unwrap();
    let (open, rest) = shown.split_at(first);
    let titles: Vec<_> = open
        .iter()
        .map(|it| it["title"].as_str().unwrap())
        .collect();
    let rows = [
        &[
            "Fleet",
            "Nodes",
            "Nodes with a problem",
            "Rollout",
            "Problems",
            "Versions",
            "Configurations",
        ][..],
        &[
            "Node",
            "Backends",
            "Pods",
            "Failing lists",
            "Last reload",
            "Retiring backends",
        ],
        &["Oldest cached list in use"],
        &[
            "Calls",
            "Calls",
            "Failed calls",
            "Part of a backend, 99th percentile",
        ],
    ];
    assert_eq!(titles, rows.concat());
    assert!(
        rest.iter().all(is_collapsed),
        "an open panel is below a collapsed row"
    );
    // Grafana places the panels by their positions, whatever their order in the file is.
    let place = |panel: &Json| ["y", "x"].map(|key| panel["gridPos"][key].as_u64().unwrap());
    assert!(shown.is_sorted_by_key(place));
}

/// Checks that no panels overlap, and that each panel has a description.
fn assert_panels(panels: &[Json]) {
    let mut taken = BTreeSet::new();
    for panel in panels {
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(x < 24 && taken.insert((x, y)), "{}", panel["title"]);
            }
        }
        let shown = panel["type"] == "row"
            || panel["description"]
                .as_str()
                .is_some_and(|text| text.ends_with('.'));
        assert!(shown, "{}", panel["title"]);
    }
}

#[test]
fn the_alerts_use_metrics_that_exist_and_each_has_a_test_and_a_section_of_the_runbook() {
    let text = shipped("config/alerts.yaml");
    let tried = shipped("tests/system/prometheus/alerts_test.yaml");
    assert_all_there(&names(&text));
    assert_all_there(&names(&tried));
    let alerts: Vec<_> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    assert!(alerts.len() >= 5);
    let runbook = shipped("docs/runbook.md");
    for alert in alerts {
        let link = format!("/docs/runbook.md#{}\n", alert.to_lowercase());
        assert!(text.contains(&link), "{alert}");
        let (_, section) = runbook.split_once(&format!("\n## {alert}\n")).expect(alert);
        let section = section.split("\n## ").next().unwrap_or_default();
        for part in ["**Meaning.**", "**Impact.**", "**Check.**", "**Do.**"] {
            assert!(section.contains(part), "{alert}: {part}");
        }
        assert!(tried.contains(&format!("alertname: {alert}\n")), "{alert}");
    }
}

/// A tool of Debian's package, unpacked by tests/system/prometheus/run.sh.
fn tool(name: &str, arguments: &[&str]) -> Command {
    let directory = std::env::var_os("PROMETHEUS_TOOLS")
        .expect("tests/system/prometheus/run.sh sets PROMETHEUS_TOOLS");
    let mut command = Command::new(PathBuf::from(directory).join(name));
    command
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

/// Runs the command with this input, and returns its output.
fn runs(mut command: Command, input: &str) -> String {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8(said).unwrap();
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

#[test]
#[ignore = "needs promtool: tests/system/prometheus/run.sh"]
fn promtool_accepts_the_alerts_and_each_alert_fires_when_it_must() {
    let said = runs(
        tool("promtool", &["check", "rules", "config/alerts.yaml"]),
        "",
    );
    assert!(said.contains("SUCCESS: 21 rules found"), "{said}");
    let said = runs(
        tool(
            "promtool",
            &["test", "rules", "tests/system/prometheus/alerts_test.yaml"],
        ),
        "",
    );
    assert!(said.contains("SUCCESS"), "{said}");
}

/// Calls of most kinds, some failing calls, a backend that dies, and a reload.
async fn load(rig: &Rig) {
    let mut runtime = rig.runtime();
    let events = runtime
        .get_container_events(cri::GetEventsRequest {})
        .await
        .unwrap();
    for turn in 0..100 {
        for handler in ["runc", "kata"] {
            let (pod, container) = rig.run(handler, &format!("{handler}-{turn}")).await;
            rig.stop(&container).await.unwrap();
            if turn % 2 == 0 {
                rig.stop_pod(&pod).await.unwrap();
                rig.remove_pod(&pod).await.unwrap();
            }
        }
        tokio::try_join!(rig.pods(), rig.containers()).unwrap();
        rig.start("nobody").await.unwrap_err();
    }
    rig.try_run("no\"such\\", "x").await.unwrap_err();
    rig.raw(
        "/runtime.v1.RuntimeService/Nothing",
        &[],
        frame(&cri::VersionRequest::default()),
    )
    .await;
    rig.reload_file();
    ask_for_disks(rig).await;
    rig.sim("kata").stop().await;
    rig.pods().await.unwrap();
    drop(events);
}

#[tokio::test]
#[ignore = "needs promtool: tests/system/prometheus/run.sh"]
async fn promtool_accepts_the_page_under_load() {
    let rig = rig("", [Sim::new("runc"), Sim::new("kata")]).await;
    load(&rig).await;
    let page = Page::of(&rig).await;
    assert_eq!(page.calls("RunPodSandbox", "kata", "OK"), 100.0);
    let said = runs(tool("promtool", &["check", "metrics"]), &page.text);
    assert_eq!(said, "");
}

/// The queries that have no value in the test: the load ends before the first scrape, and no DaemonSet exists.
const WITHOUT_VALUE: [&str; 5] = [
    "changes(criswitch_config_last_reload_timestamp_seconds",
    "sum by (daemonset) (kube_daemonset_status_number_unavailable",
    "sum by (daemonset) (kube_daemonset_status_updated_number_scheduled",
    "sum by (reason) (rate(criswitch_rejections_total",
    "sum by (rpc) (criswitch_rpcs_in_flight",
];

/// Prometheus itself reads the page and evaluates each query of the dashboard.
#[tokio::test]
#[ignore = "needs Prometheus: tests/system/prometheus/run.sh"]
async fn prometheus_reads_the_page_and_answers_every_query_of_the_dashboard() {
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let sims = [Sim::new("runc").runtime_name(REAL), Sim::new("kata")];
    let rig = Rig::with_config(sims.clone(), |directory| {
        let text = crate::page::text("", &sims, directory);
        text.replace(&format!("{directory}/m.sock"), &format!("127.0.0.1:{port}"))
    })
    .await
    .on_a_real_clock();
    load(&rig).await;
    let prometheus = crate::prometheus::Prometheus::start(rig.directory(), port, tool);
    prometheus.until_it_answers("up == 1").await;
    let dashboard = dashboard();
    let queries = under("expr", &dashboard);
    assert!(queries.len() > 25);
    for query in queries {
        let query = query
            .replace("$job", "criswitch")
            .replace("$instance", ".*")
            .replace("$__rate_interval", "1m");
        if WITHOUT_VALUE.iter().any(|start| query.starts_with(start)) {
            prometheus.answers(&query).await;
        } else {
            prometheus.until_it_answers(&query).await;
        }
    }
}
