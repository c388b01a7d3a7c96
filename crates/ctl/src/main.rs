//! criswitch: the commands. The daemon is criswitchd.

fn main() -> std::process::ExitCode {
    criswitch_ctl::run()
}
