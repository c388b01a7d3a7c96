//! `criswitchd --check`: reads what a start would read.

use std::io::{self, Write};
use std::path::Path;

use criswitch::store::{Boot, Found};
use criswitch::switch::saved;
use criswitch_config::wording::counted;
use criswitch_config::{Config, Problems};
use criswitch_platform::service;

/// Reads the configuration and the saved state. Returns the line for standard output. Prints to standard error a line
/// about each list that would fail after a restart.
///
/// # Errors
/// All problems of the configuration.
pub(crate) fn check(path: &Path) -> Result<String, Problems> {
    let config = Config::load(path)?;
    for problem in restart_problems(&config) {
        // An error is ignored: the process that reads standard error may have exited.
        writeln!(io::stderr(), "{problem}").ok();
    }
    let handlers = counted(config.table.handlers.len(), "handler");
    let backends = counted(config.table.backends.len(), "backend");
    let path = path.display();
    Ok(format!("{path} is valid: {handlers}, {backends}\n"))
}

/// Sentences about the lists that would fail after a restart, from the state that the daemon has saved. Does not call
/// the daemon, because the check also runs before the daemon starts.
fn restart_problems(config: &Config) -> Vec<String> {
    let Ok(boot) = Boot::current() else {
        return Vec::new();
    };
    let mut places = config.state_directories(service::directories()).into_iter();
    let found = places.find_map(|place| Found::look(&place, &boot));
    found.map_or_else(Vec::new, |found| saved::restart_problems(config, found))
}
