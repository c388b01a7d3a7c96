//! The simplest proxy: it copies bytes between two sockets.

use std::path::Path;

use tokio::net::{UnixListener, UnixStream};

pub async fn serve(socket: &Path, backend: &Path) {
    let listener = UnixListener::bind(socket).unwrap();
    loop {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut backend = UnixStream::connect(backend).await.unwrap();
        tokio::spawn(async move {
            tokio::io::copy_bidirectional(&mut client, &mut backend)
                .await
                .ok();
        });
    }
}
