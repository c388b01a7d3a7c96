# kubeadm joins a node, upgrades it, resets it, and joins it again. Meanwhile criswitch is installed. The programs are all of
# one version, unless CRISWITCH_OLDER_KUBERNETES names a folder with an older kubeadm and kubelet, which join the node. The
# nightly lane builds them (CRISWITCH_NIGHTLY in partners.sh).

load ../runtimes/checks/helpers.bash
load ../runtimes/checks/kubelet.bash
load node.bash
load ../runtimes/checks/cluster.bash

PKI=$DIR/pki
TOKEN=abcdef.0123456789abcdef

setup_file() {
  start_link
  kubeadm init phase certs ca --cert-dir "$PKI" >/dev/null
  kubeadm init phase certs apiserver --cert-dir "$PKI" --apiserver-advertise-address "$OUTSIDE" >/dev/null
  # A node that joins is not known yet, and AlwaysAllow rejects unknown clients.
  AUTHORIZATION=Node,RBAC start_cluster --tls-cert-file "$PKI/apiserver.crt" --tls-private-key-file "$PKI/apiserver.key" \
    --client-ca-file "$PKI/ca.crt" --enable-bootstrap-token-auth
  start_controllers --controllers bootstrap-signer-controller \
    --controllers certificatesigningrequest-approving-controller --cluster-signing-cert-file "$PKI/ca.crt" \
    --controllers certificatesigningrequest-signing-controller --cluster-signing-key-file "$PKI/ca.key"
  start_node_of_systemd
  older let_nodes_join
  older prepare_for_kubeadm
}

teardown_file() {
  end_node
}

# older COMMAND...: runs a command with the programs of the older Kubernetes.
older() {
  PATH=${CRISWITCH_OLDER_KUBERNETES:+$CRISWITCH_OLDER_KUBERNETES:}$PATH "$@"
}

# replace PROGRAM: replaces a program of the node, as packages do.
replace() {
  cp "$(command -v "$1")" "$(root)/root/.$1" && mv "$(root)/root/.$1" "$(root)/root/$1"
}

# upload_config: uploads the configuration of new nodes. Only the older programs know their version.
upload_config() {
  local version
  version=$(kubeadm version -o short | sed 's/^v0.*/v1.37.0/') &&
    sed -i "s/^kubernetesVersion:.*/kubernetesVersion: $version/" "$DIR/kubeadm.yaml" &&
    kubeadm init phase upload-config all --config "$DIR/kubeadm.yaml" --kubeconfig "$DIR/super-admin.conf"
}

# let_nodes_join: uploads what a node needs to join the cluster, as `kubeadm init` does.
let_nodes_join() {
  local config=$DIR/kubeadm.yaml
  {
    cat <<END
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
bootstrapTokens: [{ token: $TOKEN }]
localAPIEndpoint: { advertiseAddress: $OUTSIDE, bindPort: $(kept api.port) }
nodeRegistration: { name: node, criSocket: "unix:///run/containerd-2.sock" }
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: unknown
controlPlaneEndpoint: $OUTSIDE:$(kept api.port)
---
END
    cat "$(root)/var/lib/kubelet/config.yaml"
  } >"$config"
  # The cluster of this file has the certificate of its authority, unlike the suite's.
  kubeadm init phase kubeconfig super-admin --cert-dir "$PKI" --kubeconfig-dir "$DIR" \
    --apiserver-advertise-address "$OUTSIDE" --apiserver-bind-port "$(kept api.port)" >/dev/null &&
    upload_config && kubeadm init phase bootstrap-token --config "$config" --kubeconfig "$DIR/super-admin.conf"
}

# prepare_for_kubeadm: removes the node from the cluster, and gives its kubelet the flags of kubeadm's package.
prepare_for_kubeadm() {
  local units
  units=$(root)/etc/systemd/system/kubelet.service.d
  replace kubeadm && replace kubelet && in_node systemctl stop kubelet &&
    mkdir -p "$units" "$(root)/etc/default" || return
  cat >"$units/10-kubeadm.conf" <<'END'
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
ExecStart=
ExecStart=/root/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
END
  echo "KUBELET_EXTRA_ARGS=\"--node-ip=$INSIDE --v=2\"" >"$(root)/etc/default/kubelet"
  rm "$(root)"/etc/kubernetes/kubelet.conf "$(root)"/var/lib/kubelet/{config.yaml,kubeadm-flags.env}
  in_node systemctl daemon-reload && leave_cluster
}

leave_cluster() {
  api api/v1/nodes/node DELETE >/dev/null
}

# kubeadm_in_node ARGUMENT...: runs kubeadm in the node, whose kernel and cgroups fail its checks.
kubeadm_in_node() {
  in_node /root/kubeadm "$@" --ignore-preflight-errors all 2>&1
}

# join SOCKET: joins the node with this runtime endpoint.
join() {
  local hash out
  hash=$(openssl x509 -in "$PKI/ca.crt" -noout -pubkey | openssl pkey -pubin -outform der | sha256sum | cut -d ' ' -f 1)
  out=$(kubeadm_in_node join "$OUTSIDE:$(kept api.port)" --token "$TOKEN" --discovery-token-ca-cert-hash "sha256:$hash" \
    --node-name node --cri-socket "unix://$1") || fail "$out; $(tail -n 5 "$(root)/var/log/kubelet.log")" || return
  wait_for 60 "the node to be ready" is_ready
}

# endpoint_of_kubelet: prints the runtime endpoint with which the kubelet runs.
endpoint_of_kubelet() {
  curl -ksSf "https://$INSIDE:10250/configz" | jq -r .kubeletconfig.containerRuntimeEndpoint
}

version_of_kubelet() {
  api api/v1/nodes/node | jq -r .status.nodeInfo.kubeletVersion
}

CRISWITCH_ENDPOINT=unix:///run/criswitch/criswitch.sock

@test "a node that kubeadm has joined gets criswitch" {
  join /run/containerd-2.sock
  create_pod web ""
  wait_for 60 "the pod" pod_is web "$RUNS"
  specify 1
  wait_for 60 "a plan that rejects nothing" would_change
  files_of_node | keep_as files
  node apply --spec /root/spec.toml
  node status --ready
  equal "the endpoint" "$CRISWITCH_ENDPOINT" "$(endpoint_of_kubelet)"
  pod_is web "$RUNS"
}

@test "an upgrade of the node by kubeadm keeps criswitch" {
  local pods before
  pods=$(everything) before=$(version_of_kubelet)
  upload_config
  replace kubeadm
  kubeadm_in_node upgrade node
  # kubeadm leaves a copy of the previous configuration in this folder.
  rm -r "$(root)/etc/kubernetes/tmp"
  replace kubelet
  node status --ready
  in_node systemctl daemon-reload && in_node systemctl restart kubelet
  wait_for 60 "the kubelet" node status --ready
  equal "the endpoint" "$CRISWITCH_ENDPOINT" "$(endpoint_of_kubelet)"
  same "pods and containers" "$pods" "$(everything)"
  pod_is web "$RUNS"
  echo "# the kubelet was $before, and is $(version_of_kubelet)" >&3
}

@test "an uninstallation leaves the node as kubeadm made it" {
  local config
  config=$(sed "s|$CRISWITCH_ENDPOINT|unix:///run/containerd-2.sock|" "$(root)/var/lib/kubelet/config.yaml")
  node uninstall
  same "the configuration" "$config" "$(cat "$(root)/var/lib/kubelet/config.yaml")"
  same "the files" "$(kept files)" "$(files_of_node)"
  equal "the endpoint" unix:///run/containerd-2.sock "$(endpoint_of_kubelet)"
  pod_is web "$RUNS"
}

@test "kubeadm resets a node with criswitch, and joins it again through criswitch" {
  specify 2
  node apply --spec /root/spec.toml
  kubeadm_in_node reset --force --cri-socket "$CRISWITCH_ENDPOINT"
  equal "the pods of the containerds" "" "$(crictl_at 1 pods -q && crictl_at 2 pods -q)"
  leave_cluster
  join /run/criswitch/criswitch.sock
  equal "the endpoint" "$CRISWITCH_ENDPOINT" "$(endpoint_of_kubelet)"
}
