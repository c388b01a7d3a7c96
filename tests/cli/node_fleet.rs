//! A rollout of the chart over 500 simulated nodes. Helm, the API server, the scheduler and the DaemonSet controller
//! are real. Each simulated node is a Node object with a simulated kubelet. For each way in which the change of a node
//! can end, the test runs one real `criswitch node follow`. The simulated kubelets copy the readiness of this follower.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::node_follow::Followed;

const NODES: usize = 500;
const DEAD: [usize; 3] = [1, 2, 3];
/// The time that a node needs for its change.
const CHANGE: Duration = Duration::from_millis(300);
/// The time limit on each part of a rollout.
const LIMIT: Duration = Duration::from_secs(120);
const NAMESPACE: &str = "/api/v1/namespaces/suite";
const DAEMONSET: &str = "/apis/apps/v1/namespaces/suite/daemonsets/criswitch-nodes";

/// A pod of the pool.
struct Pod {
    name: String,
    mode: String,
    specification: String,
    is_ready: bool,
    is_ending: bool,
}

struct Fleet {
    /// The address of a `kubectl proxy`.
    proxy: String,
    events: Receiver<Value>,
    /// The pod of each node.
    pods: HashMap<usize, Pod>,
    /// The changes of nodes in progress: the time of the start, the node, and the name of its pod.
    changing: VecDeque<(Instant, usize, String)>,
    /// The nodes whose kubelet does nothing.
    dead: BTreeSet<usize>,
    /// The readiness by mode, and by whether the change of the node fails.
    readiness: HashMap<(String, bool), bool>,
    /// The nodes that have changed since the last update, and those of them whose change failed.
    changed: BTreeSet<usize>,
    failed: BTreeSet<usize>,
    most_unavailable: usize,
    updated: Instant,
    /// The requests of the simulated kubelets and of this test.
    requests: usize,
}

impl Fleet {
    fn new() -> Fleet {
        let proxy = env::var("FLEET_PROXY").unwrap();
        let (sender, events) = mpsc::channel();
        // The thread ends with the process of the tests.
        thread::spawn(move || watch(&sender));
        Fleet {
            proxy,
            events,
            pods: HashMap::new(),
            changing: VecDeque::new(),
            dead: BTreeSet::new(),
            readiness: HashMap::new(),
            changed: BTreeSet::new(),
            failed: BTreeSet::new(),
            most_unavailable: 0,
            updated: Instant::now(),
            requests: 0,
        }
    }

    fn call(&mut self, method: &str, path: &str, body: Option<&Value>) -> String {
        self.requests += 1;
        let mut reply = String::new();
        let mut reader = request(&self.proxy, method, path, body);
        reader.read_to_string(&mut reply).unwrap();
        reply
    }

    fn create(&mut self, node: usize) {
        let resources = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
        let body = json!({
            "metadata": {"name": name(node), "labels": {"kubernetes.io/os": "linux", "pool": "fleet"}},
            "status": {"capacity": resources, "allocatable": resources, "conditions": [{"type": "Ready", "status": "True"}]},
        });
        self.call("POST", "/api/v1/nodes", Some(&body));
    }

    /// Removes the node's label that the pool selects. The controller counts the node's pod until the pod no longer
    /// exists.
    fn leave_pool(&mut self, node: usize) {
        let body = json!({"metadata": {"labels": {"pool": null}}});
        self.call(
            "PATCH",
            &format!("/api/v1/nodes/{}", name(node)),
            Some(&body),
        );
        self.remove(&self.pods[&node].name.clone());
    }

    fn remove(&mut self, pod: &str) {
        self.call(
            "DELETE",
            &format!("{NAMESPACE}/pods/{pod}?gracePeriodSeconds=0"),
            None,
        );
    }

    /// Sets the readiness of the pod of a node.
    fn report(&mut self, node: usize, is_ready: bool) {
        let path = format!("{NAMESPACE}/pods/{}/status", self.pods[&node].name);
        let status = if is_ready { "True" } else { "False" };
        // No pod needs a time of readiness, because the pool has no `minReadySeconds`.
        let body = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": status}]}});
        self.call("PATCH", &path, Some(&body));
    }

    /// Lets Helm install or upgrade the release. If the specification says so, the change of every tenth node fails.
    fn update(&mut self, verb: &str, mode: &str, specification: &str, max_unavailable: Value) {
        self.changed.clear();
        self.failed.clear();
        self.most_unavailable = self.unavailable().len();
        let pool = json!({
            "mode": mode, "specification": specification, "maxUnavailable": max_unavailable,
            "nodeSelector": {"pool": "fleet"},
        });
        let status = Command::new("helm4")
            .args([
                verb,
                "criswitch",
                &env::var("FLEET_CHART").unwrap(),
                "--namespace",
                "suite",
            ])
            .args(["--set-json", &format!("pools.nodes={pool}")])
            .stdout(Stdio::null())
            .status();
        assert!(status.unwrap().success());
        self.updated = Instant::now();
    }

    /// Runs the kubelets until the condition is true.
    fn until(&mut self, what: &str, mut condition: impl FnMut(&mut Fleet) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            assert!(
                start.elapsed() < LIMIT,
                "{what}: {} changed, {:?} unavailable",
                self.changed.len(),
                self.unavailable()
            );
            match self.events.recv_timeout(Duration::from_millis(20)) {
                Ok(event) => self.see(&event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => panic!("the watch has ended"),
            }
            while self
                .changing
                .front()
                .is_some_and(|(end, ..)| *end < Instant::now())
            {
                let (_, node, pod) = self.changing.pop_front().unwrap();
                self.end_change(node, &pod);
            }
        }
    }

    /// Handles one event of a pod, and then counts the unavailable nodes.
    fn see(&mut self, event: &Value) {
        let object = &event["object"];
        let Some(node) = object["spec"]["nodeName"].as_str() else {
            return;
        };
        let node: usize = node.strip_prefix("node-").unwrap().parse().unwrap();
        let name = object["metadata"]["name"].as_str().unwrap();
        let known = self.pods.get_mut(&node).filter(|pod| pod.name == name);
        let is_ending = object["metadata"]["deletionTimestamp"].is_string();
        match known {
            _ if event["type"] == "DELETED" => drop(self.pods.remove(&node)),
            Some(pod) => {
                let conditions = object["status"]["conditions"].as_array();
                pod.is_ready = conditions
                    .into_iter()
                    .flatten()
                    .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
                let ends_now = is_ending && !pod.is_ending;
                pod.is_ending = is_ending;
                if ends_now && !self.dead.contains(&node) {
                    self.remove(name);
                }
            }
            None => {
                let arguments = object["spec"]["containers"][0]["args"].as_array().unwrap();
                let mode = arguments
                    .iter()
                    .find_map(|word| word.as_str()?.strip_prefix("--mode="));
                let specification =
                    &object["metadata"]["annotations"]["criswitch.io/specification"];
                let pod = Pod {
                    name: name.to_owned(),
                    mode: mode.unwrap().to_owned(),
                    specification: specification.as_str().unwrap().to_owned(),
                    is_ready: false,
                    is_ending,
                };
                self.pods.insert(node, pod);
                let end = Instant::now() + CHANGE;
                self.changing.push_back((end, node, name.to_owned()));
            }
        }
        self.most_unavailable = self.most_unavailable.max(self.unavailable().len());
    }

    /// Ends the change of a node, if the pod still exists.
    fn end_change(&mut self, node: usize, name: &str) {
        let Some(pod) = self
            .pods
            .get(&node)
            .filter(|pod| pod.name == name && !pod.is_ending)
        else {
            return;
        };
        let fails = pod.specification.contains("fails") && node.is_multiple_of(10);
        let mode = pod.mode.clone();
        let is_ready = *self
            .readiness
            .entry((mode, fails))
            .or_insert_with_key(follow);
        self.changed.insert(node);
        if fails {
            self.failed.insert(node);
        }
        self.report(node, is_ready);
    }

    /// The nodes without a pod that is ready.
    fn unavailable(&self) -> BTreeSet<usize> {
        let is_available = |node: &usize| {
            self.pods
                .get(node)
                .is_some_and(|pod| pod.is_ready && !pod.is_ending)
        };
        (0..NODES).filter(|node| !is_available(node)).collect()
    }

    /// Waits until every node that is not dead has changed and is available. The controller must count the same.
    fn until_complete(&mut self) {
        self.until("the end of the rollout", |fleet| {
            fleet.changed.len() + fleet.dead.len() == NODES && fleet.unavailable() == fleet.dead
        });
        self.until_counted();
    }

    /// Waits until the controller has seen the last update and counts as many unavailable nodes as this test.
    fn until_counted(&mut self) {
        self.until("the status of the DaemonSet", |fleet| {
            let seen: Value = serde_json::from_str(&fleet.call("GET", DAEMONSET, None)).unwrap();
            let status = &seen["status"];
            status["observedGeneration"] == seen["metadata"]["generation"]
                && status["numberUnavailable"].as_u64().unwrap_or(0)
                    == fleet.unavailable().len() as u64
        });
    }

    /// Waits until the pods of all dead nodes end. No other node may change meanwhile, because the dead nodes use up
    /// `maxUnavailable`.
    fn until_blocked_by_the_dead(&mut self) {
        self.until("the end of the dead pods", |fleet| {
            fleet.dead.iter().all(|node| fleet.pods[node].is_ending)
        });
        self.until_counted();
        assert_eq!(self.changed, BTreeSet::new());
    }

    /// The number of requests that the API server has answered, without watches in progress.
    fn answered(&mut self) -> usize {
        let page = self.call("GET", "/metrics", None);
        let lines = page
            .lines()
            .filter(|line| line.starts_with("apiserver_request_total{"));
        lines
            .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as usize)
            .sum()
    }

    /// Checks the pace of the last update, and prints its result. If the deletion event of a pod reaches the controller
    /// late, the controller also counts the event for a later deletion. A busy controller can therefore exceed its
    /// budget by some pods. Without the pace, all nodes would change at once.
    fn check_pace(&self, what: &str, budget: usize) {
        let (most, seconds) = (self.most_unavailable, self.updated.elapsed().as_secs_f64());
        assert!(
            most <= 2 * budget,
            "{what}: {most} nodes were unavailable at once"
        );
        print(&format!(
            "{what}: {} nodes changed in {seconds:.1} s, {} of them failed, at most {most} unavailable at once",
            self.changed.len(),
            self.failed.len()
        ));
    }
}

#[test]
#[ignore = "needs a cluster: tests/system/node/run.sh"]
fn a_rollout_over_500_nodes_keeps_its_pace_stops_at_failures_and_passes_dead_nodes() {
    let mut fleet = Fleet::new();
    (0..NODES).for_each(|node| fleet.create(node));
    fleet.update("install", "plan", "# 0", json!(5));
    fleet.until_complete();
    fleet.check_pace("check, which is not paced", NODES);

    let mut stopped_at = BTreeSet::new();
    for generation in 1..=3 {
        fleet.update(
            "upgrade",
            "install",
            &format!("# {generation} fails"),
            json!(5),
        );
        fleet.until("the stop", |fleet| {
            fleet.failed.len() >= 5 && fleet.unavailable() == fleet.failed
        });
        fleet.until_counted();
        fleet.check_pace(&format!("failing update {generation}"), 5);
        // Only the nodes that failed in the last update try the next one.
        match generation {
            1 => stopped_at = fleet.failed.clone(),
            _ => assert_eq!(fleet.changed, stopped_at),
        }
    }

    let (before, own) = (fleet.answered(), fleet.requests);
    fleet.update("upgrade", "install", "# 4", json!("20%"));
    fleet.until_complete();
    fleet.check_pace("repaired update", NODES / 5);
    let own = fleet.requests - own;
    let all = fleet.answered() - before;
    print(&format!(
        "{} API requests for each node, and 2 of its kubelet",
        (all - own) as f64 / NODES as f64
    ));
    assert!(
        own <= 2 * NODES + 2 && all - own < 12 * NODES,
        "{own} of {all} requests"
    );

    // The node lifecycle controller makes the pods of a dead node unready.
    fleet.dead = BTreeSet::from(DEAD);
    DEAD.iter().for_each(|node| fleet.report(*node, false));
    fleet.until("the dead nodes", |fleet| fleet.unavailable() == fleet.dead);
    fleet.update("upgrade", "install", "# 5", json!(3));
    fleet.until_blocked_by_the_dead();
    fleet.update("upgrade", "install", "# 5", json!("20%"));
    fleet.until_complete();
    fleet.check_pace("update with three dead nodes", NODES / 5);

    fleet.update("upgrade", "install", "# 6", json!(3));
    fleet.until_blocked_by_the_dead();
    DEAD.iter().for_each(|node| fleet.leave_pool(*node));
    fleet.until("a rollout past nodes without the label", |fleet| {
        fleet.changed.len() > 9
    });
    // This test still counts the three nodes without the label, but the controller does not.
    fleet.check_pace("update past three nodes without the label", 6);
}

/// Sends each event of the pods to `sender`. The API server ends a slow watch, and the next watch continues after the
/// last event.
fn watch(sender: &Sender<Value>) {
    let mut version = "0".to_owned();
    loop {
        let path = format!(
            "{NAMESPACE}/pods?watch=true&labelSelector=criswitch.io/pool%3Dnodes&resourceVersion={version}"
        );
        // kubectl watches without the proxy, which would delay each event. kubectl runs as long as the API server, so
        // it must not hold the output of this test open.
        let mut kubectl = Command::new("kubectl");
        kubectl.args(["get", "--raw", &path]).stderr(Stdio::null());
        let mut kubectl = kubectl.stdout(Stdio::piped()).spawn().unwrap();
        let reader = BufReader::new(kubectl.stdout.take().unwrap());
        let events = serde_json::Deserializer::from_reader(reader);
        for event in events.into_iter().map_while(Result::<Value, _>::ok) {
            assert_ne!(event["type"], "ERROR", "{event}");
            let seen = &event["object"]["metadata"]["resourceVersion"];
            version = seen.as_str().unwrap().to_owned();
            sender.send(event).unwrap();
        }
        kubectl.wait().unwrap();
    }
}

fn name(node: usize) -> String {
    format!("node-{node}")
}

/// The readiness that a real follower in this mode reports after the change of its node has succeeded or, with `fails`,
/// has failed.
fn follow((mode, fails): &(String, bool)) -> bool {
    let (apply, status, state) = if *fails {
        (
            1,
            "failed\nstep restart has failed: no kubelet runs\n",
            "failed",
        )
    } else {
        (0, "installed 0.1.0\n", "installed")
    };
    let ends = [
        ("plan", 2, "would change: 7 steps\n"),
        ("apply", apply, ""),
        ("status", apply, status),
    ];
    let node = Followed::start(mode, &ends);
    node.until(if mode == "plan" { "planned" } else { state }).0 == Some(0)
}

/// Sends a request of HTTP/1.0, whose reply is not chunked. Returns the body of the reply.
fn request(proxy: &str, method: &str, path: &str, body: Option<&Value>) -> BufReader<TcpStream> {
    let body = body.map(Value::to_string).unwrap_or_default();
    let kind = if method == "PATCH" {
        "application/strategic-merge-patch+json"
    } else {
        "application/json"
    };
    let mut stream = TcpStream::connect(proxy).unwrap();
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: {proxy}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(
            reader.read_line(&mut head).unwrap(),
            0,
            "{method} {path}: {head}"
        );
    }
    assert_eq!(
        head.as_bytes().get(9),
        Some(&b'2'),
        "{method} {path}: {head}"
    );
    reader
}

#[expect(clippy::print_stderr, reason = "the suite shows the numbers")]
fn print(line: &str) {
    eprintln!("{line}");
}
