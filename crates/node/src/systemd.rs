//! Calls of systemd over its private D-Bus socket. Root can use it without programs of the machine and without a
//! message bus, so even from a container without a shell. A library for D-Bus would add 735 kB to the program.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use criswitch_platform::connect::{Stream, dial};
use criswitch_platform::service;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use criswitch_client::terminal::progress;

/// The socket of systemd.
pub(super) const SOCKET: &str = "/run/systemd/private";
/// The time limit of a call, which is the same as in systemctl. systemd may handle changes of mounts before it answers.
const LIMIT: Duration = Duration::from_secs(25);
/// How long systemd waits for the programs of a service to end, and then for a command of `after` that does not call
/// [`take_time`].
const STOP_LIMIT_MICROSECONDS: u64 = 30_000_000;
/// The time limit of a command that has its own time limits.
const LONG_MICROSECONDS: u64 = 24 * 3600 * 1_000_000;
/// The limits on a line of the authentication, and on the parts of a message.
const MAX_LINE: usize = 256;
const MAX_PART: usize = 64 << 10;

/// The types of a message in its header.
const CALL: u8 = 1;
const RETURN: u8 = 2;
const ERROR: u8 = 3;
/// The number of a call. A connection waits for the reply to its only call.
const SERIAL: u32 = 1;

const MANAGER: &str = "/org/freedesktop/systemd1";

/// The socket of a machine's systemd.
#[derive(Clone, Copy)]
pub(super) struct Systemd<'a>(pub(super) &'a Path);

/// A unit that runs one command at a time. The unit exists while it runs, and after it has failed.
pub(super) struct TransientUnit {
    pub(super) name: &'static str,
    /// The file with the input, if there is one.
    pub(super) input: Option<&'static str>,
    /// The file with the output of the last command. A machine may have no journal of systemd.
    pub(super) output: &'static str,
    /// The file for standard error; without one, `output` has it.
    pub(super) errors: Option<&'static str>,
    /// The arguments of the command that runs after each command.
    pub(super) after: &'static [&'static str],
}

impl Systemd<'_> {
    /// Starts a unit with a command. `after` has commands that run after the end of this command. Commands whose
    /// programs do not exist are skipped, and failures are ignored.
    pub(super) async fn start(
        &self,
        unit: &TransientUnit,
        command: Vec<String>,
        after: &[Vec<String>],
        directory: &Path,
    ) -> anyhow::Result<()> {
        let mut body = MarshalledBody::default();
        body.text(unit.name).text("fail");
        body.array(8, |body| {
            body.property("Description", &command.join(" "));
            // The directory may be removed before `after` runs.
            body.property("WorkingDirectory", &format!("-{}", directory.display()));
            if let Some(input) = unit.input {
                body.property("StandardInputFile", input);
            }
            body.property("StandardOutputFileToAppend", unit.output);
            if let Some(errors) = unit.errors {
                body.property("StandardErrorFileToAppend", errors);
            }
            // A service of this type counts as failed if it is stopped.
            body.property("Type", "oneshot");
            body.commands("ExecStart", &[command], false);
            body.commands("ExecStopPost", after, true);
            // A program that the command has started may ignore the signals that end the unit. With version 1 of
            // cgroups, systemd may also miss the end of the program.
            body.name("TimeoutStopUSec").signature("t").align(8);
            body.0.extend(STOP_LIMIT_MICROSECONDS.to_le_bytes());
            body.property("NotifyAccess", "exec");
        });
        // The list of further units is empty.
        body.array(8, |_| {});
        self.manager("StartTransientUnit", "ssa(sv)a(sa(sv))", &body)
            .await
            .map(drop)
    }

    /// Removes a failed unit from systemd's list of units.
    pub(super) async fn reset(&self, unit: &str) -> anyhow::Result<()> {
        self.manager("ResetFailedUnit", "s", MarshalledBody::default().text(unit))
            .await
            .map(drop)
    }

    /// A property of a unit: a text, a number, or the number of its job. systemd also reports properties of a unit that
    /// does not exist.
    pub(super) async fn property(
        &self,
        unit: &str,
        interface: &str,
        name: &str,
    ) -> anyhow::Result<String> {
        let path = format!("{MANAGER}/unit/{}", escaped(unit));
        let mut body = MarshalledBody::default();
        body.text(&format!("org.freedesktop.systemd1.{interface}"))
            .text(name);
        let reply = self
            .call(
                &path,
                ["org.freedesktop.DBus.Properties", "Get", "ss"],
                &body,
            )
            .await?;
        match reply.as_slice() {
            [1, b's', 0, _, text @ ..] => text_of(text).context("systemd's reply has no text"),
            [1, b'i', 0, _, a, b, c, d] | [4, b'(', b'u', b'o', b')', 0, _, _, a, b, c, d, ..] => {
                Ok(i32::from_le_bytes([*a, *b, *c, *d]).to_string())
            }
            _ => bail!("{name} is neither a text nor a number"),
        }
    }

    async fn manager(
        &self,
        name: &str,
        kinds: &str,
        body: &MarshalledBody,
    ) -> anyhow::Result<Vec<u8>> {
        self.call(
            MANAGER,
            ["org.freedesktop.systemd1.Manager", name, kinds],
            body,
        )
        .await
    }

    /// Calls a method of the object at `path`. `of` has the interface, the name of the method, and the types of its
    /// arguments. Returns the body of the reply.
    async fn call(
        &self,
        path: &str,
        of: [&str; 3],
        body: &MarshalledBody,
    ) -> anyhow::Result<Vec<u8>> {
        let call = async {
            let mut stream = self.connect().await?;
            // 30 is the user 0 in hexadecimal digits. systemd reads a call in the same packet as BEGIN only when the
            // next packet comes, so the call waits for the reply to the authentication.
            stream.write_all(b"\0AUTH EXTERNAL 30\r\nBEGIN\r\n").await?;
            authenticated(&mut stream).await?;
            stream.write_all(&message(path, of, body)).await?;
            reply(&mut stream).await
        };
        timeout(LIMIT, call)
            .await
            .unwrap_or_else(|_| bail!("no reply within {LIMIT:?}"))
            .with_context(|| format!("systemd at {}: {}", self.0.display(), of[1]))
    }

    async fn connect(&self) -> anyhow::Result<Stream> {
        let dialed = dial(self.0).map_err(|error| {
            let hint = match error.kind() {
                ErrorKind::PermissionDenied => "; run the command as root",
                ErrorKind::NotFound => "; does this machine run systemd?",
                _ => "",
            };
            anyhow::anyhow!("cannot connect: {error}{hint}")
        })?;
        Ok(dialed.stream().await?.0)
    }
}

/// Extends the time limit of this process, if it is a command `after` of a service.
pub(super) fn take_time() {
    if service::is_managed()
        && let Err(error) = service::send(&format!("EXTEND_TIMEOUT_USEC={LONG_MICROSECONDS}"))
    {
        progress(&format!("cannot notify systemd: {error}\n"));
    }
}

/// Reads the reply to the authentication.
async fn authenticated(stream: &mut Stream) -> anyhow::Result<()> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        ensure!(line.len() < MAX_LINE, "the authentication has no end");
        line.push(stream.read_u8().await?);
    }
    ensure!(line.starts_with(b"OK "), "systemd rejects this user");
    Ok(())
}

/// Reads messages until the reply, and returns its body.
async fn reply(stream: &mut Stream) -> anyhow::Result<Vec<u8>> {
    loop {
        let mut head = [0; 16];
        stream.read_exact(&mut head).await?;
        let [order, kind, _, _, a, b, c, d, .., e, f, g, h] = head;
        let [body, fields] = [[a, b, c, d], [e, f, g, h]].map(|it| u32::from_le_bytes(it) as usize);
        let fields = fields.next_multiple_of(8);
        ensure!(order == b'l', "the reply has an unknown byte order");
        ensure!(body.max(fields) <= MAX_PART, "the reply is too long");
        let mut rest = vec![0; fields + body];
        stream.read_exact(&mut rest).await?;
        let body = rest.split_off(fields);
        match kind {
            RETURN => return Ok(body),
            ERROR => bail!("{}", text_of(&body).unwrap_or_default()),
            // A signal is ignored.
            _ => {}
        }
    }
}

/// The message that calls a method.
fn message(path: &str, [interface, name, kinds]: [&str; 3], body: &MarshalledBody) -> Vec<u8> {
    let mut message = MarshalledBody(vec![b'l', CALL, 0, 1]);
    message.number(body.0.len()).number(SERIAL as usize);
    message.array(8, |fields| {
        for (code, kind, value) in [(1, "o", path), (2, "s", interface), (3, "s", name)] {
            fields.align(8).0.push(code);
            fields.signature(kind).text(value);
        }
        fields.align(8).0.push(8);
        fields.signature("g").signature(kinds);
    });
    message.align(8);
    message.0.extend(&body.0);
    message.0
}

/// A text at the start of these bytes.
fn text_of(bytes: &[u8]) -> Option<String> {
    let (size, rest) = bytes.split_first_chunk()?;
    let text = rest.get(..u32::from_le_bytes(*size) as usize)?;
    Some(String::from_utf8_lossy(text).into_owned())
}

/// The name of a unit, escaped for the path of its object.
fn escaped(unit: &str) -> String {
    unit.bytes()
        .map(|byte| match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => char::from(byte).to_string(),
            _ => format!("_{byte:02x}"),
        })
        .collect()
}

/// The bytes of a message: each value begins at a multiple of its alignment.
#[derive(Default)]
struct MarshalledBody(Vec<u8>);

impl MarshalledBody {
    fn align(&mut self, to: usize) -> &mut MarshalledBody {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
        self
    }

    /// A number of 32 bits.
    fn number(&mut self, number: usize) -> &mut MarshalledBody {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        self.align(4).0.extend(number.to_le_bytes());
        self
    }

    fn text(&mut self, text: &str) -> &mut MarshalledBody {
        self.number(text.len()).0.extend(text.bytes().chain([0]));
        self
    }

    fn signature(&mut self, kinds: &str) -> &mut MarshalledBody {
        self.0.push(u8::try_from(kinds.len()).unwrap_or(u8::MAX));
        self.0.extend(kinds.bytes().chain([0]));
        self
    }

    /// An array, whose items `fill` adds.
    fn array(
        &mut self,
        alignment: usize,
        fill: impl FnOnce(&mut MarshalledBody),
    ) -> &mut MarshalledBody {
        let end = self.number(0).0.len();
        let start = self.align(alignment).0.len();
        fill(self);
        let size = u32::try_from(self.0.len() - start).unwrap_or(u32::MAX);
        self.0.splice(end - 4..end, size.to_le_bytes());
        self
    }

    /// The name of a property. Its type and value follow.
    fn name(&mut self, name: &str) -> &mut MarshalledBody {
        self.align(8).text(name)
    }

    fn property(&mut self, name: &str, value: &str) {
        self.name(name).signature("s").text(value);
    }

    /// A property with commands.
    fn commands(&mut self, name: &str, commands: &[Vec<String>], may_fail: bool) {
        self.name(name).signature("a(sasb)").array(8, |body| {
            for words in commands {
                let program = words.first().map_or("", String::as_str);
                body.align(8).text(program).array(4, |body| {
                    for word in words {
                        body.text(word);
                    }
                });
                body.number(usize::from(may_fail));
            }
        });
    }
}
