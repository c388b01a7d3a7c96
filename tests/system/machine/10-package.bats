# Installs the package on a new machine. At the next boot, the machine starts criswitch.

load ../runtimes/checks/helpers.bash
load machine.bash

setup_file() {
  import_images
}

@test "the machine has cgroup v2 and the systemd cgroup driver" {
  equal "file system of the cgroups" cgroup2fs "$(stat --file-system --format %T /sys/fs/cgroup)"
  for n in 1 2; do
    has "configuration of containerd $n" '"SystemdCgroup":true' "$(crictl_at "$n" info | jq -c .config)"
  done
  show "Linux $(uname -r), $(systemctl --version | head -n 1), $(containerd --version), $(runc --version | head -n 1)," \
    "$(crun --version | head -n 1)"
}

@test "the package installs, and starts nothing" {
  dpkg --install /share/criswitch.deb
  for unit in criswitch.socket criswitch.service; do
    [ "$(systemctl is-active "$unit")" = inactive ] || fail "$unit is active"
    [ "$(systemctl is-enabled "$unit")" = disabled ] || fail "$unit is enabled"
  done
}

@test "the configuration is valid, and both runtimes answer" {
  configuration >/etc/criswitch/criswitch.toml
  ln -sf /etc/criswitch/criswitch.toml "$DIR"
  criswitch check --probe
  systemctl enable criswitch.service
  [ "$(systemctl is-enabled criswitch.socket)" = enabled ] || fail "the socket is not enabled"
}

# The service waits for the client, so that the client always comes first.
@test "a client will connect at boot before the service starts" {
  mkdir -p /etc/systemd/system/criswitch.service.d
  cat >/etc/systemd/system/criswitch.service.d/test.conf <<'UNIT'
[Service]
ExecStartPre=+/bin/sh -c 'until [ "$(grep -c criswitch.sock /proc/1/net/unix)" -ge 2 ]; do sleep 0.1; done'
UNIT
  cat >/etc/systemd/system/early.service <<UNIT
[Unit]
After=criswitch.socket containerd@1.service containerd@2.service
Before=criswitch.service
[Service]
Type=exec
ExecStart=/bin/sh -c 'crictl --config $DIR/crictl-criswitch.yaml pods -o json >/run/early'
[Install]
WantedBy=multi-user.target
UNIT
  systemctl enable early.service
}
