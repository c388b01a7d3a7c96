//! criswitch restarts under load. The test holds the socket, as systemd does, so no client may notice the restarts.
// No other crate can reach these items, and a panic is a failed test.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::panic, clippy::indexing_slicing, clippy::print_stderr)]

mod holder;
mod load;

use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use criswitch_testing::{self as support, Client, PATIENCE};
use holder::Holder;
use load::Load;
use tokio::task::JoinHandle;

/// The number of restarts for clients in the test's own process.
const FEW: usize = 20;
/// The number of restarts in the test with two kinds of clients, tonic and crictl's client library: in an ordinary run,
/// and in a nightly run.
const MANY: [usize; 2] = [60, 200];
/// The number of calls of tonic's client before each SIGTERM.
const A_LIFE: u64 = 50;
/// The time limit of all restarts together, without builds.
const LIMIT: Duration = Duration::from_secs(300);

#[tokio::test]
async fn no_call_fails_while_criswitch_stops_and_starts() {
    let mut holder = Holder::new().await;
    let load = Load::start(&holder);
    restart(&mut holder, &load, FEW, 1).await;
    let (calls, unsent) = load.end().await;
    eprintln!("{FEW} restarts, {calls} calls, {unsent} handed back unsent by hyper's client");
    holder.has_only_its_own();
}

#[tokio::test]
async fn a_call_made_while_criswitch_is_stopped_waits_for_the_next_start() {
    let mut holder = Holder::new().await;
    holder.signal("TERM");
    holder.ended().await;
    let client = Client::new(&holder.socket);
    let mut call = std::pin::pin!(client.pods());
    // This timeout lets the client send the call. criswitch is stopped, so the call still waits after 100 ms.
    let waited = tokio::time::timeout(Duration::from_millis(100), &mut call).await;
    assert!(waited.is_err());
    holder.start();
    let pods = tokio::time::timeout(PATIENCE, call).await.unwrap().unwrap();
    assert_eq!(pods.len(), holder.pods.len());
}

/// Needs the client that tests/system/restart/run.sh builds.
#[tokio::test]
#[ignore = "tests/system/restart/run.sh builds the other client and runs it"]
async fn no_call_of_two_kinds_of_clients_fails_in_many_restarts() {
    let many = MANY[usize::from(std::env::var_os("CRISWITCH_NIGHTLY").is_some())];
    let mut holder = Holder::new().await;
    let (other_goes_on, other) = other_client(&holder);
    let load = Load::start(&holder);
    let begun = Instant::now();
    let restarted = tokio::time::timeout(LIMIT, restart(&mut holder, &load, many, 2)).await;
    restarted.expect("the restarts take too long");
    let took = begun.elapsed();
    let (calls, unsent) = load.end().await;
    drop(other_goes_on);
    let said = other.await.unwrap();
    eprintln!("{many} restarts in {took:.1?}, no call failed");
    eprintln!(
        "tonic: calls {calls}, {unsent} of them at first handed back unsent by hyper's client"
    );
    eprintln!("crictl's client library: {}", said.trim());
    holder.has_only_its_own();
}

/// Restarts criswitch `times` times. At least `held` calls are in flight in each shutdown.
async fn restart(holder: &mut Holder, load: &Load, times: usize, held: usize) {
    for _ in 0..times {
        load.calls(A_LIFE).await;
        holder.runtime.hold("ExecSync");
        let in_flight = |journal: &support::Journal| {
            let exec = journal.held.iter().filter(|rpc| *rpc == "ExecSync");
            exec.count() >= held
        };
        holder.runtime.until(in_flight).await;
        holder.signal("TERM");
        holder.until_it_says("shutting down").await;
        holder.runtime.release("ExecSync");
        holder.ended().await;
        holder.start();
        holder.runtime.forget_calls();
    }
}

/// Starts the same load with crictl's client library, in another process. Closing the pipe ends the load, and the task
/// returns the output of the process.
fn other_client(holder: &Holder) -> (ChildStdin, JoinHandle<String>) {
    let program = std::env::var("RESTARTS_CLIENT").expect("RESTARTS_CLIENT names the client");
    let mut client = Command::new(program);
    client.arg(&holder.socket);
    client.args([holder.pods.join(","), holder.containers.join(",")]);
    client.stdin(Stdio::piped());
    client.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut client = client.spawn().unwrap();
    let goes_on = client.stdin.take().unwrap();
    let said = tokio::task::spawn_blocking(move || {
        let output = client.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}{complaints}");
        said.into_owned()
    });
    (goes_on, said)
}
