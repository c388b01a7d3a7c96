# A node with a kubelet gets criswitch and loses it again.

load ../runtimes/checks/helpers.bash
load machine.bash
load node.bash

setup_file() {
  import_images
  dpkg-deb --fsys-tarfile /share/criswitch.deb | tar -xC /root --strip-components 3 ./usr/bin
  { configuration && printf '%s\n' '[node]' 'kubelet_timeout = "5m"' 'try = "off"' \
    'accept = ["kubelet-version"]'; } >/root/spec.toml
  systemctl enable --now kubelet.service
  wait_for 600 "the pods of the kubelet" pods_run
  wait_for 120 "a plan that rejects nothing" would_change
}

@test "an installation and its end leave every file as before" {
  show "the kubelet's pods run $(cut -d . -f 1 /proc/uptime) s after the start of the kernel"
  files_of_node | keep_as before
  seconds_of apply --spec /root/spec.toml
  node status --ready
  files_of_node | keep_as after
  seconds_of uninstall
  same "the files" "$(kept before)" "$(files_of_node)"
  show "an installation took $(cat /share/seconds-apply) s, and its end $(cat /share/seconds-uninstall) s"
}

@test "an installation keeps every container" {
  local containers
  containers=$(crictl_at 1 ps -q | sort)
  wait_for 120 "a plan that rejects nothing" would_change
  node apply --spec /root/spec.toml
  node status --ready
  equal "containers" "$containers" "$(cri ps -q | sort)"
}
