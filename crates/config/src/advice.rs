//! Warnings of `criswitch check` about valid settings that are probably mistakes.

use std::fmt::Display;
use std::path::Path;

use criswitch_platform::users;

use super::{Config, disk, keys, value};

/// The largest message that the kubelet accepts, in bytes.
const KUBELET_MESSAGE: usize = 16 << 20;

/// File names of sockets that do not serve the CRI, each with the program that serves it and the socket to use instead.
const WITHOUT_CRI: [(&str, &str, &str); 5] = [
    (
        "buildkitd.sock",
        "BuildKit",
        "the socket of a container runtime",
    ),
    (
        "containerd.sock.ttrpc",
        "containerd for its shims",
        "containerd.sock beside it",
    ),
    (
        "docker.sock",
        "Docker",
        "the socket of containerd or of cri-dockerd",
    ),
    ("nri.sock", "NRI", "the socket of the runtime itself"),
    ("podman.sock", "Podman", "the socket of CRI-O"),
];

impl Config {
    /// One sentence, with file and line, for each valid setting that is probably a mistake.
    pub fn advice(&self) -> Vec<String> {
        let mut advice: Vec<_> = self.small_message().into_iter().collect();
        advice.extend(self.no_stale_lists());
        advice.extend(self.named_like_keys());
        advice.extend(self.without_handlers());
        advice.extend(self.without_cri());
        advice.extend(self.unmapped_user());
        advice.extend(self.labels_nowhere());
        advice.extend(self.unread_files());
        advice
    }

    fn small_message(&self) -> Option<String> {
        let size = value::size(self.max_message);
        let what = format!(
            "max_message is {size}, and the kubelet accepts 16MiB: larger lists fail, for example on a node with many pods; try \"16MiB\""
        );
        (self.max_message < KUBELET_MESSAGE).then(|| self.at_key("max_message", &what))
    }

    fn no_stale_lists(&self) -> Vec<String> {
        let why =
            "while a backend does not answer, every list of the node fails; try \"unlimited\"";
        if self.stale_lists.is_zero() {
            return vec![self.at_key("stale_lists", &format!("stale_lists is 0s: {why}"))];
        }
        self.table
            .backends
            .iter()
            .filter(|backend| backend.stale_lists.is_zero())
            .map(|backend| {
                at(
                    backend.origin.as_ref(),
                    &format!("backend {:?} has stale_lists = \"0s\": {why}", backend.name),
                )
            })
            .collect()
    }

    /// Warns about rows that have the name of a top-level key. A top-level key that is written below a `[table]`
    /// becomes a row of that table.
    fn named_like_keys(&self) -> Vec<String> {
        let handlers = self
            .table
            .handlers
            .iter()
            .map(|row| ("handler", &row.name, row.origin.as_ref()));
        // A backend whose socket is written only in handler rows has the name and origin of the first of these rows.
        let backends = self
            .table
            .backends
            .iter()
            .map(|row| ("backend", &row.name, row.origin.as_ref()))
            .filter(|(.., origin)| {
                handlers
                    .clone()
                    .all(|(.., of_handler)| of_handler != *origin)
            });
        handlers
            .clone()
            .chain(backends)
            .filter(|(_, name, _)| keys::written("", name).is_some())
            .map(|(kind, name, origin)| {
                let what = format!("{kind} {name:?} has the name of a key; if the key is meant, move it above the first [table]");
                at(origin, &what)
            })
            .collect()
    }

    fn without_handlers(&self) -> Vec<String> {
        let handlers = self.table.handlers.iter();
        self.table
            .backends
            .iter()
            .filter(|it| !it.auto_register && handlers.clone().all(|row| row.backend != it.id))
            .map(|backend| {
                let what = format!("backend {:?} has no handler: it gets no new pods; add a row under [handlers], or remove the backend once its pods have ended", backend.name);
                at(backend.origin.as_ref(), &what)
            })
            .collect()
    }

    fn without_cri(&self) -> Vec<String> {
        self.table
            .backends
            .iter()
            .filter_map(|backend| {
                let name = backend.socket.path().file_name()?.to_str()?;
                let (_, program, instead) = WITHOUT_CRI.iter().find(|(its, ..)| *its == name)?;
                Some(at(
                    backend.origin.as_ref(),
                    &format!(
                        "backend {:?} is the socket of {program}, which has no CRI; try {instead}",
                        backend.name
                    ),
                ))
            })
            .collect()
    }

    fn unmapped_user(&self) -> Option<String> {
        let is_listed = self.allow_uids.iter().any(|user| users::is_unmapped(*user));
        let what = "allow_uids has 65534, which is every user without an id in this user namespace; try the id of one user";
        is_listed.then(|| self.at_key(users::KEY, what))
    }

    /// Warns if criswitch cannot write the file of the labels. Reads the disk.
    fn labels_nowhere(&self) -> Option<String> {
        let file = self.labels_file.as_deref()?;
        let directory = file.parent()?;
        let why = if file.is_dir() {
            "which is a directory".to_owned()
        } else if directory.is_dir() {
            return None;
        } else {
            format!("and the directory {} does not exist", directory.display())
        };
        let what = format!(
            "labels_file is {}, {why}: criswitch cannot write the labels; try a file in an existing directory",
            file.display()
        );
        Some(self.at_key("labels_file", &what))
    }

    /// Warns about files beside the drop-ins that are not drop-ins because of their names. Reads the disk.
    fn unread_files(&self) -> Vec<String> {
        disk::not_drop_ins(&self.path.with_file_name("conf.d"))
            .iter()
            .map(|file| {
                // A file such as a.toml.bak is a copy of a drop-in: with a new name it would count twice.
                let stem = Path::new(file.file_stem().unwrap_or_default());
                let hint = if stem.extension() == Some("toml".as_ref()) {
                    "moving it to a different directory".to_owned()
                } else {
                    format!("renaming it to {}", file.with_extension("toml").display())
                };
                format!(
                    "{}: criswitch does not read this file, because its name does not end in .toml; try {hint}",
                    file.display()
                )
            })
            .collect()
    }

    fn at_key(&self, key: &str, what: &str) -> String {
        at(self.places.get(key), what)
    }
}

fn at(place: Option<&impl Display>, what: &str) -> String {
    place.map_or_else(|| what.to_owned(), |place| format!("{place}: {what}"))
}
