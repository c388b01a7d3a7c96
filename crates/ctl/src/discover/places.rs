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
    known_as: Option<&'static str>,
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
    let named = given.len();
    let given = given.iter().map(|socket| (None, socket.clone()));
    let kubelet = kubelet.and_then(|kubelet| {
        let path = paths::below(root, kubelet.path().to_str()?);
        let socket = Address::parse(path.to_str()?).ok()?;
        let mut known = well_known(root).filter(|(_, known)| *known == socket);
        let known_as = known.next().and_then(|(name, _)| name);
        socket_at(&path).is_ok().then_some((known_as, socket))
    });
    let given = given.chain(kubelet);
    let own = socket_at(listen.path()).ok();
    let mut places: Vec<SocketPlace> = Vec::new();
    for (number, (known_as, socket)) in given.chain(well_known(root)).enumerate() {
        let found = socket_at(socket.path());
        // A node has one or two of the well-known sockets, so a missing file there is not reported.
        if known_as.is_some() && found.as_ref().is_err_and(is_absence) {
            continue;
        }
        let file = found.as_ref().ok().copied();
        let same = places
            .iter_mut()
            .find(|place| place.socket == socket || (file.is_some() && place.file == file));
        if let Some(place) = same {
            place.is_also(socket, known_as);
            continue;
        }
        let state = match found {
            _ if socket == *listen || (file.is_some() && file == own) => PlaceState::Own,
            Ok(_) => PlaceState::Socket,
            Err(error) => PlaceState::Wrong(error.to_string()),
        };
        places.push(SocketPlace {
            name: String::new(),
            socket,
            is_named: number < named,
            also: Vec::new(),
            state,
            file,
            known_as,
        });
    }
    name_all(&mut places);
    places
}

impl SocketPlace {
    /// Whether the configuration can contain the path: a socket exists there, and the path has no control characters.
    pub(super) fn is_writable(&self) -> bool {
        let path = self.socket.to_string();
        matches!(self.state, PlaceState::Socket) && !path.contains(char::is_control)
    }

    fn is_also(&mut self, socket: Address, known_as: Option<&'static str>) {
        self.known_as = self.known_as.or(known_as);
        if self.socket != socket && !self.also.contains(&socket) {
            self.also.push(socket);
        }
    }
}

fn well_known(root: &Path) -> impl Iterator<Item = (Option<&'static str>, Address)> {
    paths::WELL_KNOWN.iter().filter_map(move |(name, path)| {
        let path = paths::below(root, path);
        let socket = Address::parse(path.to_str()?).ok()?;
        Some((Some(*name), socket))
    })
}

/// Sets the names of all places. A well-known path has its name in [`paths::WELL_KNOWN`]. Any other path is named after
/// its file or directory, or gets a number.
fn name_all(places: &mut [SocketPlace]) {
    let known = places.iter().filter_map(|place| place.known_as);
    let mut taken: Vec<String> = known.map(str::to_owned).collect();
    for place in places {
        place.name = place
            .known_as
            .map_or_else(|| free_name(&place.socket, &taken), str::to_owned);
        taken.push(place.name.clone());
    }
}

fn free_name(socket: &Address, taken: &[String]) -> String {
    let path = socket.path();
    let directory = path.parent().and_then(Path::file_name);
    let of_path = [path.file_stem(), directory]
        .into_iter()
        .flatten()
        .filter_map(|name| label_of(&name.to_string_lossy()));
    let numbered = (1..).map(|number| format!("backend-{number}"));
    let mut free = of_path.chain(numbered).filter(|name| !taken.contains(name));
    free.next().unwrap_or_default()
}

/// Turns the text into a DNS label (RFC 1123). A dash replaces each character that a label cannot have. `None` if only
/// dashes are left.
fn label_of(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let kept = lower
        .chars()
        .take(MAX_LABEL)
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' });
    let label = kept.collect::<String>().trim_matches('-').to_owned();
    (!label.is_empty()).then_some(label)
}
