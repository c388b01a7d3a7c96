//! `criswitch check --node` on units that are masked, linked or written for another service manager, and on programs
//! that start no kubelet.

use std::os::unix::fs::symlink;

use crate::machine::Machine;
use crate::node_layouts::machine;

const TABLE: &str =
    "default_handler = 'runc'\n[handlers]\nrunc = '/run/containerd/containerd.sock'";
/// A kubelet with criswitch in its configuration.
const KUBELET: &str = "
>>> /usr/lib/systemd/system/kubelet.service
[Service]
EnvironmentFile=-/etc/default/kubelet
ExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml $KUBELET_EXTRA_ARGS
>>> /var/lib/kubelet/config.yaml
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/criswitch/criswitch.sock
";
const CRIO: &str =
    "the kubelet's container runtime endpoint is unix:///run/crio.sock, not criswitch";

/// Checks the problem that the output shows. An empty text means that the output must show no problem.
#[track_caller]
fn says(machine: &Machine, problem: &str) {
    let outcome = machine.check(TABLE, &[]);
    assert!(outcome.stdout.contains(problem), "{}", outcome.stdout);
    assert_eq!(
        outcome.code,
        i32::from(!problem.is_empty()),
        "{}",
        outcome.stdout
    );
}

#[test]
fn a_quoted_value_of_an_environment_file_may_have_line_breaks() {
    for (value, problem) in [
        (
            "\"--v=2\n--container-runtime-endpoint=unix:///run/crio.sock\"",
            CRIO,
        ),
        (
            "'--v=2\n  --container-runtime-endpoint=unix:///run/crio.sock\n'",
            CRIO,
        ),
        (
            "\"--v=2\"\n--container-runtime-endpoint=unix:///run/crio.sock",
            "",
        ),
        (
            "\n# A=\"\nKUBELET_EXTRA_ARGS=\n#\"--container-runtime-endpoint=unix:///run/crio.sock\"",
            "",
        ),
    ] {
        let file = format!("{KUBELET}>>> /etc/default/kubelet\nKUBELET_EXTRA_ARGS={value}\n");
        says(&machine(&file), problem);
    }
}

#[test]
fn a_unit_that_systemd_does_not_start_is_unknown() {
    says(&machine(KUBELET), "");
    let problem = "kubelet.service: unknown: this unit is masked or has no ExecStart=";
    // The target of the link, /dev/null, exists on a node, but not in every image.
    for masked in [machine(KUBELET), machine(KUBELET).with_socket("/dev/null")] {
        let unit = masked.at("/etc/systemd/system/kubelet.service");
        symlink("/dev/null", unit).unwrap();
        says(&masked, problem);
    }
    let drop_in = ">>> /etc/systemd/system/kubelet.service.d/a.conf\n[Service]\nExecStart=\n";
    says(&machine(&format!("{KUBELET}{drop_in}")), problem);
    let k3s = ">>> /etc/systemd/system/k3s.service\n[Service]\nExecStart=/usr/local/bin/k3s server \
               --container-runtime-endpoint=/run/criswitch/criswitch.sock\n";
    let masked = machine(&format!("{KUBELET}{k3s}"));
    symlink(
        "/dev/null",
        masked.at("/etc/systemd/system/kubelet.service"),
    )
    .unwrap();
    says(&masked, "");
}

#[test]
fn a_second_command_without_an_empty_one_before_it_is_a_problem() {
    let drop_in = |text: &str| {
        machine(&format!(
            "{KUBELET}>>> /etc/systemd/system/kubelet.service.d/a.conf\n[Service]\n{text}ExecStart=/usr/bin/kubelet \
             --config=/var/lib/kubelet/config.yaml\n"
        ))
    };
    says(
        &drop_in(""),
        "/etc/systemd/system/kubelet.service.d/a.conf: kubelet.service has more than one ExecStart=, so systemd does not \
         start it; try an empty ExecStart= before this one",
    );
    says(&drop_in("ExecStart=\n"), "");
    says(&drop_in("Type=oneshot\n"), "");
}

#[test]
fn a_line_outside_the_section_of_its_unit_does_not_count_and_is_reported() {
    let line =
        "Environment=KUBELET_EXTRA_ARGS=--container-runtime-endpoint=unix:///run/crio.sock\n";
    for (header, cause) in [
        (
            "",
            "in line 1: it is in no section; try moving it below [Service]",
        ),
        ("[Servce]\n", "in line 2: it is in section [Servce]; try"),
        (
            "[X-Service]\n",
            "in line 2: it is in section [X-Service]; try",
        ),
        ("[Unit]\n", "in line 2: it is in section [Unit]; try"),
    ] {
        let drop_in = format!(">>> /etc/systemd/system/kubelet.service.d/a.conf\n{header}{line}");
        let problem = format!(
            "/etc/systemd/system/kubelet.service.d/a.conf: systemd ignores Environment= {cause}"
        );
        says(&machine(&format!("{KUBELET}{drop_in}")), &problem);
    }
    let unread = format!(">>> /etc/systemd/system/kubelet.service.d/a.conf\n[Service] # c\n{line}");
    says(
        &machine(&format!("{KUBELET}{unread}")),
        "/etc/systemd/system/kubelet.service.d/a.conf: systemd reads nothing from line 1 on: its header does not end with \
         ]; try [Service] alone on the line",
    );
    // The lines before such a header count, the lines after it do not, even below a further header.
    let (before, after) = (
        ">>> /etc/systemd/system/kubelet.service.d/a.conf\n[Service]\n",
        "[Unit] #\n[Service]\n",
    );
    let outcome = machine(&format!(
        "{KUBELET}{before}{line}{after}Environment=KUBELET_EXTRA_ARGS=\n"
    ));
    let outcome = outcome.check(TABLE, &[]);
    for problem in [CRIO, "from line 3 on"] {
        assert!(outcome.stdout.contains(problem), "{}", outcome.stdout);
    }
    // A second `[Service]` header continues the first `[Service]` section.
    let drop_in =
        ">>> /etc/systemd/system/kubelet.service.d/a.conf\n[Unit]\nAfter=a.service\n[Service]\n";
    says(&machine(&format!("{KUBELET}{drop_in}{line}")), CRIO);
}

#[test]
fn a_line_that_systemd_ignores_in_the_section_of_its_unit_is_reported() {
    for (line, problem) in [
        (
            "Enviroment=A=b",
            "systemd ignores Enviroment= in line 2: it is not a known key; try Environment=",
        ),
        (
            "environment=A=b",
            "systemd ignores environment= in line 2: it is not a known key; try Environment=",
        ),
        (
            "ExecStart /usr/bin/kubelet",
            "systemd ignores line 2: it has no =; try KEY=VALUE",
        ),
        (
            "  --container-runtime-endpoint=unix:///run/crio.sock",
            "systemd ignores --container-runtime-endpoint= in line 2: it is not a known key; try a \\ at the end of the line before",
        ),
        ("Restart always\nEnvironment=A=b c", ""),
        (
            "Environment=A=--a --container-runtime-endpoint=unix:///run/crio.sock",
            "systemd ignores word 2 of Environment=: it is not NAME=VALUE; try quotes around the whole NAME=VALUE",
        ),
        (
            "ExecStop=/bin/true\nExecStartPre=/bin/true\nStateDirectory=kubelet",
            "",
        ),
        ("[Unit]\nAfter a.service\nDescripton=x", ""),
    ] {
        let path = "/etc/systemd/system/kubelet.service.d/a.conf";
        let drop_in = format!(">>> {path}\n[Service]\n{line}\n");
        let problem = match problem {
            "" => String::new(),
            problem => format!("{path}: {problem}"),
        };
        says(&machine(&format!("{KUBELET}{drop_in}")), &problem);
    }
}

#[test]
fn links_of_a_mounted_image_lead_to_files_of_the_image() {
    let linked = machine(KUBELET).with("/opt/a.conf", "[Service]\nEnvironment=KUBELET_EXTRA_ARGS=--container-runtime-endpoint=unix:///run/crio.sock\n");
    let drop_in = linked.at("/etc/systemd/system/kubelet.service.d/a.conf");
    symlink("/opt/link/a.conf", drop_in).unwrap();
    symlink("../opt", linked.at("/opt/link")).unwrap();
    says(&linked, CRIO);
    let config = machine(KUBELET).without("/var/lib/kubelet/config.yaml");
    let config = config.with(
        "/etc/kubelet.yaml",
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix:///run/crio.sock\n",
    );
    symlink(
        "/etc/kubelet.yaml",
        config.at("/var/lib/kubelet/config.yaml"),
    )
    .unwrap();
    says(&config, CRIO);
    let round = machine(KUBELET).without("/var/lib/kubelet/config.yaml");
    symlink(
        "/var/lib/kubelet/config.yaml",
        round.at("/var/lib/kubelet/config.yaml"),
    )
    .unwrap();
    says(&round, "/var/lib/kubelet/config.yaml: ");
}

#[test]
fn the_text_after_a_closing_quote_and_the_drop_ins_of_a_prefix_count() {
    let value = "\"--v=2 \"--container-runtime-endpoint=unix:///run/crio.sock";
    let file = format!("{KUBELET}>>> /etc/default/kubelet\nKUBELET_EXTRA_ARGS={value}\n");
    says(&machine(&file), CRIO);
    let unit = "
>>> /usr/lib/systemd/system/k3s-agent.service
[Service]
ExecStart=/usr/local/bin/k3s agent --container-runtime-endpoint=unix:///run/criswitch/criswitch.sock
";
    says(&machine(unit), "");
    let drop_in = "
>>> /etc/systemd/system/k3s-.service.d/10-x.conf
[Service]
ExecStart=
ExecStart=/usr/local/bin/k3s agent --container-runtime-endpoint=unix:///run/crio.sock
";
    let changed = machine(&format!("{unit}{drop_in}"));
    let outcome = changed.check(TABLE, &[]);
    assert!(
        outcome.stdout.contains("/run/crio.sock, not criswitch"),
        "{}",
        outcome.stdout
    );
}

#[test]
fn a_flag_with_one_dash_is_not_a_flag_of_the_kubelet_and_is_a_problem() {
    for (flag, problem) in [
        (
            "-container-runtime-endpoint=unix:///run/crio.sock",
            "the kubelet does not start with the flag -container-runtime-endpoint, which has only one dash; try \
             --container-runtime-endpoint",
        ),
        ("-v=2 --oom-score-adj -999", ""),
    ] {
        says(
            &machine(&KUBELET.replace("$KUBELET_EXTRA_ARGS", flag)),
            problem,
        );
    }
}

#[test]
fn a_flag_that_needs_a_value_takes_a_word_that_looks_like_a_flag() {
    let flag = "--container-runtime-endpoint=unix:///run/crio.sock";
    for (before, problem) in [
        ("--node-ip", ""),
        ("-v", ""),
        ("--node-ip=", CRIO),
        ("--node-ip $NODE_IP", ""),
        ("--node-ip ${NODE_IP}", CRIO),
        ("--fail-swap-on", CRIO),
        ("--v 2", CRIO),
        ("--", ""),
    ] {
        let file = KUBELET.replace("$KUBELET_EXTRA_ARGS", &format!("{before} {flag}"));
        says(&machine(&file), problem);
    }
}

#[test]
fn a_command_with_a_colon_before_it_has_no_variables() {
    let file = KUBELET.replace(
        "/usr/bin/kubelet --config",
        "-:/usr/bin/kubelet $A --config",
    );
    let set = "Environment=A=--container-runtime-endpoint=unix:///run/crio.sock\nExecStart=";
    says(&machine(&file.replace("ExecStart=", set)), "");
    let plain = file.replace("-:/usr", "-/usr").replace("ExecStart=", set);
    says(&machine(&plain), CRIO);
}

#[test]
fn a_variable_that_systemd_passes_on_is_unknown() {
    let unit = |line: &str| machine(&KUBELET.replace("ExecStart=", &format!("{line}\nExecStart=")));
    let problem =
        "kubelet.service: unknown: the value of KUBELET_EXTRA_ARGS is unknown: PassEnvironment=";
    let pass = "PassEnvironment=HTTP_PROXY KUBELET_EXTRA_ARGS";
    says(&unit(pass), problem);
    for more in [
        "Environment=KUBELET_EXTRA_ARGS=--v=2",
        "UnsetEnvironment=KUBELET_EXTRA_ARGS",
        "PassEnvironment=",
    ] {
        says(&unit(&format!("{pass}\n{more}")), "");
    }
    says(&unit("PassEnvironment=HTTP_PROXY"), "");
    let quoted = KUBELET.replace("$KUBELET_EXTRA_ARGS", "\"$KUBELET_EXTRA_ARGS\"");
    says(
        &machine(&quoted.replace("ExecStart=", &format!("{pass}\nExecStart="))),
        problem,
    );
    let kept = format!("{pass}\nExecStart=:");
    says(&machine(&KUBELET.replace("ExecStart=", &kept)), "");
}

#[test]
fn an_empty_configuration_of_crictl_is_a_problem() {
    let file = format!("{KUBELET}>>> /etc/crictl.yaml\n");
    says(
        &machine(&file),
        "/etc/crictl.yaml: crictl has no runtime-endpoint",
    );
}

#[test]
fn a_script_of_another_service_manager_is_unknown() {
    let config = ">>> /var/lib/kubelet/config.yaml\napiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix:///run/criswitch/criswitch.sock\n";
    says(&machine(config), "none says how the kubelet starts");
    let k3s = ">>> /etc/rancher/k3s/config.yaml\ncontainer-runtime-endpoint: unix:///run/criswitch/criswitch.sock\n";
    says(&machine(k3s), "");
    for (files, script) in [
        (config, "/etc/init.d/kubelet"),
        (k3s, "/etc/init.d/k3s-agent"),
    ] {
        let machine = machine(files).with(script, "#!/sbin/openrc-run\n");
        let problem = format!(
            "{script}: unknown: this script starts the kubelet, and its flags cannot be read"
        );
        says(&machine, &problem);
    }
}

#[test]
fn a_program_that_starts_no_kubelet_or_has_flags_of_its_own_is_not_read_as_a_kubelet() {
    let unit = |name: &str, command: &str| {
        let unit = format!("[Service]\nExecStart=/usr/local/bin/{command}\n");
        Machine::bare().with(&format!("/etc/systemd/system/{name}.service"), &unit)
    };
    let worker = "k0s controller --enable-worker --config=/etc/k0s/k0s.yaml";
    for (name, command, problem) in [
        (
            "k0scontroller",
            "k0s controller --config=/etc/k0s/k0s.yaml",
            "unknown: looked at ExecStart=",
        ),
        (
            "k3s",
            "k3s server --disable-agent",
            "unknown: looked at ExecStart=",
        ),
        (
            "k0scontroller",
            worker,
            "try --cri-socket=remote:unix:///run/criswitch/criswitch.sock",
        ),
        (
            "kubelet",
            "kubenswrapper /usr/bin/kubelet --container-runtime-endpoint=/run/crio.sock",
            "endpoint is /run/crio.sock, not",
        ),
        (
            "kubelet",
            "kubenswrapper /usr/bin/kubelet --container-runtime-endpoint=/run/criswitch/criswitch.sock",
            "",
        ),
    ] {
        let machine = unit(name, command).with("/etc/k0s/k0s.yaml", "spec: {}\n");
        says(&machine, problem);
    }
}

#[test]
fn a_doubled_percent_sign_begins_no_specifier() {
    let file = "
>>> /usr/lib/systemd/system/kubelet.service
[Service]
ExecStart=/usr/bin/kubelet --config=%S/%p/%%p.yaml
>>> /var/lib/kubelet/%p.yaml
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/crio.sock
";
    says(&machine(file), CRIO);
}

#[test]
fn an_environment_file_that_is_made_at_boot_is_unknown_in_an_image_only() {
    let files = KUBELET.replace("-/etc/default/kubelet", "-/var/run/metadata/kubelet");
    let unknown = "/var/run/metadata/kubelet: unknown: kubelet.service reads this file, which is made at boot";
    says(&machine(&files), unknown);
    let running = machine(&files).running("900", &["/usr/bin/other"]);
    says(&running.with_socket("/run/containerd/containerd.sock"), "");
}

#[test]
fn a_unit_whose_file_is_a_link_has_the_drop_ins_of_the_target() {
    let files = KUBELET.replace("kubelet.service\n", "kube-node.service\n");
    let linked = machine(&files).with(
        "/etc/systemd/system/kube-node.service.d/a.conf",
        "[Service]\nEnvironment=KUBELET_EXTRA_ARGS=--container-runtime-endpoint=unix:///run/crio.sock\n",
    );
    let link = linked.at("/etc/systemd/system/kubelet.service");
    symlink("/usr/lib/systemd/system/kube-node.service", link).unwrap();
    says(&linked, CRIO);
}

#[test]
fn a_link_to_a_file_outside_of_the_directories_of_units_adds_no_drop_ins() {
    let files = KUBELET.replace(
        "/usr/lib/systemd/system/kubelet.service\n",
        "/opt/kube/kube-node.service\n",
    );
    let linked = machine(&files).with(
        "/etc/systemd/system/kube-node.service.d/a.conf",
        "[Service]\nEnvironment=KUBELET_EXTRA_ARGS=--container-runtime-endpoint=unix:///run/crio.sock\n",
    );
    let link = linked.at("/etc/systemd/system/kubelet.service");
    symlink("/opt/kube/kube-node.service", &link).unwrap();
    says(&linked, "");
    // Through a unit of that name, its drop-ins count.
    std::fs::remove_file(&link).unwrap();
    symlink("/usr/lib/systemd/system/kube-node.service", link).unwrap();
    let named = linked.at("/usr/lib/systemd/system/kube-node.service");
    std::fs::create_dir_all(named.parent().unwrap()).unwrap();
    symlink("/opt/kube/kube-node.service", named).unwrap();
    says(&linked, CRIO);
}

#[test]
fn the_variables_that_systemd_gives_to_all_units_count_unless_the_unit_sets_them() {
    let drop_in = "
>>> /etc/systemd/system.conf.d/10-kubelet.conf
[Manager]
DefaultEnvironment=\"KUBELET_EXTRA_ARGS=--container-runtime-endpoint=unix:///run/crio.sock\" A=b
";
    let files = format!("{KUBELET}{drop_in}");
    says(&machine(&files), CRIO);
    let section = files.replace("[Manager]", "[Service]");
    says(
        &machine(&section),
        "/etc/systemd/system.conf.d/10-kubelet.conf: systemd ignores DefaultEnvironment= in line 2: it is in section \
         [Service]; try moving it below [Manager]",
    );
    let own = files.replace(
        "ExecStart=",
        "Environment=KUBELET_EXTRA_ARGS=--v=2\nExecStart=",
    );
    says(&machine(&own), "");
}

#[test]
fn a_relative_path_of_the_configuration_begins_in_the_working_directory() {
    let files = KUBELET.replace("--config=/var/lib/kubelet/", "--config=");
    let unit = |line: &str| machine(&files.replace("ExecStart=", &format!("{line}\nExecStart=")));
    says(&unit("WorkingDirectory=/var/lib/kubelet"), "");
    says(&unit("WorkingDirectory=-/var/lib/kubelet"), "");
    says(
        &unit(""),
        "/config.yaml: unknown: the kubelet's configuration is this file",
    );
    let running = machine(&files)
        .running("900", &["/usr/bin/kubelet", "--config", "config.yaml"])
        .with_socket("/run/containerd/containerd.sock");
    symlink("/var/lib/kubelet", running.at("/proc/900/cwd")).unwrap();
    says(&running, "");
}

#[test]
fn a_unit_with_a_root_directory_of_its_own_is_unknown() {
    for key in ["RootDirectory", "RootImage"] {
        let line = format!("{key}=/opt/kubelet\nExecStart=");
        let files = KUBELET.replace("ExecStart=", &line);
        says(
            &machine(&files),
            "kubelet.service: unknown: this unit gives the kubelet a different root",
        );
    }
}

#[test]
fn a_line_continues_only_after_one_backslash_at_its_very_end() {
    let ignored = "systemd ignores --container-runtime-endpoint= in line 3";
    for (end, problem) in [
        (" \\", CRIO),
        (" \\ ", ignored),
        (" \\\\", ignored),
        (" \\\n# --v=2 \\", CRIO),
    ] {
        let unit = format!(
            "\u{feff}[Service]\nExecStart=/usr/bin/kubelet{end}\n  --container-runtime-endpoint=unix:///run/crio.sock\n"
        );
        let machine = Machine::bare().with("/etc/systemd/system/kubelet.service", &unit);
        says(&machine, problem);
    }
}
