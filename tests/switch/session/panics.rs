//! A panic in criswitch must not disconnect a backend permanently.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use criswitch::backend::connect::Dialer;
use criswitch::keep_connected;
use criswitch::switch::Switch;
use criswitch_config::Config;
use criswitch_config::address::Address;

use crate::logged::Logged;
use crate::support::sockets;
use crate::wait;

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_task_of_a_backend_is_logged_and_the_task_is_restarted() {
    let logged = Logged::here();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("criswitch.toml");
    let nowhere = sockets::text(Path::new("/nowhere"));
    std::fs::write(
        &path,
        format!("default_handler = 'a'\n[handlers]\na = '{nowhere}/a.sock'"),
    )
    .unwrap();
    let dialled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&dialled);
    let dial = move |_: &Address| {
        assert!(count.fetch_add(1, Ordering::Relaxed) > 0, "a test's panic");
        Err(std::io::ErrorKind::ConnectionRefused.into())
    };
    let config = Config::load(&path).unwrap();
    let switch = Arc::new(Switch::new(config, &Dialer::Memory(Arc::new(dial))));
    let _connected = keep_connected(&switch);
    wait::until(async || {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        dialled.load(Ordering::Relaxed) > 1
    })
    .await;
    assert_eq!(logged.lines(&["ERROR", "panicked", "backend=a"]).len(), 1);
}
