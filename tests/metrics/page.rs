//! Requests a page of metrics as Prometheus does, and reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use criswitch::operator::metrics::PAGE_AGE;
use criswitch_platform::connect::Stream;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::support::clock::later;
use crate::support::{PATIENCE, Rig, Sim, connect};

/// A criswitch that serves metrics at `m.sock`. Each of `sims` is a backend with one handler of the same name. `keys`
/// are more lines of the configuration.
pub async fn rig<const N: usize>(keys: &str, sims: [Sim; N]) -> Rig {
    Rig::with_config(sims.clone(), |directory| text(keys, &sims, directory)).await
}

/// The configuration of [`rig`].
pub fn text(keys: &str, sims: &[Sim], directory: &str) -> String {
    let row = |sim: &Sim| format!("{0} = \"{directory}/{0}.sock\"\n", sim.name());
    let rows: String = sims.iter().map(row).collect();
    let default = sims[0].name();
    format!(
        "default_handler = \"{default}\"\nstart_wait = \"0s\"\n{keys}\nmetrics.listen = \"{directory}/m.sock\"\n[handlers]\n{rows}"
    )
}

/// A runtime name that makes the simulated mount point, `/var/lib/..`, exist on every node.
pub const REAL: &str = "..";

/// Sends `ImageFsInfo`, as the kubelet does.
pub async fn ask_for_disks(rig: &Rig) {
    let request = criswitch_cri::codec::cri::ImageFsInfoRequest {};
    rig.images().image_fs_info(request).await.unwrap();
}

/// The samples of a page.
#[derive(Debug)]
pub struct Page {
    pub text: String,
    samples: Vec<(String, BTreeMap<String, String>, f64)>,
}

impl Page {
    /// The page of now: earlier readers have other pages.
    pub async fn of(rig: &Rig) -> Page {
        later(PAGE_AGE).await;
        let reply = ask(&rig.directory().join("m.sock"), "GET /metrics").await;
        let (head, text) = reply.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(
            head.contains("content-type: text/plain; version=0.0.4\r\n"),
            "{head}"
        );
        Page::read(text)
    }

    fn read(text: &str) -> Page {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let samples = lines.map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let labels = labels.strip_suffix('}').unwrap().split(',');
            let labels = labels.filter(|label| !label.is_empty()).map(|label| {
                let (name, value) = label.split_once('=').unwrap();
                (name.to_owned(), value.trim_matches('"').to_owned())
            });
            (name.to_owned(), labels.collect(), value.parse().unwrap())
        });
        Page {
            samples: samples.collect(),
            text: text.to_owned(),
        }
    }

    /// The value of the only sample that has these labels, and possibly others.
    pub fn find(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let mut found = self.samples.iter().filter(|(its, with, _)| {
            let has = |(label, value): &(&str, &str)| with.get(*label).is_some_and(|v| v == value);
            its == name && labels.iter().all(has)
        });
        let value = found.next()?.2;
        assert!(found.next().is_none(), "several {name}{labels:?}");
        Some(value)
    }

    #[track_caller]
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let found = self.find(name, labels);
        found.unwrap_or_else(|| panic!("no {name}{labels:?} in {}", self.text))
    }

    /// The number of calls of an RPC that ended with a code at a backend. An empty `backend` selects calls that went to
    /// several backends or to none.
    pub fn calls(&self, rpc: &str, backend: &str, code: &str) -> f64 {
        let labels = [("rpc", rpc), ("backend", backend), ("code", code)];
        self.find("criswitch_rpcs_total", &labels).unwrap_or(0.0)
    }

    #[track_caller]
    pub fn backend(&self, name: &str, backend: &str) -> f64 {
        self.value(name, &[("backend", backend)])
    }

    /// All values of a label on the page.
    pub fn values_of(&self, label: &str) -> BTreeSet<&str> {
        let values = self
            .samples
            .iter()
            .filter_map(|(_, labels, _)| labels.get(label));
        values.map(String::as_str).collect()
    }

    /// The families with their types.
    pub fn types(&self) -> Vec<(&str, &str)> {
        let lines = self
            .text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE "));
        lines.map(|line| line.split_once(' ').unwrap()).collect()
    }
}

/// The whole reply to this request line.
pub async fn ask(socket: &Path, line: &str) -> String {
    let stream = connected(socket).await;
    converse(
        stream,
        format!("{line} HTTP/1.1\r\nhost: node\r\n\r\n").as_bytes(),
    )
    .await
}

/// Connects as soon as the socket has a listener.
pub async fn connected(socket: &Path) -> Stream {
    let connected = async {
        loop {
            match connect(socket).await {
                Ok(stream) => return stream,
                Err(_) => crate::support::clock::turn().await,
            }
        }
    };
    tokio::time::timeout(PATIENCE, connected)
        .await
        .expect("nobody listens")
}

/// The whole reply to these bytes.
pub async fn converse(mut stream: impl AsyncRead + AsyncWrite + Unpin, sent: &[u8]) -> String {
    // The write may fail, because the server may reject the request before it has read all bytes.
    stream.write_all(sent).await.unwrap_or_default();
    let mut reply = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut reply));
    read.await.expect("no end in time").unwrap_or_default();
    String::from_utf8(reply).unwrap()
}

/// Requests pages until `holds` is true.
pub async fn until(rig: &Rig, mut holds: impl FnMut(&Page) -> bool) -> Page {
    let mut last = None;
    let waited = async {
        loop {
            let page = Page::of(rig).await;
            if holds(&page) {
                return page;
            }
            last = Some(page);
        }
    };
    let waited = tokio::time::timeout(PATIENCE, waited).await.ok();
    waited.unwrap_or_else(|| panic!("never so: {}", last.unwrap().text))
}
