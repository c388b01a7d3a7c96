//! A backend that accepts no connection and whose queue of connections is full.

use std::os::unix::net::UnixListener;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tonic::Code;

use crate::support::{Rig, Sim};

#[tokio::test]
async fn a_backend_with_a_full_connection_queue_is_down_with_that_cause() {
    let mut crowd = Vec::new();
    let mut full = None;
    let rig = Rig::with_config([Sim::new("runc")], |directory| {
        let socket = format!("{directory}/full.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let address = SocketAddrUnix::new(&*socket).unwrap();
        loop {
            let (kind, flags) = (SocketType::STREAM, SocketFlags::NONBLOCK);
            let client = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
            match rustix::net::connect(&client, &address) {
                Ok(()) => crowd.push(client),
                Err(error) => break assert_eq!(error, Errno::AGAIN),
            }
        }
        full = Some(listener);
        format!(
            "default_handler = 'runc'\n[handlers]\nrunc = '{directory}/runc.sock'\nfull = '{socket}'"
        )
    }).await;
    let rejected = rig.try_run("full", "web").await.unwrap_err();
    assert_eq!(rejected.code(), Code::Unavailable);
    assert!(
        rejected
            .message()
            .contains("queue of waiting connections is full"),
        "{rejected}"
    );
    rig.run_pod("runc", "web").await;
}
