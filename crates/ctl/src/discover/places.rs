//! Finds the CRI sockets of the node at given and well-known paths. Examines files only and connects to nothing.

use std::path::Path;

use criswitch_config::address::Address;
use criswitch_platform::address::{Inode, socket_at};
use criswitch_platform::{is_absence, paths};

/// The largest length of a DNS label, in characters.
const MAX_LABEL: usize = 63;

/// A path where a socket is expected, and the result of looking at the path.
pub(super) struct SocketPlace {
    /// The name of the backend at this path. No two paths have the same name.
    pub(super) name: String,
    pub(super) socket: Address,
    /// Whether the command names the socket.
    pub(super) is_named: bool,
    /// Other paths of the same socket.
    pub(super) also: Vec<Address>,
    pub(super) state: PlaceState,
    file: Option<Inode>,
    well_known_name: Option<&'static str>,
}

/// The result of looking at a path, before the probe connects to its socket.
pub(super) enum PlaceState {
    /// A socket to probe.
    Socket,
    /// The socket of criswitch itself.
    Own,
    /// The path cannot be a backend's socket, for this reason.
    Wrong(String),
}

/// The `given` paths, then the path of the `kubelet`'s runtime and the well-known paths below `root`, where a file
/// exists.
pub(super) fn look(
    given: &[Address],
    kubelet: Option<&Address>,
    root: &Path,
    listen: &Address,
) -> Vec<SocketPlace> {
    let kubelet = kubelet.and_then(|kubelet| {
        let path = paths::below(root, kubelet.path().to_str()?);
        let socket = Address::parse(path.to_str()?).ok()?;
        let well_known_name = well_known(root)
            .find(|(_, known)| *known == socket)
            .and_then(|(name, _)| name);
        socket_at(&path)
            .is_ok()
            .then_some((well_known_name, socket))
    });
    let expected = given
        .iter()
        .map(|socket| (None, socket.clone()))
        .chain(kubelet)
        .chain(well_known(root));
    let own = socket_at(listen.path()).ok();
    let mut places: Vec<SocketPlace> = Vec::new();
    for (number, (well_known_name, socket)) in expected.enumerate() {
        let found = socket_at(socket.path());
        // A node has one or two of the well-known sockets, so a missing file there is not reported.
        if well_known_name.is_some() && found.as_ref().is_err_and(is_absence) {
            continue;
        }
        let file = found.as_ref().ok().copied();
        if let Some(place) = places
            .iter_mut()
            .find(|place| place.socket == socket || (file.is_some() && place.file == file))
        {
            place.add_path(socket, well_known_name);
            continue;
        }
        places.push(SocketPlace {
            name: String::new(),
            state: match found {
                _ if socket == *listen || (file.is_some() && file == own) => PlaceState::Own,
                Ok(_) => PlaceState::Socket,
                Err(error) => PlaceState::Wrong(error.to_string()),
            },
            socket,
            is_named: number < given.len(),
            also: Vec::new(),
            file,
            well_known_name,
        });
    }
    name_all(&mut places);
    places
}

impl SocketPlace {
    /// Whether the configuration can contain the path: a socket exists there, and the path has no control characters.
    pub(super) fn is_writable(&self) -> bool {
        matches!(self.state, PlaceState::Socket)
            && !self.socket.to_string().contains(char::is_control)
    }

    /// Turns the paths below `root` into paths of the machine whose `/` is `root`.
    pub(super) fn strip(&mut self, root: &Path) {
        for socket in std::iter::once(&mut self.socket).chain(&mut self.also) {
            let path = socket.path().strip_prefix(root).ok();
            *socket = path
                .and_then(|path| Address::parse(&format!("/{}", path.to_str()?)).ok())
                .unwrap_or_else(|| socket.clone());
        }
    }

    fn add_path(&mut self, socket: Address, well_known_name: Option<&'static str>) {
        self.well_known_name = self.well_known_name.or(well_known_name);
        if self.socket != socket && !self.also.contains(&socket) {
            self.also.push(socket);
        }
    }
}

fn well_known(root: &Path) -> impl Iterator<Item = (Option<&'static str>, Address)> {
    paths::WELL_KNOWN.iter().filter_map(move |(name, path)| {
        let socket = Address::parse(paths::below(root, path).to_str()?).ok()?;
        Some((Some(*name), socket))
    })
}

/// Sets the names of all places. A well-known path has its name in [`paths::WELL_KNOWN`]. Any other path is named after
/// its file or directory, or gets a number.
fn name_all(places: &mut [SocketPlace]) {
    let mut taken: Vec<String> = places
        .iter()
        .filter_map(|place| place.well_known_name)
        .map(str::to_owned)
        .collect();
    for place in places {
        place.name = place
            .well_known_name
            .map_or_else(|| free_name(&place.socket, &taken), str::to_owned);
        taken.push(place.name.clone());
    }
}

fn free_name(socket: &Address, taken: &[String]) -> String {
    let directory = socket.path().parent().and_then(Path::file_name);
    [socket.path().file_stem(), directory]
        .into_iter()
        .flatten()
        .filter_map(|name| label_of(&name.to_string_lossy()))
        .chain((1..).map(|number| format!("backend-{number}")))
        .find(|name| !taken.contains(name))
        .unwrap_or_default()
}

/// Turns the text into a DNS label (RFC 1123). A dash replaces each character that a label cannot have. `None` if only
/// dashes are left.
fn label_of(text: &str) -> Option<String> {
    let kept: String = text
        .to_ascii_lowercase()
        .chars()
        .take(MAX_LABEL)
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    let label = kept.trim_matches('-');
    (!label.is_empty()).then(|| label.to_owned())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_removed_only_at_the_beginning_of_a_path() {
        for (root, socket) in [
            ("/r", "/r/run/r/r.sock"),
            ("/r/", "/r/run/r/r.sock"),
            ("/", "/run/r/r.sock"),
        ] {
            let mut place = SocketPlace {
                name: "r".to_owned(),
                socket: Address::parse(socket).unwrap(),
                is_named: false,
                also: vec![Address::parse("/other/r.sock").unwrap()],
                state: PlaceState::Socket,
                file: None,
                well_known_name: None,
            };
            place.strip(Path::new(root));
            assert_eq!(place.socket.to_string(), "/run/r/r.sock");
            assert_eq!(place.also[0].to_string(), "/other/r.sock");
        }
    }
}
