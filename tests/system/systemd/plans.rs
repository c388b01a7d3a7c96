//! `criswitch node plan` beside a real systemd, with a program that only has the name of a kubelet.

use std::fs;
use std::time::{Duration, SystemTime};

use crate::machine::{Machine, until};
use crate::support::write_program;

const UNIT: &str = "etc/systemd/system/kubelet.service";

/// The findings of a plan, by the names of their checks, without those about the test's own installation.
fn findings(machine: &Machine) -> Vec<String> {
    let output = machine
        .command("criswitch", &["node", "plan", "--json"])
        .output()
        .unwrap();
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let steps: Vec<_> = shown["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step["step"].as_str().unwrap())
        .collect();
    assert!(
        steps.ends_with(&["endpoint", "restart", "verify"]),
        "{shown:#}"
    );
    let found = shown["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["check"].as_str().unwrap().to_owned());
    let is_of_kubelet = |name: &String| name == "daemon-reload" || name.starts_with("kubelet-");
    found.filter(is_of_kubelet).collect()
}

#[tokio::test]
#[ignore = "needs root and systemd: tests/system/systemd/run.sh"]
async fn a_plan_names_the_changes_of_the_kubelet_that_systemd_and_the_kernel_show() {
    let machine = Machine::boot().await;
    fs::create_dir(machine.at("opt")).ok();
    write_program(
        &machine.at("opt/kubelet"),
        fs::read("/usr/bin/sleep").unwrap(),
    );
    let unit = "[Service]\nType=exec\nExecStart=/opt/kubelet 1000000\n";
    fs::write(machine.at(UNIT), unit).unwrap();
    machine.systemctl(&["daemon-reload"]);
    machine.systemctl(&["restart", "kubelet"]);
    until(async || machine.show("kubelet", "MainPID") != "0").await;
    // The program is a copy of sleep, whose output has no kubelet version.
    let quiet = ["kubelet-version"];
    assert_eq!(findings(&machine), quiet);
    fs::write(machine.at(UNIT), unit.replace("10", "20")).unwrap();
    // The start time of a process is known only to the second, so the file's time must be clearly later.
    let later = SystemTime::now() + Duration::from_secs(2);
    let unit = fs::File::options().append(true).open(machine.at(UNIT));
    unit.unwrap().set_modified(later).unwrap();
    fs::remove_file(machine.at("opt/kubelet")).unwrap();
    let all = [
        "kubelet-version",
        "kubelet-program",
        "kubelet-files",
        "kubelet-flags",
        "daemon-reload",
    ];
    assert_eq!(findings(&machine), all);
}
