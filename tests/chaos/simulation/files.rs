//! The configuration of an operator: a main file and drop-ins, edited step by step, and sometimes invalid.

use std::collections::BTreeMap;
use std::path::Path;

use criswitch_config::{Config, Problems};
use fastrand::Rng;

/// The number of runtimes, including runtimes that are named in no file.
pub const RUNTIMES: usize = 4;
/// The main file and its drop-ins.
const FILES: [&str; 3] = ["criswitch.toml", "conf.d/10-a.toml", "conf.d/20-b.toml"];
const HANDLERS: [&str; 5] = ["gvisor", "kata", "old", "runc", "std"];
/// Names of entries under `[backends]`.
const NAMES: [&str; 3] = ["crio", "one", "runc"];

#[derive(Clone, Debug, Default)]
pub struct Files {
    default: &'static str,
    parts: [Part; FILES.len()],
    /// Which runtimes have `auto_register = true`.
    registering: [bool; RUNTIMES],
}

#[derive(Clone, Debug, Default)]
struct Part {
    handlers: BTreeMap<&'static str, Leads>,
    /// Runtimes by name.
    backends: BTreeMap<String, usize>,
}

/// The runtime that a handler is routed to.
#[derive(Clone, Copy, Debug)]
struct Leads {
    runtime: usize,
    /// The handler's name at the runtime.
    handler: &'static str,
}

/// A change of the files before a reload.
#[derive(Clone, Debug)]
pub enum Edit {
    /// Routes a handler to a runtime. The handler may be new, or it was routed to another runtime before.
    Lead {
        handler: usize,
        runtime: usize,
        file: usize,
    },
    /// Removes the entry of a handler.
    Drop(usize),
    /// Renames a handler. The handler's name at the runtime does not change.
    Rename(usize, usize),
    /// Sets `default_handler`.
    Default(usize),
    /// Names a runtime under `[backends]`.
    Name {
        runtime: usize,
        name: usize,
        file: usize,
    },
    /// Removes the name of a runtime.
    Unname(usize),
    /// Sets `auto_register` of a runtime.
    AutoRegister(usize, bool),
    /// Removes a drop-in.
    Vanish(usize),
}

/// A mistake that makes criswitch reject the reload.
#[derive(Clone, Copy, Debug)]
pub enum Mistake {
    NotToml,
    NotText,
    UnknownKey,
    UnknownBackend,
    Twice,
    /// A change of a key that takes effect only at a restart.
    Fixed,
}

impl Mistake {
    /// The content of a drop-in with this mistake.
    fn text(self) -> &'static [u8] {
        match self {
            Mistake::NotToml => b"[handlers\n",
            Mistake::NotText => b"default_handler = \"\xff\"\n",
            Mistake::UnknownKey => b"colour = \"red\"\n",
            Mistake::UnknownBackend => b"[handlers]\nlost = \"nowhere\"\n",
            Mistake::Twice => b"default_handler = \"runc\"\n",
            Mistake::Fixed => b"max_message = \"17MiB\"\n",
        }
    }

    pub fn any(rng: &mut Rng) -> Mistake {
        let all = [
            Mistake::NotToml,
            Mistake::NotText,
            Mistake::UnknownKey,
            Mistake::UnknownBackend,
            Mistake::Twice,
            Mistake::Fixed,
        ];
        all[rng.usize(..all.len())]
    }
}

impl Edit {
    pub fn any(rng: &mut Rng) -> Edit {
        let (handler, runtime) = (rng.usize(..HANDLERS.len()), rng.usize(..RUNTIMES));
        let file = rng.usize(..FILES.len());
        match rng.u32(..23) {
            0..9 => Edit::Lead {
                handler,
                runtime,
                file,
            },
            9..12 => Edit::Drop(handler),
            12..14 => Edit::Rename(handler, rng.usize(..HANDLERS.len())),
            14..16 => Edit::Default(handler),
            16 => Edit::Name {
                runtime,
                name: rng.usize(..NAMES.len()),
                file,
            },
            17 => Edit::Unname(runtime),
            20..23 => Edit::AutoRegister(runtime, rng.u8(..4) > 0),
            _ => Edit::Vanish(rng.usize(1..FILES.len())),
        }
    }
}

impl Files {
    /// The files of the first start.
    pub fn of_topology(topology: usize) -> Files {
        let rows: &[(&'static str, usize, &'static str)] = match topology {
            0 => &[("runc", 0, "runc")],
            1 | 2 | 4 => &[("runc", 0, "runc"), ("kata", 1, "kata")],
            _ => &[
                ("runc", 0, "runc"),
                ("kata", 1, "kata"),
                ("gvisor", 2, "runsc"),
            ],
        };
        let mut files = Files {
            default: if topology == 3 { "kata" } else { "runc" },
            ..Files::default()
        };
        let main = &mut files.parts[0];
        for (name, runtime, handler) in rows.iter().copied() {
            main.handlers.insert(name, Leads { runtime, handler });
        }
        match topology {
            2 => drop(main.backends.insert("old".to_owned(), 2)),
            3 => drop(main.backends.insert("crio".to_owned(), 2)),
            _ => {}
        }
        if topology == 4 {
            files.auto_register(1, true);
            files.auto_register(2, true);
        }
        files
    }

    /// Reads the files. With a `mistake`, there is one more drop-in, which has the mistake.
    pub fn read(&self, mistake: Option<Mistake>) -> Result<Config, Problems> {
        let mut texts: Vec<(&Path, Vec<u8>)> = Vec::new();
        for (at, name) in FILES.iter().enumerate() {
            let text = self.text(at);
            if !text.is_empty() {
                texts.push((Path::new(name), text.into_bytes()));
            }
        }
        if let Some(mistake) = mistake {
            texts.push((Path::new("conf.d/30-c.toml"), mistake.text().to_vec()));
        }
        let texts: Vec<_> = texts
            .iter()
            .map(|(path, text)| (*path, text.as_slice()))
            .collect();
        Config::of_texts(&texts)
    }

    pub fn edit(&mut self, edit: &Edit) {
        match *edit {
            Edit::Lead {
                handler,
                runtime,
                file,
            } => {
                let handler = HANDLERS[handler];
                self.drop_handler(handler);
                let leads = Leads { runtime, handler };
                self.parts[file].handlers.insert(handler, leads);
            }
            Edit::Drop(handler) => drop(self.drop_handler(HANDLERS[handler])),
            Edit::Rename(old, new) => {
                let (old, new) = (HANDLERS[old], HANDLERS[new]);
                if let Some((file, leads)) = self.drop_handler(old) {
                    self.drop_handler(new);
                    self.parts[file].handlers.insert(new, leads);
                    if self.default == old {
                        self.default = new;
                    }
                }
            }
            Edit::Default(handler) => self.default = HANDLERS[handler],
            Edit::Name {
                runtime,
                name,
                file,
            } => {
                self.unname(runtime);
                self.parts[file]
                    .backends
                    .insert(NAMES[name].to_owned(), runtime);
            }
            Edit::Unname(runtime) => self.unname(runtime),
            Edit::AutoRegister(runtime, on) => self.auto_register(runtime, on),
            Edit::Vanish(file) => self.parts[file] = Part::default(),
        }
    }

    fn auto_register(&mut self, runtime: usize, on: bool) {
        self.registering[runtime] = on;
        if on && self.name_of(runtime).is_none() {
            let name = format!("registered-{runtime}");
            self.parts[0].backends.insert(name, runtime);
        }
    }

    /// Names a runtime under `[backends]`, so that the next instance keeps it and routes no new pods to it.
    pub fn keep(&mut self, runtime: usize) {
        self.registering[runtime] = false;
        self.parts[0]
            .backends
            .insert(format!("kept-{runtime}"), runtime);
    }

    fn drop_handler(&mut self, handler: &str) -> Option<(usize, Leads)> {
        let mut parts = self.parts.iter_mut().enumerate();
        parts.find_map(|(file, part)| Some((file, part.handlers.remove(handler)?)))
    }

    fn unname(&mut self, runtime: usize) {
        for part in &mut self.parts {
            part.backends.retain(|_, named| *named != runtime);
        }
    }

    /// The text of one file. An empty text means that the file does not exist.
    fn text(&self, file: usize) -> String {
        let part = &self.parts[file];
        let mut text = String::new();
        if file == 0 {
            text += &format!("default_handler = {:?}\n", self.default);
        }
        if !part.handlers.is_empty() {
            text += "[handlers]\n";
        }
        for (name, leads) in &part.handlers {
            let place = match self.name_of(leads.runtime) {
                Some(backend) => format!("backend = {backend:?}"),
                None => format!("socket = \"/{}\"", leads.runtime),
            };
            text += &format!("{name} = {{ {place}, handler = {:?} }}\n", leads.handler);
        }
        if !part.backends.is_empty() {
            text += "[backends]\n";
        }
        for (name, runtime) in &part.backends {
            let on = self.registering[*runtime];
            text += &format!("{name} = {{ socket = \"/{runtime}\", auto_register = {on} }}\n");
        }
        text
    }

    fn name_of(&self, runtime: usize) -> Option<&str> {
        let mut named = self.parts.iter().flat_map(|part| &part.backends);
        let (name, _) = named.find(|(_, named)| **named == runtime)?;
        Some(name)
    }
}
