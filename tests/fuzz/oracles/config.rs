//! Any text either loads as a consistent configuration, or gives problems whose places are within the text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use arbitrary::Unstructured;
use criswitch_config::{Config, Problems, Scheduling, duration_text};
use criswitch_platform::users;
use criswitch_testing::native;

const PATHS: [&str; 2] = ["main", "drop-in"];

/// Lines of top-level keys, valid and invalid.
const HEAD: &[&str] = &[
    "default_handler = \"kata\"\n",
    "listen = \"/run/criswitch/criswitch.sock\"\n",
    "listen = \"/run/crio/crio.sock\"\n",
    "shutdown_timeout = \"10s\"\n",
    "shutdown_timeout = \"2h\"\n",
    "max_message = \"16MiB\"\n",
    "max_message = \"0\"\n",
    "start_wait = \"0s\"\n",
    "list_timeout = \"1500ms\"\n",
    "stats_timeout = \"3s\"\n",
    "stale_lists = \"5m\"\n",
    "allow_uids = [0, 1000]\n",
    "allow_uids = [0x10, 0o7, 0b1, 1_000]\n",
    "allow_uids = [-1, \"root\"]\n",
    "log.level = \"debug\"\n",
    "log.level = \"loud\"\n",
    "log.level = \"warn,session=trace, wire=off\"\n",
    "log.format = \"json\"\n",
    "watch = true\n",
    "metrics.listen = \"[::1]:9100\"\n",
    "metrics.listen = \"/run/metrics.sock\"\n",
    "metrics.listen = \"10.0.0.1:9100\"\n",
    "# ü\r\n",
];
const HANDLERS: &[&str] = &[
    "runc = \"unix:///run//a.sock\"\n",
    "kata = \"/run/b.sock\"\n",
    "kata = \"crio\"\n",
    "crio = \"/run/b.sock\"\n",
    "gvisor = { backend = \"crio\", handler = \"runsc\" }\n",
    "plain = { socket = \"/run/b.sock\", handler = \"\" }\n",
    "old = { backend = \"old\" }\n",
    "wasm = { backend = \"crio\", overhead = { cpu = \"250m\", memory = \"1.5Gi\" } }\n",
    "vm = { socket = \"/run/b.sock\", node_selector = { \"a.b/c\" = \"\" } }\n",
    "fc = { socket = \"/run/b.sock\", tolerations = [{ operator = \"Exists\" }] }\n",
    "fc = { backend = \"old\", tolerations = [{ key = \"a\" }, { key = \"a\", operator = \"Equal\" }] }\n",
    "neither = { handler = \"x\" }\n",
    "Bad_Name = \"/run/c.sock\"\n",
];
const BACKENDS: &[&str] = &[
    "crio = \"/run/c.sock\"\n",
    "crio = { socket = \"/run/c.sock\", list_timeout = \"5s\" }\n",
    "crio = { socket = \"/run/c.sock\", stats_timeout = \"9s\" }\n",
    "crio = { socket = \"/run/c.sock\", user = \"1000\" }\n",
    "crio = { socket = \"/run/c.sock\", user = \"root\" }\n",
    "old = \"/run/a.sock\"\n",
    "twin = \"unix:/run/c.sock\"\n",
    "own = \"/run/criswitch/criswitch.sock\"\n",
    "old = 7\n",
    "shy = { socket = \"/run/d.sock\", auto_register = true }\n",
];

pub fn check(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let _ = checked(&mut u);
}

fn checked(u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let made = u.arbitrary()?;
    let main = text(u, made)?;
    let drop_in = if u.arbitrary()? {
        Some(text(u, made)?)
    } else {
        None
    };
    let texts: Vec<Vec<u8>> = [main].into_iter().chain(drop_in).collect();
    match read(&texts) {
        Ok(config) => {
            is_what_it_says(&config, &texts);
            fits_together(&config);
            says_the_same_again(&config);
        }
        Err(problems) => {
            assert!(!problems.is_empty());
            has_places(&problems, &texts);
            assert_eq!(read(&texts).err(), Some(problems));
        }
    }
    Ok(())
}

fn text(u: &mut Unstructured<'_>, made: bool) -> arbitrary::Result<Vec<u8>> {
    if !made {
        let length = u.len() - usize::from(!u.is_empty());
        return Ok(u.bytes(length)?.to_vec());
    }
    let mut text = Vec::new();
    pieces(u, &mut text, "default_handler = \"runc\"\n", HEAD)?;
    pieces(
        u,
        &mut text,
        "[handlers]\nrunc = \"/run/a.sock\"\n",
        HANDLERS,
    )?;
    pieces(u, &mut text, "[backends]\n", BACKENDS)?;
    if u.ratio(1, 4)? {
        let at = u.int_in_range(0..=text.len())?;
        text.insert(at, u.arbitrary()?);
    }
    Ok(text)
}

/// Adds the first line of a section, which is sometimes omitted, and up to four of its other lines.
fn pieces(
    u: &mut Unstructured<'_>,
    text: &mut Vec<u8>,
    begin: &str,
    lines: &[&str],
) -> arbitrary::Result<()> {
    if u.int_in_range(0..=7)? < 7 {
        text.extend_from_slice(native(begin).as_bytes());
    }
    for _ in 0..u.int_in_range(0..=4)? {
        text.extend_from_slice(native(u.choose(lines)?).as_bytes());
    }
    Ok(())
}

fn read(texts: &[Vec<u8>]) -> Result<Config, Problems> {
    let files: Vec<_> = PATHS
        .iter()
        .zip(texts)
        .map(|(path, text)| (Path::new(*path), text.as_slice()))
        .collect();
    Config::of_texts(&files)
}

/// Checks that the `toml` crate can read each text too, and finds the values that criswitch has loaded.
fn is_what_it_says(config: &Config, texts: &[Vec<u8>]) {
    let mut handlers = 0;
    for text in texts {
        let table: toml::Table = std::str::from_utf8(text).unwrap().parse().unwrap();
        if let Some(default) = table.get("default_handler") {
            assert_eq!(default.as_str(), Some(config.table.default.name.as_str()));
        }
        if let Some(written) = table.get(users::KEY) {
            let written = written.as_array().unwrap().iter();
            let written = written.map(|user| {
                let text = user.as_str().map(str::to_owned);
                text.unwrap_or_else(|| user.as_integer().unwrap().to_string())
            });
            assert!(written.eq(config.allow_uids.iter().map(ToString::to_string)));
        }
        let rows = table
            .get("handlers")
            .map(|rows| rows.as_table().unwrap().keys());
        for name in rows.into_iter().flatten() {
            assert!(config.table.handler(name).is_some());
            handlers += 1;
        }
    }
    assert_eq!(config.table.handlers.len(), handlers);
}

fn fits_together(config: &Config) {
    let table = &config.table;
    assert!(table.handlers.contains(&table.default));
    assert!(
        table
            .handlers
            .is_sorted_by(|one, other| one.name < other.name)
    );
    assert_eq!(table.default.backend, table.backends[0].id);
    for row in &table.handlers {
        assert!(table.backend(row.backend).is_some());
        assert_eq!(table.handler(&row.name), Some(row));
    }
    let names: BTreeSet<_> = table.backends.iter().map(|backend| &backend.name).collect();
    assert_eq!(names.len(), table.backends.len());
    for (at, backend) in table.backends.iter().enumerate() {
        assert_ne!(backend.socket, config.listen);
        let same = |other: &&_| backend.socket == **other;
        let sockets = table.backends.iter().map(|other| &other.socket);
        assert_eq!(sockets.clone().filter(same).count(), 1, "{at}");
    }
}

/// Checks that the configuration, written out in full, loads again with the same values. Only the order of the backends
/// may differ.
fn says_the_same_again(config: &Config) {
    let again = read(&[written(config).into_bytes()])
        .unwrap_or_else(|problems| panic!("{problems}\n{}", written(config)));
    assert_eq!(again.listen, config.listen);
    assert_eq!(again.shutdown_timeout, config.shutdown_timeout);
    assert_eq!(again.max_message, config.max_message);
    assert_eq!(again.start_wait, config.start_wait);
    assert_eq!(again.list_timeout, config.list_timeout);
    assert_eq!(again.stats_timeout, config.stats_timeout);
    assert_eq!(again.stale_lists, config.stale_lists);
    assert_eq!(again.allow_uids, config.allow_uids);
    assert_eq!(again.watch, config.watch);
    assert_eq!(again.labels_file, config.labels_file);
    assert_eq!(again.labels_failed_after, config.labels_failed_after);
    assert_eq!(again.log, config.log);
    assert_eq!(again.metrics, config.metrics);
    assert_eq!(again.table.default.name, config.table.default.name);
    assert_eq!(rows(&again), rows(config));
    assert_eq!(backends(&again), backends(config));
}

fn written(config: &Config) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: String| writeln!(text, "{key} = {value}").unwrap();
    line("listen", quoted(&config.listen.to_string()));
    line("default_handler", quoted(&config.table.default.name));
    line("shutdown_timeout", duration(config.shutdown_timeout));
    line("max_message", format!("\"{}B\"", config.max_message));
    line("start_wait", duration(config.start_wait));
    line("list_timeout", duration(config.list_timeout));
    line("stats_timeout", duration(config.stats_timeout));
    line("stale_lists", quoted(&duration_text(config.stale_lists)));
    line(users::KEY, format!("{:?}", config.allow_uids));
    line("watch", config.watch.to_string());
    let labels = config
        .labels_file
        .as_ref()
        .map(|file| file.display().to_string());
    line("labels_file", quoted(&labels.unwrap_or_default()));
    let failed_after = duration_text(config.labels_failed_after);
    line("labels_failed_after", quoted(&failed_after));
    line("log.level", quoted(&config.log.levels.to_string()));
    line("log.format", quoted(config.log.format.as_ref()));
    let metrics = config.metrics.as_ref().map(ToString::to_string);
    line("metrics.listen", quoted(&metrics.unwrap_or_default()));
    for backend in &config.table.backends {
        let socket = quoted(&backend.socket.to_string());
        let lists = duration(backend.list_timeout);
        let stats = duration(backend.stats_timeout);
        let register = backend.auto_register;
        let timeouts = format!("list_timeout = {lists}, stats_timeout = {stats}");
        let user = backend
            .user
            .map(|user| format!(", user = \"{user}\""))
            .unwrap_or_default();
        let row = format!("{{ socket = {socket}, {timeouts}, auto_register = {register}{user} }}");
        line(&format!("backends.{}", backend.name), row);
    }
    for (name, backend, theirs, scheduling) in rows(config) {
        let (backend, theirs) = (quoted(&backend), quoted(&theirs));
        let scheduling = fields(&scheduling);
        let row = format!("{{ backend = {backend}, handler = {theirs}, {scheduling} }}");
        line(&format!("handlers.{name}"), row);
    }
    text
}

fn fields(scheduling: &Scheduling) -> String {
    let tolerations = scheduling.tolerations.iter().map(|toleration| {
        let seconds = toleration.seconds.into_iter();
        let seconds = seconds.map(|seconds| format!("toleration_seconds = {seconds}, "));
        format!(
            "{{ {}key = {}, operator = {}, value = {}, effect = {} }}",
            seconds.collect::<String>(),
            quoted(&toleration.key),
            quoted(toleration.operator.as_ref()),
            quoted(&toleration.value),
            quoted(toleration.effect.as_ref())
        )
    });
    let class = scheduling.class.iter();
    let class = class.map(|class| format!("class = {}, ", quoted(class)));
    format!(
        "{}overhead = {}, node_selector = {}, tolerations = [{}]",
        class.collect::<String>(),
        texts(&scheduling.overhead),
        texts(&scheduling.node_selector),
        tolerations.collect::<Vec<_>>().join(", ")
    )
}

fn texts(texts: &BTreeMap<String, String>) -> String {
    let texts = texts
        .iter()
        .map(|(key, value)| format!("{} = {}", quoted(key), quoted(value)));
    format!("{{ {} }}", texts.collect::<Vec<_>>().join(", "))
}

fn duration(duration: Duration) -> String {
    format!("\"{}s {}ns\"", duration.as_secs(), duration.subsec_nanos())
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn rows(config: &Config) -> Vec<(String, String, String, Scheduling)> {
    let rows = config.table.handlers.iter();
    rows.map(|row| {
        let backend = config.table.backend(row.backend).unwrap().name.clone();
        let (name, theirs) = (row.name.clone(), row.backend_handler.clone());
        (name, backend, theirs, row.scheduling.clone())
    })
    .collect()
}

/// A backend's name, socket, timeouts, `auto_register`, and its user.
type Backend = (String, String, [Duration; 2], bool, Option<users::UserId>);

fn backends(config: &Config) -> BTreeSet<Backend> {
    let backends = config.table.backends.iter();
    backends
        .map(|backend| {
            let socket = backend.socket.to_string();
            let name = backend.name.clone();
            let timeouts = [backend.list_timeout, backend.stats_timeout];
            (name, socket, timeouts, backend.auto_register, backend.user)
        })
        .collect()
}

/// Checks that each problem has a `path:line:column` within the text, and that the problems are in the order of the
/// files.
fn has_places(problems: &Problems, texts: &[Vec<u8>]) {
    let mut last = (0, 0, 0);
    for problem in problems.iter() {
        let place = problem.place.to_string();
        let mut parts = place.split(':');
        let path = parts.next().unwrap();
        let file = PATHS.iter().position(|known| *known == path).unwrap();
        let mut number = || parts.next().unwrap().parse::<usize>().unwrap();
        let (line, column) = (number(), number());
        let text = String::from_utf8_lossy(&texts[file]);
        let written = text.split('\n').nth(line.checked_sub(1).unwrap());
        let columns = written.expect("the text has that line").chars().count();
        assert!((1..=columns + 1).contains(&column), "{problem}");
        assert!(last <= (file, line, column));
        last = (file, line, column);
        assert!(
            !problem.what.is_empty() && !problem.hint.is_empty(),
            "{problem:?}"
        );
    }
}
