# shellcheck shell=bash
# The mounted image of a node.

# make_image FOLDER: makes the image of a node with a kubelet that uses containerd.
make_image() {
  mkdir -p "$1"/{usr/lib/systemd,etc/systemd/system,var/lib/kubelet}
  : >"$1/usr/lib/systemd/systemd"
  printf '[Service]\nExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml\n' \
    >"$1/etc/systemd/system/kubelet.service"
  printf '%s\n' 'apiVersion: kubelet.config.k8s.io/v1beta1' 'kind: KubeletConfiguration' 'cgroupDriver: systemd' \
    'containerRuntimeEndpoint: unix:///run/containerd/containerd.sock' >"$1/var/lib/kubelet/config.yaml"
}

# specification ACCEPTED: prints a specification for the image that accepts these findings.
specification() {
  printf '%s\n' "default_handler = 'runc'" '[handlers]' "runc = '/run/containerd/containerd.sock'" '[node]' "accept = [$1]"
}

# The findings that an image always has, because no process runs there.
# shellcheck disable=SC2034 # The scripts use it.
OF_IMAGE="'backend', 'cgroup-driver', 'kubelet-version'"
