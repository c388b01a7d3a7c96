# shellcheck shell=bash
# The disk of the machine: Debian with its own kernel and systemd, two containerds with the systemd cgroup driver on
# cgroup v2, crictl and a kubelet. It has no file of criswitch.

RELEASE=bookworm
# linux-image-amd64, because the kernel for clouds lacks 9p.
GUEST_PACKAGES=systemd-sysv,udev,dbus,linux-image-amd64,kmod,iproute2,iptables,procps,jq,curl,bats
GUEST_PACKAGES+=,containerd,runc,crun,containernetworking-plugins

# build_image: makes the disk, the kernel and the initrd, and sets IMAGE, the folder that holds them.
build_image() {
  local key root
  # shellcheck disable=SC2153 # build_images has set IMAGES.
  key=$({
    cat "$MACHINE/image.bash" "$TESTS/node/containerd@.service" "$REAL"/config/{containerd-1.6.toml,cni.conflist,crictl.yaml}
    cat "$REAL"/config/{kubelet.yaml,static-pod.yaml} && echo "$IMAGES $(program crictl) $(program kubelet)"
  } | sha256sum | cut -c1-16)
  IMAGE=$CACHE/machine/$key
  [ ! -e "$IMAGE/.done" ] || return 0
  say "making the disk, about 3 minutes"
  rm -rf "$IMAGE" && mkdir -p "$IMAGE" && root=$IMAGE/root || return
  mmdebstrap --quiet --mode=root --variant=minbase --include="$GUEST_PACKAGES" "$RELEASE" "$root" \
    >"$IMAGE/log" 2>&1 || { tail -n 20 "$IMAGE/log" >&2; return 1; }
  (cd "$root" && fill_disk) && cp "$root"/boot/vmlinuz-* "$IMAGE/kernel" && cp "$root"/boot/initrd.img-* "$IMAGE/initrd" &&
    mke2fs -q -t ext4 -d "$root" "$IMAGE/disk" 4G >>"$IMAGE/log" 2>&1 && rm -rf --one-file-system "$root" && touch "$IMAGE/.done"
}

# program NAME: prints the path of a program of the partners.
program() {
  PATH=$PARTNERS_PATH:$PATH command -v "$1"
}

# fill_disk: adds files to the working directory, the root of the disk.
fill_disk() {
  local n image
  echo machine >etc/hostname
  echo "127.0.0.1 localhost machine" >etc/hosts
  printf '/dev/vda / ext4 defaults 0 1\nshare /share 9p trans=virtio,version=9p2000.L,msize=262144 0 0\n' >etc/fstab
  # The name of the directory is the cgroup parent of the pods, as the systemd cgroup driver wants it.
  mkdir -p share var/lib/suite.slice opt/images etc/containerd etc/kubernetes/manifests var/lib/kubelet var/log/pods
  printf '[Match]\nName=en*\n[Network]\nDHCP=ipv4\n' >etc/systemd/network/10-machine.network
  cp "$(program crictl)" "$(program kubelet)" usr/bin/ || return
  for image in pause busybox; do
    skopeo copy -q "oci:$IMAGES/$image:1" "docker-archive:opt/images/$image.tar:registry.test/$image:1" || return
  done
  cp "$TESTS/node/containerd@.service" etc/systemd/system/
  for n in 1 2; do
    add_containerd "$n"
  done
  DIR=/run render crictl.yaml var/lib/suite.slice/crictl-criswitch.yaml SOCKET=/run/criswitch/criswitch.sock
  add_kubelet
  # The checks start when the machine has booted as far as its units let it.
  printf '[Unit]\nRequiresMountsFor=/share\n[Service]\nExecStart=/bin/bash /share/machine/guest.bash\n%s\n' \
    $'StandardOutput=append:/share/log\nStandardError=append:/share/log\n[Install]\nWantedBy=multi-user.target' \
    >etc/systemd/system/checks.service
  systemctl --quiet --root=. enable systemd-networkd checks containerd@1 containerd@2
  systemctl --quiet --root=. mask containerd apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer
}

# add_containerd N: adds a containerd with the cgroup driver systemd.
add_containerd() {
  local n=$1
  mkdir "etc/containerd/cni-$n"
  DIR=/run render containerd-1.6.toml "etc/containerd/$n.toml" "N=$n"
  sed -i "s|/run/cni-|/etc/containerd/cni-|; s|^root = .*|root = \"/var/lib/containerd-$n\"|
    s|SystemdCgroup = false|SystemdCgroup = true|; s|^restrict_oom_score_adj = .*||; s|restrict_oom_score_adj = true||" \
    "etc/containerd/$n.toml"
  DIR=/var/lib render cni.conflist "etc/containerd/cni-$n/10-bridge.conflist" "BRIDGE=cni$n" "SUBNET=10.22.$n.0/24"
  echo PATH=/usr/bin:/usr/sbin >"etc/containerd/$n.env"
  DIR=/run render crictl.yaml "var/lib/suite.slice/crictl-$n.yaml" "SOCKET=/run/containerd-$n.sock"
}

# add_kubelet: adds a kubelet without a cluster, which is not enabled and runs two pods of a folder.
add_kubelet() {
  local name
  DIR=/etc/kubernetes render kubelet.yaml var/lib/kubelet/config.yaml SOCKET=/run/containerd-1.sock PORT=10250 CGROUP=/
  sed -i "s|^podLogsDir:.*|podLogsDir: /var/log/pods|; s|^healthzPort:.*|healthzPort: 10248|
    s|^cgroupDriver:.*|cgroupDriver: systemd|; s|^oomScoreAdj:.*||; s|^featureGates:.*||" var/lib/kubelet/config.yaml
  printf '%s\n' '[Unit]' 'StartLimitIntervalSec=0' '[Service]' \
    'ExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml --hostname-override=machine' \
    'Restart=always' 'RestartSec=1' '[Install]' 'WantedBy=multi-user.target' >etc/systemd/system/kubelet.service
  for name in fixed firm; do
    DIR=/etc/kubernetes render static-pod.yaml "etc/kubernetes/manifests/$name.yaml" "NAME=$name"
  done
}
