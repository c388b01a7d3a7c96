//! The arguments that several commands share.

use std::path::{Path, PathBuf};

use clap::Args;
use criswitch_config::address::Address;
use criswitch_config::{CONFIG_VARIABLE, Config, DEFAULT_PATH, Problems};

use crate::running::{NotRunning, Running};

/// The environment variable with the default of `--socket`.
pub const SOCKET_VARIABLE: &str = "CRISWITCH_SOCKET";

/// The argument with the path of the configuration.
#[derive(Args)]
pub struct File {
    /// The configuration file; criswitch also reads conf.d/*.toml beside it.
    #[arg(long = "config", value_name = "FILE", default_value = DEFAULT_PATH, env = CONFIG_VARIABLE, hide_env_values = true)]
    pub path: PathBuf,
}

/// The arguments that select the daemon to call.
#[derive(Args)]
pub struct Daemon {
    /// The configuration, which has the daemon's socket.
    #[command(flatten)]
    pub file: File,
    /// The socket of the running daemon, if it differs from `listen` in the configuration.
    #[arg(long, value_name = "PATH", value_parser = socket, env = SOCKET_VARIABLE, hide_env_values = true)]
    pub socket: Option<Address>,
}

impl Daemon {
    /// Returns the socket of `--socket`, else `listen` of the configuration. If the file at the default path is
    /// unreadable, returns the default socket.
    pub fn socket(&self) -> Result<Address, Problems> {
        if let Some(socket) = &self.socket {
            return Ok(socket.clone());
        }
        match Config::listen_of(&self.file.path) {
            Err(_) if self.file.path == Path::new(DEFAULT_PATH) => Ok(Address::default_listen()),
            listen => listen,
        }
    }

    /// Connects to the daemon. If the connection fails, the error also lists the problems of the configuration, because
    /// they may be the cause.
    pub async fn connect(&self) -> anyhow::Result<Running> {
        Running::connect(&self.socket()?).await.map_err(|error| {
            match Config::load(&self.file.path) {
                Err(problems) if self.socket.is_none() => {
                    NotRunning(format!("{error}\n{problems}")).into()
                }
                _ => error,
            }
        })
    }
}

/// Parses an argument that is a socket's path.
pub fn socket(text: &str) -> Result<Address, String> {
    Address::parse(text).map_err(|error| format!("{error}; try {}", error.hint()))
}

/// Parses an argument that is a directory.
pub fn directory(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_dir() {
        return Ok(path);
    }
    Err("no such directory; try the directory where the root of a machine is mounted".to_owned())
}
