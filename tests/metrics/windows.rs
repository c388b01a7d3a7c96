//! The figures of the process on Windows.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::page::{Page, rig};
use crate::support::Sim;

#[tokio::test]
async fn the_page_has_the_figures_of_the_process() {
    let rig = rig("", [Sim::new("runc")]).await;
    let page = Page::of(&rig).await;
    let value = |name| page.value(name, &[]);
    let resident = value("process_resident_memory_bytes");
    assert!((1e6..1e10).contains(&resident), "{resident}");
    assert!(value("process_cpu_seconds_total") > 0.0);
    // Wine counts neither handles nor the private memory.
    assert!(value("process_open_fds") <= value("process_max_fds"));
    assert!(value("process_virtual_memory_bytes") >= 0.0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let age = now.as_secs_f64() - value("process_start_time_seconds");
    assert!((-2.0..3600.0).contains(&age), "{age}");
}
