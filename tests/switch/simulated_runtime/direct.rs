//! A simulated runtime on a socket, and a client that calls it directly.

use std::ops::Deref;

use tempfile::TempDir;

use crate::support::{Client, IMAGE, Sim};

pub struct Direct {
    pub sim: Sim,
    pub client: Client,
    _directory: TempDir,
}

impl Direct {
    pub fn new(sim: Sim) -> Direct {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("cri.sock");
        sim.serve_on(&socket);
        Direct {
            sim,
            client: Client::new(&socket),
            _directory: directory,
        }
    }

    pub async fn run_pod(&self, name: &str) -> Result<String, tonic::Status> {
        self.client.run_pod("", name).await
    }
}

impl Deref for Direct {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// A runtime with the image that [`Client::create`] uses.
pub fn direct() -> Direct {
    Direct::new(Sim::new("runc").image(IMAGE))
}
