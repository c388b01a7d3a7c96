//! Texts with the paths of Unix sockets. On Windows, each path becomes the address of a named pipe, and back.

#[cfg(unix)]
pub use unix::*;
#[cfg(windows)]
pub use windows::*;

#[cfg(unix)]
mod unix {
    /// A configuration with the addresses of this system: nothing changes.
    pub fn native(text: &str) -> String {
        text.to_owned()
    }

    /// An output with the addresses and errors of Unix: nothing changes.
    pub fn portable(text: &str) -> String {
        text.to_owned()
    }
}

#[cfg(windows)]
mod windows {
    use std::env::temp_dir;
    use std::io::Error;
    use std::path::Path;

    use criswitch_cri::error_text::without_numbers;

    const PIPE: &str = "//./pipe/";
    /// The directory of the sockets in the tests' texts.
    const RUN: &str = "/run/";
    /// The suffix of a socket's name, and the suffix of its pipe's name. A path and its pipe have equal lengths, so
    /// that the columns in messages are the same on all systems.
    const ENDS: (&str, &str) = (".sock", "_");
    /// The paths of sockets whose pipes have other names.
    const RENAMED: [(&str, &str); 2] = [
        ("/run/criswitch/criswitch.sock", "//./pipe/criswitch"),
        ("/nowhere/", "//./pipe/nowhere/"),
    ];
    /// The prefix of the names of temporary directories.
    const TEMPORARY: &str = ".tmp";
    /// Numbers of Windows errors, and the texts of the same errors on Unix.
    const ERRORS: [(i32, &str); 2] = [
        (2, "No such file or directory (os error 2)"),
        (3, "No such file or directory (os error 2)"),
    ];

    /// A configuration with the addresses of this system. Paths of sockets are in quotes.
    pub fn native(text: &str) -> String {
        // A pipe has only one spelling of its path.
        let mut text = text.replace("/run//", RUN).replace("/run/./", RUN);
        text = text.replace("containerd/./", "containerd/");
        text = text.replace("//criswitch.sock", "/criswitch.sock");
        for quote in ['"', '\''] {
            for scheme in ["unix://", "unix:"] {
                let written = format!("{quote}{scheme}{RUN}");
                text = text.replace(&written, &format!("{quote}npipe:{RUN}"));
            }
            for begin in [format!("{quote}"), format!("{quote}npipe:")] {
                for (path, pipe) in RENAMED {
                    let pipe = format!("{begin}{pipe}");
                    text = text.replace(&format!("{begin}{path}"), &pipe);
                }
                text = with_pipes(&text, &begin, quote);
            }
        }
        let users = r#"allow_sids = ["S-1-5-18", "S-1-5-32-544"]"#;
        of_temporary(&text.replace("allow_uids = [0, 1000]", users))
    }

    /// Replaces the paths in [`RUN`] between `begin` and `quote`.
    fn with_pipes(text: &str, begin: &str, quote: char) -> String {
        let begin_in_run = format!("{begin}{RUN}");
        let mut parts = text.split(&begin_in_run);
        let mut made = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let Some((name, rest)) = part.split_once(quote) else {
                made += &format!("{begin_in_run}{part}");
                continue;
            };
            let short = name.strip_suffix(ENDS.0);
            let name = short.map_or(format!("run/{name}"), |name| format!("{name}{}", ENDS.1));
            made += &format!("{begin}{PIPE}{name}{quote}{rest}");
        }
        made
    }

    /// Replaces each quoted path of a socket in a temporary directory.
    fn of_temporary(text: &str) -> String {
        let mut parts = text.split('"');
        let mut made = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let path = part.replace(r"\\", r"\");
            let path = Path::new(&path);
            let name = path.file_name().unwrap_or_default().display().to_string();
            let is_socket = name.ends_with(".sock") || !name.contains('.') && name != "state";
            made.push('"');
            match path.parent().and_then(Path::file_name) {
                Some(directory) if is_socket && path.starts_with(temp_dir()) => {
                    made += &format!("npipe:{PIPE}{}/{name}", directory.display());
                }
                _ => made += part,
            }
        }
        made
    }

    /// Replaces the pipes of the sockets in temporary directories.
    fn with_temporary(text: &str) -> String {
        let begin = format!("{PIPE}{TEMPORARY}");
        let path = temp_dir().join(TEMPORARY).display().to_string();
        let mut parts = text.split(&begin);
        let mut made = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            made += &path;
            made += &part.replacen('/', r"\", 1);
        }
        made
    }

    /// An output with the addresses and errors of Unix.
    pub fn portable(text: &str) -> String {
        let mut text = text.replace(r"conf.d\", "conf.d/");
        text = text.replace("criswitch.exe", "criswitch");
        text = text.replace(&format!("npipe://{PIPE}"), PIPE);
        text = text.replace("//./pipe/run/", RUN);
        text = with_temporary(&text);
        let mut parts = text.split(PIPE);
        let mut made = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let name = part
                .split(|c: char| !(c.is_ascii_alphanumeric() || "-/_.".contains(c)))
                .next()
                .unwrap_or_default();
            let rest = part.get(name.len()..).unwrap_or_default();
            made += &match (name, name.strip_suffix(ENDS.1)) {
                ("criswitch", _) => "/run/criswitch/criswitch.sock".to_owned(),
                ("containerd-containerd", _) => "/run/containerd/containerd.sock".to_owned(),
                (_, Some(name)) => format!("{RUN}{name}{}", ENDS.0),
                (name, None) => format!("/{name}"),
            };
            made += rest;
        }
        for (number, error) in ERRORS {
            let made_by_windows = Error::from_raw_os_error(number).to_string();
            made = made.replace(&made_by_windows, error);
            let [windows, unix] = [&*made_by_windows, error].map(without_numbers);
            made = made.replace(&*windows, &unix);
        }
        made
    }
}
