//! Debian's Prometheus on the loopback, which scrapes one criswitch.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value as Json;
use tokio::net::TcpStream;

use crate::page::converse;
use crate::support::PATIENCE;

/// A Prometheus process, which ends with the test.
pub struct Prometheus {
    child: Child,
    port: u16,
}

impl Prometheus {
    /// Starts a Prometheus that scrapes `target`, a loopback port, as job `criswitch`, each second.
    pub fn start(
        directory: &Path,
        target: u16,
        tool: impl Fn(&str, &[&str]) -> Command,
    ) -> Prometheus {
        let config = directory.join("prometheus.yaml");
        let text = format!(
            "scrape_configs:\n- job_name: criswitch\n  scrape_interval: 1s\n  scrape_timeout: 1s\n  static_configs:\n  - targets: ['127.0.0.1:{target}']\n"
        );
        std::fs::write(&config, text).unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let data = directory.join("prometheus");
        let flags = [
            format!("--config.file={}", config.display()),
            format!("--storage.tsdb.path={}", data.display()),
            format!("--web.listen-address=127.0.0.1:{port}"),
        ];
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        let mut command = tool("prometheus", &flags);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Prometheus {
            child: child.unwrap(),
            port,
        }
    }

    /// Waits until the query has a value. A rate has a value only after two scrapes.
    pub async fn until_it_answers(&self, query: &str) {
        let answered = async {
            while self.ask(query).await.is_none_or(|count| count == 0) {
                tokio::task::yield_now().await;
            }
        };
        let answered = tokio::time::timeout(PATIENCE, answered).await;
        assert!(answered.is_ok(), "no value: {query}");
    }

    /// The number of values of a query; panics if the query is invalid.
    pub async fn answers(&self, query: &str) -> usize {
        let count = self.ask(query).await;
        count.unwrap_or_else(|| panic!("not a query: {query}"))
    }

    async fn ask(&self, query: &str) -> Option<usize> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.ok()?;
        let query =
            percent_encoding::utf8_percent_encode(query, percent_encoding::NON_ALPHANUMERIC);
        let request = format!("GET /api/v1/query?query={query} HTTP/1.0\r\nhost: node\r\n\r\n");
        let reply = converse(stream, request.as_bytes()).await;
        let (_, body) = reply.split_once("\r\n\r\n")?;
        let answer: Json = serde_json::from_str(body).ok()?;
        Some(answer["data"]["result"].as_array()?.len())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}
