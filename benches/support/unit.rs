//! The systemd unit of criswitch.

/// The names and values of the environment variables in the unit.
pub fn environment() -> impl Iterator<Item = (&'static str, &'static str)> {
    let unit = include_str!("../../systemd/criswitch.service");
    let lines = unit
        .lines()
        .filter_map(|line| line.strip_prefix("Environment="));
    lines.flat_map(|line| line.split(' ').filter_map(|one| one.split_once('=')))
}
