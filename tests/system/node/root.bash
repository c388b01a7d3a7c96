# shellcheck shell=bash
# The contents of the root of the node NAME, except systemd, and the cgroups of the node.

# enter_cgroups: moves this process into a cgroup of the node in each hierarchy, which becomes the node's root.
enter_cgroups() {
  local hierarchy cgroup name
  for hierarchy in /sys/fs/cgroup/*/; do
    [ -e "$hierarchy/release_agent" ] || continue
    # shellcheck disable=SC2153 # boot_node exports it.
    cgroup=$hierarchy${DIR##*/}-$NAME
    mkdir -p "$cgroup"
    for name in cpuset.cpus cpuset.mems; do
      [ ! -e "$cgroup/$name" ] || cat "$hierarchy/$name" >"$cgroup/$name"
    done
    echo "$BASHPID" >"$cgroup/cgroup.procs"
  done
}

# fill_root: changes the root of the node, the working directory, before its boot.
fill_root() {
  local is_first
  [ -e "$DIR/$NAME/disk/etc" ] || is_first=1
  mount_cgroups
  add_devices
  let_network_be_set
  show_kernel_settings
  use_disk
  add_partners
  mkdir -p run/containerd-{1,2}
  [ -z "${is_first:-}" ] || add_files
}

# Binds the directories of the node's disk, which stays at a boot. They get their first files at the first boot.
use_disk() {
  local name
  for name in etc opt root var; do
    mkdir -p "$name"
    [ -e "$DIR/$NAME/disk/$name" ] || cp -a "$name" "$DIR/$NAME/disk/"
    mount --bind "$DIR/$NAME/disk/$name" "$name"
  done
}

# Mounts version 1 of cgroups, which has the controllers of the machine. crun treats a hybrid mount as version 2.
mount_cgroups() {
  local hierarchy name
  umount sys/fs/cgroup
  mount -t tmpfs -o mode=755 cgroup sys/fs/cgroup
  for hierarchy in /sys/fs/cgroup/*/; do
    [ -e "$hierarchy/release_agent" ] || continue
    name=$(basename "$hierarchy")
    mkdir "sys/fs/cgroup/$name"
    case $name in
      systemd) mount -t cgroup -o none,name=systemd cgroup "sys/fs/cgroup/$name" ;;
      *) mount -t cgroup -o "$name" cgroup "sys/fs/cgroup/$name" ;;
    esac
  done
  # systemd would mount version 2, too, and controllers that the machine does not use.
  mount -o remount,ro sys/fs/cgroup
}

add_devices() {
  # The kubelet opens /dev/kmsg.
  mknod -m 600 dev/kmsg c 1 11
  mkdir dev/pts dev/shm
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
  mount -t tmpfs shm dev/shm
}

# The plugin of the pods' network writes settings of the node's network namespace.
let_network_be_set() {
  mount --bind proc/sys/net proc/sys/net
  mount -o remount,bind,rw proc/sys/net
}

# Shows the kubelet these kernel settings with the values that it wants. Otherwise it would set them for the whole
# machine.
show_kernel_settings() {
  local pair
  mkdir settings
  for pair in kernel/panic=10 kernel/panic_on_oops=1 vm/overcommit_memory=1 vm/panic_on_oom=0; do
    echo "${pair#*=}" >"settings/${pair//\//-}"
    mount --bind "settings/${pair//\//-}" "proc/sys/${pair%=*}"
  done
}

# Binds the programs of containerd 2.x to /opt/partners, and other programs to their usual paths on a node.
add_partners() {
  local name
  mkdir -p opt/partners
  for name in containerd containerd-shim-runc-v2 ctr runsc containerd-shim-runsc-v1 etcd nfd-worker; do
    bind_program "$(command -v "$name")" "opt/partners/$name"
  done
  bind_program "$(command -v kubelet)" usr/bin/kubelet
  mkdir -p opt/images
  mount --bind "$DIR/$NAME/archives" opt/images
}

bind_program() {
  touch "$2"
  mount --bind "$1" "$2"
}

add_files() {
  local n version path=/usr/bin:/usr/sbin
  echo "127.0.0.1 localhost" >etc/hosts
  echo "nameserver 127.0.0.1" >etc/resolv.conf
  mkdir -p etc/containerd etc/kubernetes/manifests var/lib/kubelet var/log/pods
  for n in 1 2; do
    version=2.x
    [ "$n" != 1 ] || version=1.6
    mkdir "etc/containerd/cni-$n"
    DIR=/run render "containerd-$version.toml" "etc/containerd/$n.toml" "N=$n"
    sed -i "s|/run/cni-|/etc/containerd/cni-|; s|/run/runsc-|/etc/containerd/runsc-|; s|/run/certs.d||
      s|^root = .*|root = \"/var/lib/containerd-$n\"|" "etc/containerd/$n.toml"
    DIR=/run render cni.conflist "etc/containerd/cni-$n/10-bridge.conflist" "BRIDGE=cni$n" "SUBNET=10.22.$n.0/24"
    sed -i 's|"type": "bridge",|&\n      "isGateway": true,|' "etc/containerd/cni-$n/10-bridge.conflist"
    DIR=/run render runsc.toml "etc/containerd/runsc-$n.toml" "N=$n"
    [ "$n" = 1 ] || path=/opt/partners:$path
    echo "PATH=$path" >"etc/containerd/$n.env"
    systemctl --quiet --root=. enable devices.service "containerd@$n.service" 2>/dev/null
  done
  DIR=/etc/kubernetes render kubelet.yaml var/lib/kubelet/config.yaml SOCKET=/run/containerd-2.sock PORT=10250 CGROUP=/
  sed -i "s|^podLogsDir:.*|podLogsDir: /var/log/pods|; s|^address:.*|address: 0.0.0.0|; s|^healthzPort:.*|healthzPort: 10248|" \
    var/lib/kubelet/config.yaml
  echo "KUBELET_KUBEADM_ARGS=\"--hostname-override=$NAME --node-ip=$INSIDE --v=2\"" >var/lib/kubelet/kubeadm-flags.env
  cp "$DIR/cluster/kubeconfig" etc/kubernetes/kubelet.conf
}
