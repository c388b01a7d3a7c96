//! Checks whether the values in the files are valid and fit together, and builds a [`Config`] from them.
//!
//! Checking continues after a problem, and reports no problem that only follows from another.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, iter};

use criswitch_platform::paths;
use criswitch_platform::users::{self, UserId};

use super::files::{self, ConfigFile};
use super::keys::{self, Limits};
use super::log::{self, LogConfig};
use super::problem::{Place, Problems, nearest};
use super::text::{BackendRow, DefinedKey, Placed, Route, RowTarget, Written};
use super::trust;
use super::value::{self, InvalidValue};
use super::{BackendConfig, BackendIds, Config, Handler, Table};
use crate::address::{self, Address, Identity};
use crate::metrics::MetricsListen;

/// The socket that a hint suggests for metrics.
const METRICS_EXAMPLE: &str = "\"/run/criswitch/metrics.sock\"";

/// Returns the configuration. If there are problems, adds all of them to `problems`; the result is then not used.
pub(super) fn check(
    files: &[ConfigFile],
    written: &Written,
    main: &Place,
    problems: &mut Problems,
) -> Option<Config> {
    let mut check = Checker {
        written,
        main,
        problems,
        notes: Vec::new(),
        ids: BackendIds::default(),
    };
    let listen = check.checked("listen", |text, _| value::listen(text));
    let levels = check.checked("log.level", |text, _| log::levels(text));
    let format = check.checked("log.format", |text, _| log::format(text));
    let metrics = check.value("metrics.listen", super::metrics::listen);
    let timeouts = Timeouts {
        list: check.duration("list_timeout"),
        stats: check.duration("stats_timeout"),
        stale_lists: check.duration("stale_lists"),
    };
    let mut known = check.named_backends(listen.as_ref(), timeouts);
    check.add_unnamed_backends(&mut known, listen.as_ref(), timeouts);
    check.metrics_apart(metrics.as_ref(), listen.as_ref(), &known);
    let handlers = check.handlers(&known);
    let default = check.default();
    let labels_file = check.value("labels_file", value::labels_file);
    check.labels_apart(
        labels_file.as_deref(),
        files,
        metrics.as_ref(),
        listen.as_ref(),
        &known,
    );
    let table = default.and_then(|default| arrange(handlers, &known, &default));
    // Every check runs before the first `?`, so that all problems are reported.
    Some(Config {
        shutdown_timeout: check.duration("shutdown_timeout"),
        max_message: check
            .checked("max_message", value::bytes)
            .unwrap_or_default(),
        start_wait: check.duration("start_wait"),
        list_timeout: timeouts.list,
        stats_timeout: timeouts.stats,
        stale_lists: timeouts.stale_lists,
        runtime_dir: check.value("runtime_dir", value::directory),
        state_dir: check.value("state_dir", value::directory),
        allow_uids: check.users(),
        watch: check.value("watch", value::boolean),
        labels_file,
        labels_failed_after: check.duration("labels_failed_after"),
        listen: listen?,
        log: LogConfig {
            levels: levels?,
            format: format?,
        },
        metrics,
        table: table?,
        notes: check.notes,
        places: written.places(),
        path: main.path.to_path_buf(),
        files: files.iter().map(ConfigFile::path).collect(),
        hash: files::hash(files),
    })
}

struct Checker<'a> {
    written: &'a Written,
    main: &'a Place,
    problems: &'a mut Problems,
    notes: Vec<String>,
    ids: BackendIds,
}

/// The time limits of a backend, or the limits for all backends whose rows have none.
#[derive(Clone, Copy)]
struct Timeouts {
    list: Duration,
    stats: Duration,
    stale_lists: Duration,
}

/// A backend that the files name.
struct KnownBackend {
    name: Placed<String>,
    /// `None` if the backend's socket is invalid.
    config: Option<BackendConfig>,
    identity: Option<Identity>,
    /// Other names under `[backends]` whose socket is the same file.
    aliases: Vec<String>,
}

impl Checker<'_> {
    /// The value of a key; the type's default if the value is invalid. In that case a problem is recorded and no
    /// `Config` is returned.
    fn value<T: Default>(&mut self, name: &str, parse: fn(&str) -> Result<T, InvalidValue>) -> T {
        self.checked(name, |text, _| parse(text))
            .unwrap_or_default()
    }

    fn duration(&mut self, name: &str) -> Duration {
        self.checked(name, value::duration).unwrap_or_default()
    }

    fn checked<T>(
        &mut self,
        name: &str,
        parse: impl Fn(&str, &Limits) -> Result<T, InvalidValue>,
    ) -> Option<T> {
        let key = keys::KEYS.iter().find(|key| key.name == name)?;
        match self.written.key(name) {
            Some(row) => {
                let text = row.value.as_ref()?.first()?;
                self.parsed(text, |text| parse(text, &key.limits))
            }
            None => parse(key.default?, &key.limits).ok(),
        }
    }

    fn parsed<T>(
        &mut self,
        text: &Placed<String>,
        parse: impl Fn(&str) -> Result<T, InvalidValue>,
    ) -> Option<T> {
        text.parsed(parse, self.problems)
    }

    fn users(&mut self) -> Vec<UserId> {
        let Some(row) = self.written.key(users::KEY) else {
            return users::by_default();
        };
        row.value
            .iter()
            .flatten()
            .filter_map(|user| self.parsed(user, value::user))
            .collect()
    }

    fn named_backends(
        &mut self,
        listen: Option<&Address>,
        timeouts: Timeouts,
    ) -> Vec<KnownBackend> {
        let mut known: Vec<KnownBackend> = Vec::new();
        for row in &self.written.backends {
            self.label("backend", &row.name);
            let settings = row.value.as_ref();
            let socket = settings.and_then(|settings| self.socket(&settings.socket, listen));
            let identity = socket.as_ref().map(Address::identity);
            if let Some(first) = same_socket(&mut known, identity.as_ref()) {
                if first.config.as_ref().map(|it| &it.socket) != socket.as_ref() {
                    // Two paths may be one socket only because of a symbolic link, which may be absent at the next
                    // start. So a second path is a note and not an error.
                    self.notes.push(alias_note(row, first));
                    first.aliases.push(row.name.value.clone());
                    // The settings of the second row are not used, but must be valid.
                    self.known_backend(&row.name, socket, settings, timeouts);
                    continue;
                }
                self.second_name(row, first);
            }
            known.push(self.known_backend(&row.name, socket, settings, timeouts));
        }
        known
    }

    fn known_backend(
        &mut self,
        name: &Placed<String>,
        socket: Option<Address>,
        settings: Option<&BackendRow>,
        all: Timeouts,
    ) -> KnownBackend {
        let [list, stats, stale_lists] = ["list_timeout", "stats_timeout", "stale_lists"]
            .map(|name| self.backend_field(settings, name, value::duration));
        let [auto_register, required] = ["auto_register", "required"]
            .map(|name| self.backend_field(settings, name, |text, _| value::boolean(text)));
        let user = self.backend_field(settings, "user", |text, _| trust::user(text));
        KnownBackend {
            identity: socket.as_ref().map(Address::identity),
            aliases: Vec::new(),
            config: socket.map(|socket| BackendConfig {
                id: self.ids.issue(),
                name: name.value.clone(),
                socket,
                list_timeout: list.unwrap_or(all.list),
                stats_timeout: stats.unwrap_or(all.stats),
                stale_lists: stale_lists.unwrap_or(all.stale_lists),
                auto_register: auto_register.unwrap_or_default(),
                required: required.unwrap_or_default(),
                user,
                origin: Some(name.place.origin()),
            }),
            name: name.clone(),
        }
    }

    /// The value of a field in a row of `[backends]`, or the field's default.
    fn backend_field<T>(
        &mut self,
        settings: Option<&BackendRow>,
        name: &str,
        parse: impl Fn(&str, &Limits) -> Result<T, InvalidValue>,
    ) -> Option<T> {
        let key = keys::written("backends", name)?;
        match settings.and_then(|settings| settings.texts.get(name)) {
            Some(text) => self.parsed(text, |text| parse(text, &key.limits)),
            None => parse(key.default?, &key.limits).ok(),
        }
    }

    /// Adds a backend for each socket that only handlers name. The backend gets the name of the first such handler.
    fn add_unnamed_backends(
        &mut self,
        known: &mut Vec<KnownBackend>,
        listen: Option<&Address>,
        timeouts: Timeouts,
    ) {
        for row in &self.written.handlers {
            let Some(text) = row.value.as_ref().and_then(written_socket) else {
                continue;
            };
            let socket = self.socket(&text, listen);
            if socket.is_none() || with_socket(known, socket.as_ref()).is_some() {
                continue;
            }
            if let Some(other) = with_name(known, &row.name.value) {
                self.name_clash(&text, other);
            }
            known.push(self.known_backend(&row.name, socket, None, timeouts));
        }
    }

    fn socket(&mut self, text: &Placed<String>, listen: Option<&Address>) -> Option<Address> {
        let socket = self.parsed(text, value::address)?;
        if listen.is_some_and(|listen| listen.identity().is(&socket.identity())) {
            self.problems.report(
                &text.place,
                format!("{socket} is criswitch's own socket (\"listen\")"),
                "the socket of a container runtime",
            );
        }
        Some(socket)
    }

    fn handlers(&mut self, known: &[KnownBackend]) -> Vec<Handler> {
        if self.written.handlers.is_empty() && !self.written.partial {
            let place = self.written.handlers_at.as_ref().unwrap_or(self.main);
            self.problems.report(
                place,
                "no handler is defined",
                format!("[handlers] with a row such as runc = {:?}", paths::BACKEND),
            );
        }
        // Maps each RuntimeClass to the last row so far that has it.
        let mut classes = HashMap::new();
        let mut found = Vec::new();
        for row in &self.written.handlers {
            let Some(handler) = self.handler(row, known) else {
                continue;
            };
            let class = handler.class().to_owned();
            if let Some(earlier) = classes.insert(class.clone(), &row.name) {
                let what = format!(
                    "the RuntimeClass of handler {:?} has the name {class:?}, as that of handler {:?} at {}",
                    handler.name, earlier.value, earlier.place
                );
                self.problems
                    .report(&row.name.place, what, "a different class");
            }
            found.push(handler);
        }
        found
    }

    fn handler(&mut self, row: &DefinedKey<Route>, known: &[KnownBackend]) -> Option<Handler> {
        self.label("handler", &row.name);
        let Placed { value: name, place } = &row.name;
        let route = row.value.as_ref()?;
        let kind = route.kind.as_ref();
        let kind = kind.and_then(|text| self.parsed(text, value::kind));
        let backend = self.target(name, route.target.as_ref()?, known)?;
        Some(Handler {
            name: name.clone(),
            backend: backend.config.as_ref()?.id,
            backend_handler: route.backend_handler.as_ref().unwrap_or(name).clone(),
            kind,
            origin: Some(place.origin()),
            scheduling: route.scheduling.clone(),
        })
    }

    fn target<'k>(
        &mut self,
        handler: &str,
        target: &Placed<RowTarget>,
        known: &'k [KnownBackend],
    ) -> Option<&'k KnownBackend> {
        match &target.value {
            RowTarget::Socket(text) => with_socket(known, Address::parse(text).ok().as_ref()),
            RowTarget::Backend(name) => {
                let backend = with_name(known, name);
                if backend.is_none() && !self.written.partial {
                    self.no_backend(handler, name, &target.place, known);
                }
                backend
            }
        }
    }

    /// Rejects a metrics socket at the path of `listen` or of a backend: binding it would replace that socket.
    fn metrics_apart(
        &mut self,
        metrics: Option<&MetricsListen>,
        listen: Option<&Address>,
        known: &[KnownBackend],
    ) {
        let text = self.written.text("metrics.listen");
        let (Some(MetricsListen::Socket(socket)), Some(text)) = (metrics, text) else {
            return;
        };
        if let Some(what) = use_of(socket, listen, known) {
            self.problems.report(&text.place, what, METRICS_EXAMPLE);
        }
    }

    /// Rejects a file of labels at the path of a socket or of a file of the configuration.
    fn labels_apart(
        &mut self,
        labels: Option<&Path>,
        files: &[ConfigFile],
        metrics: Option<&MetricsListen>,
        listen: Option<&Address>,
        known: &[KnownBackend],
    ) {
        let (Some(labels), Some(text)) = (labels, self.written.text("labels_file")) else {
            return;
        };
        let shown = labels.display();
        let socket = labels.to_str().and_then(|text| Address::parse(text).ok());
        let of_socket = socket.and_then(|socket| match metrics {
            Some(MetricsListen::Socket(metrics)) if metrics.identity().is(&socket.identity()) => {
                Some(format!("{shown} is the socket of \"metrics.listen\""))
            }
            _ => use_of(&socket, listen, known),
        });
        let place = place_of(labels);
        let is_read = files.iter().any(|file| place_of(&file.path()) == place);
        let drop_ins = files
            .first()
            .map(|main| place_of(&main.path()).with_file_name("conf.d"));
        let is_drop_in =
            place.parent() == drop_ins.as_deref() && place.extension() == Some("toml".as_ref());
        let of_file =
            (is_read || is_drop_in).then(|| format!("{shown} is a file of the configuration"));
        if let Some(what) = of_socket.or(of_file) {
            self.problems
                .report(&text.place, what, paths::LABELS_EXAMPLE);
        }
    }

    fn default(&mut self) -> Option<String> {
        let Some(row) = self.written.key("default_handler") else {
            if !self.written.partial && !self.written.has_misspelt_default {
                let what =
                    "\"default_handler\" is missing: the handler of pods without a RuntimeClass";
                self.problems.report(self.main, what, self.default_hint());
            }
            return None;
        };
        let default = row.value.as_ref()?.first()?;
        let handlers = &self.written.handlers;
        let names = handlers.iter().map(|row| row.name.value.as_str());
        let missing = !names.clone().any(|name| name == default.value);
        if missing && !self.written.partial && !handlers.is_empty() {
            let hint = nearest(&default.value, names)
                .unwrap_or_else(|| "a row for it under [handlers]".to_owned());
            let name = &default.value;
            self.problems.report(
                &default.place,
                format!("\"default_handler\" is {name:?}, which is not in [handlers]"),
                hint,
            );
        }
        Some(default.value.clone())
    }

    fn default_hint(&self) -> String {
        let names = self.written.handlers.iter().map(|row| &*row.name.value);
        let mut valid = names.filter(|name| value::label("", name).is_ok());
        format!("default_handler = {:?}", valid.next().unwrap_or("runc"))
    }

    fn label(&mut self, kind: &str, name: &Placed<String>) {
        if let Err(wrong) = value::label(kind, &name.value) {
            self.problems.report(&name.place, wrong.what, wrong.hint);
        }
    }

    fn second_name(&mut self, row: &DefinedKey<BackendRow>, first: &KnownBackend) {
        let (name, first, place) = (&row.name.value, &first.name.value, &first.name.place);
        self.problems.report(
            &row.name.place,
            format!("backend {name:?} has the same socket as {first:?} at {place}"),
            "one name for both",
        );
    }

    fn name_clash(&mut self, socket: &Placed<String>, other: &KnownBackend) {
        let (name, place) = (&other.name.value, &other.name.place);
        let what = format!(
            "this socket has no name, and its handler's name {name:?} is already the name of a different backend at \
             {place}"
        );
        let path = &socket.value;
        let hint = format!("a name for the socket under [backends], such as {name}-2 = {path:?}");
        self.problems.report(&socket.place, what, hint);
    }

    fn no_backend(&mut self, handler: &str, name: &str, place: &Place, known: &[KnownBackend]) {
        let names = known.iter().map(|backend| backend.name.value.as_str());
        // The hint is computed lazily, because only problems that are shown need it and there may be thousands of rows.
        let hint = fmt::from_fn(|f| match nearest(name, names.clone()) {
            _ if keys::written("", handler).is_some() => {
                write!(f, "the key {handler:?} above the first [table]")
            }
            _ if name.contains('$') => f.write_str(value::WITHOUT_VARIABLES),
            _ if address::is_like(name) => write!(f, "socket = {name:?}"),
            Some(name) if !name.starts_with("one of") => f.write_str(&name),
            _ => f.write_str("the path of its socket"),
        });
        self.problems
            .report(place, format!("no backend is named {name:?}"), hint);
    }
}

/// Builds the table with its backends in this order: the backend of the default handler, the other backends in the
/// order of the handlers, backends without a handler.
fn arrange(mut handlers: Vec<Handler>, known: &[KnownBackend], default: &str) -> Option<Table> {
    let default = handlers.iter().find(|row| row.name == default)?.clone();
    let mut backends: Vec<_> = known.iter().filter_map(|it| it.config.clone()).collect();
    backends.sort_by_cached_key(|backend| {
        iter::once(&default)
            .chain(&handlers)
            .position(|row| row.backend == backend.id)
            .unwrap_or(usize::MAX)
    });
    handlers.sort_by(|a, b| a.name.cmp(&b.name));
    Some(Table {
        backends,
        handlers,
        default,
    })
}

fn with_name<'k>(known: &'k [KnownBackend], name: &str) -> Option<&'k KnownBackend> {
    known
        .iter()
        .find(|backend| backend.name.value == name || backend.aliases.iter().any(|it| it == name))
}

/// The note for the operator about a second name of a backend.
fn alias_note(row: &DefinedKey<BackendRow>, first: &KnownBackend) -> String {
    let (name, place) = (&row.name.value, &row.name.place);
    let (first, first_place) = (&first.name.value, &first.name.place);
    format!(
        "{place}: the path of backend {name:?} is another path of the socket of {first:?} at {first_place}; criswitch uses one \
         backend, {first:?}, for both names, with the settings of {first:?}"
    )
}

/// The path with the links of its directory resolved.
fn place_of(path: &Path) -> PathBuf {
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    match (folder, path.file_name()) {
        (Some(folder), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    }
}

/// Which socket is at the path of `socket`: that of `listen` or of a backend. `None` if it is neither.
fn use_of(socket: &Address, listen: Option<&Address>, known: &[KnownBackend]) -> Option<String> {
    if listen.is_some_and(|listen| listen.identity().is(&socket.identity())) {
        return Some(format!("{socket} is the socket for the CRI (\"listen\")"));
    }
    let backend = with_socket(known, Some(socket))?;
    let (name, place) = (&backend.name.value, &backend.name.place);
    Some(format!(
        "{socket} is the socket of the backend {name:?} at {place}"
    ))
}

fn same_socket<'k>(
    known: &'k mut [KnownBackend],
    identity: Option<&Identity>,
) -> Option<&'k mut KnownBackend> {
    let identity = identity?;
    known
        .iter_mut()
        .find(|backend| backend.identity.as_ref().is_some_and(|it| it.is(identity)))
}

fn with_socket<'k>(
    known: &'k [KnownBackend],
    socket: Option<&Address>,
) -> Option<&'k KnownBackend> {
    let identity = socket?.identity();
    known
        .iter()
        .find(|backend| backend.identity.as_ref().is_some_and(|it| it.is(&identity)))
}

fn written_socket(route: &Route) -> Option<Placed<String>> {
    let target = route.target.as_ref()?;
    match &target.value {
        RowTarget::Backend(_) => None,
        RowTarget::Socket(text) => Some(Placed {
            value: text.clone(),
            place: target.place.clone(),
        }),
    }
}
