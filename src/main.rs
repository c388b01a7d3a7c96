//! The program criswitch: the daemon for `criswitch serve`, and the commands of `criswitch-ctl`.

mod serve;

use std::process::ExitCode;

use criswitch_ctl::OwnDaemon;

fn main() -> ExitCode {
    criswitch_ctl::run(OwnDaemon {
        serve: serve::serve,
        serve_as_service: serve::serve_as_service,
        restart_problems: serve::restart_problems,
    })
}
