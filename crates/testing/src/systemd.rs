//! A simulated systemd. It runs no commands. The command of each unit gets the exit status and the output that the test
//! sets.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

/// Returns the exit status and the output of a command. The arguments are the name of its unit, and the words of the
/// command.
pub type Runs = dyn Fn(&str, &[String]) -> (i32, String) + Send + Sync;

/// The systemd of a simulated machine. It serves at `run/systemd/private` below the root directory of the machine.
pub struct Systemd {
    root: PathBuf,
    runs: Box<Runs>,
    /// The name and the exit status of the unit that has failed last.
    failed: Mutex<Option<(String, i32)>>,
    /// The unit whose command starts when a client asks for the unit's job.
    job: Mutex<Option<(String, Vec<u8>)>>,
}

impl Systemd {
    pub fn serve(root: &Path, runs: Box<Runs>) {
        fs::create_dir_all(root.join("run/systemd")).unwrap();
        let listener = UnixListener::bind(root.join("run/systemd/private")).unwrap();
        let systemd = Arc::new(Systemd {
            root: root.to_owned(),
            runs,
            failed: Mutex::default(),
            job: Mutex::default(),
        });
        // The thread ends with the process of the tests.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let systemd = systemd.clone();
                thread::spawn(move || systemd.answer(stream.unwrap()));
            }
        });
    }

    /// Answers the only call of a connection. Sends a D-Bus signal before the reply.
    fn answer(&self, stream: UnixStream) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        reader.read_line(&mut line).ok()?;
        assert_eq!(line, "\0AUTH EXTERNAL 30\r\nBEGIN\r\n");
        // The client must not send its call together with these lines, because the real systemd would not see the call.
        assert!(reader.buffer().is_empty());
        (&stream).write_all(b"OK 0123\r\n").ok()?;
        let mut head = [0; 16];
        reader.read_exact(&mut head).ok()?;
        let mut fields = vec![0; number(&head[12..]).next_multiple_of(8)];
        let mut body = vec![0; number(&head[4..])];
        reader.read_exact(&mut fields).ok()?;
        reader.read_exact(&mut body).ok()?;
        let (kind, reply) = self.reply(&fields, &body);
        for (kind, body) in [(4, &[0; 8][..]), (kind, &reply)] {
            // The header has a field of 8 bytes: the serial number of the call.
            let mut message = vec![b'l', kind, 0, 1];
            message.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
            message.extend([1, 0, 0, 0, 8, 0, 0, 0, 5, 1, b'u', 0, 1, 0, 0, 0]);
            message.extend(body);
            (&stream).write_all(&message).ok()?;
        }
        Some(())
    }

    /// The type and the body of the reply.
    fn reply(&self, fields: &[u8], body: &[u8]) -> (u8, Vec<u8>) {
        let fields = String::from_utf8_lossy(fields);
        let failed = self.failed.lock().unwrap().clone();
        if fields.contains("StartTransientUnit") {
            let unit = text_at(body, 0).0;
            if failed.is_some_and(|(failed, _)| failed == unit) {
                return (3, text("the unit was already loaded"));
            }
            *self.job.lock().unwrap() = Some((unit, body.to_vec()));
            return (2, text("/job/1"));
        }
        if fields.contains("ResetFailedUnit") {
            *self.failed.lock().unwrap() = None;
            return (2, Vec::new());
        }
        let (interface, next) = text_at(body, 0);
        let (name, _) = text_at(body, next);
        let unit = fields.split("/unit/").nth(1).unwrap();
        if name == "Job" {
            let job = self.job.lock().unwrap().take();
            let number = job.map_or(0, |(unit, body)| {
                self.start(&unit, &body);
                1_u32
            });
            let body = [&b"\x04(uo)\0\0\0"[..], &number.to_le_bytes(), &text("/")];
            return (2, body.concat());
        }
        let status = failed.filter(|(failed, _)| {
            unit.starts_with(&failed.replace('-', "_2d").replace('.', "_2e"))
        });
        let status = status.map(|(_, status)| status);
        let value = match (interface.rsplit('.').next().unwrap(), name.as_str()) {
            ("Unit", "ActiveState") if status.is_some() => "failed",
            ("Unit", "ActiveState") => "inactive",
            ("Service", "Result") if status.is_some() => "exit-code",
            ("Service", "Result") => "success",
            ("Service", "ExecMainStatus") => {
                let status = status.unwrap_or_default().to_le_bytes();
                return (2, [&[1, b'i', 0, 0], &status[..]].concat());
            }
            _ => panic!("{interface} has no {name} here"),
        };
        (2, [&[1, b's', 0, 0], &text(value)[..]].concat())
    }

    /// Runs a unit to its end.
    fn start(&self, unit: &str, body: &[u8]) {
        let (output, _) = text_at(body, after(body, "StandardOutputFileToAppend\0\u{1}s\0"));
        let mut at = after(body, "ExecStart\0\u{7}a(sasb)\0").next_multiple_of(4) + 4;
        at = text_at(body, at.next_multiple_of(8)).1.next_multiple_of(4);
        let end = at + 4 + number(&body[at..]);
        at += 4;
        let mut words = Vec::new();
        while at < end {
            let (word, next) = text_at(body, at);
            words.push(word);
            at = next;
        }
        let (status, output_text) = (self.runs)(unit, &words);
        fs::write(self.root.join(output.trim_start_matches('/')), output_text).unwrap();
        *self.failed.lock().unwrap() = (status != 0).then(|| (unit.to_owned(), status));
    }
}

fn number(bytes: &[u8]) -> usize {
    u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize
}

/// The text at an offset after its alignment, and the offset after it.
fn text_at(body: &[u8], at: usize) -> (String, usize) {
    let start = at.next_multiple_of(4) + 4;
    let end = start + number(&body[start - 4..]);
    let text = String::from_utf8(body[start..end].to_vec()).unwrap();
    (text, end + 1)
}

/// The offset after these bytes.
fn after(body: &[u8], what: &str) -> usize {
    let what = what.as_bytes();
    body.windows(what.len())
        .position(|bytes| bytes == what)
        .expect("the property is set")
        + what.len()
}

fn text(text: &str) -> Vec<u8> {
    let size = u32::try_from(text.len()).unwrap().to_le_bytes();
    [&size[..], text.as_bytes(), &[0]].concat()
}
