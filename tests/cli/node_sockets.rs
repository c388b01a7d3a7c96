//! The socket units that `criswitch node apply` writes.

use std::fs;
use std::path::Path;

use crate::node_apply::{SPEC, apply_spec, apply_with, image, state, succeeds};

#[test]
fn an_address_of_the_metrics_installs_their_socket_until_the_undo() {
    const UNIT: &str = "/etc/systemd/system/criswitch-metrics.socket";
    const LINK: &str = "/etc/systemd/system/criswitch.service.wants/criswitch-metrics.socket";
    let machine = image();
    succeeds(&machine, "apply");
    let first = state(machine.root(), false);
    assert!(!machine.at(UNIT).exists());
    for address in ["0.0.0.0:9199", "[::1]:9200"] {
        apply_with(&machine, &format!("[metrics]\nlisten = '{address}'\n"));
        let unit = fs::read_to_string(machine.at(UNIT)).unwrap();
        assert!(
            unit.contains(&format!("\nListenStream={address}\n")),
            "{unit}"
        );
        let target = fs::read_link(machine.at(LINK)).unwrap();
        assert_eq!(target, Path::new("../criswitch-metrics.socket"));
    }
    succeeds(&machine, "undo");
    succeeds(&machine, "undo");
    assert_eq!(state(machine.root(), false), first);
    assert!(!machine.at(UNIT).exists());
}

#[test]
fn systemd_listens_at_a_path_with_a_percent_sign() {
    let machine = image();
    let spec = format!("listen = '/run/criswitch/%n.sock'\n{SPEC}");
    apply_spec(&machine, &spec);
    let unit = fs::read_to_string(machine.at("/etc/systemd/system/criswitch.socket")).unwrap();
    let line = "\nListenStream=/run/criswitch/%%n.sock\n";
    assert!(unit.contains(line), "{unit}");
    apply_spec(&machine, &spec);
}
