# Calls about the node.

load helpers.bash

@test "version is the default handler's runtime" {
  equal "crictl version" "$(crictl_at 2 version)" "$(cri version)"
}

@test "info has every handler, with the features that its containerd reports" {
  info=$(cri info)
  equal "handlers in info" '["","crun","gvisor","runc","sandboxed"]' \
    "$(jq -c '[.runtimeHandlers[] | .name // ""] | sort' <<<"$info")"
  # shellcheck disable=SC2016 # A jq variable.
  features='.runtimeHandlers[] | select(.name == $name) | .features'
  direct=$(crictl_at 2 info)
  equal "features of runc" "$(jq -c --arg name runc "$features" <<<"$direct")" \
    "$(jq -c --arg name runc "$features" <<<"$info")"
  equal "features of sandboxed, which is runsc there" "$(jq -c --arg name runsc "$features" <<<"$direct")" \
    "$(jq -c --arg name sandboxed "$features" <<<"$info")"
}

@test "info is ready, and reports every backend as ready" {
  conditions=$(cri info | jq -c '[.status.conditions[] | select(.type | endswith("Ready"))
    | {key: .type, value: .status}] | from_entries')
  equal "conditions" '{"BackendsReady":true,"NetworkReady":true,"RuntimeReady":true}' \
    "$(jq -cS . <<<"$conditions")"
}

@test "info keeps the default containerd's keys and adds criswitch" {
  info=$(cri info)
  direct=$(crictl_at 2 info)
  equal "the containerd's config" "$(jq -cS .config <<<"$direct")" "$(jq -cS .config <<<"$info")"
  # containerd 1.6 has no features, so crictl prints no `features`.
  equal "keys" "$(jq -c '[keys[], "criswitch"] - ["features"] | sort' <<<"$direct")" "$(jq -c keys <<<"$info")"
  own=$(jq -c .criswitch <<<"$info")
  has "backends" "$DIR/containerd-1.sock" "$own"
  has "backends" "$DIR/containerd-2.sock" "$own"
  has "version of the older" 1.6. "$own"
}

@test "runtime-config comes from the backends that have one" {
  has "directly at 1.6" Unimplemented "$(refusal_at 1 runtime-config)"
  equal "crictl runtime-config" "$(crictl_at 2 runtime-config)" "$(cri runtime-config)"
}

@test "update-runtime-config reaches every backend" {
  cri update-runtime-config --pod-cidr 10.77.0.0/24
  for n in 1 2; do
    wait_for 60 "the new range in the log of containerd $n" grep -q 'No cni config template' "$DIR/containerd-$n.log"
  done
}

@test "metricdescs come from the backends that have them" {
  has "directly at 1.6" Unimplemented "$(refusal_at 1 metricdescs)"
  names='[.descriptors[].name] | sort'
  equal "crictl metricdescs" "$(crictl_at 2 metricdescs | jq -c "$names")" "$(cri metricdescs | jq -c "$names")"
}

@test "metricdescs of two backends name each metric once" {
  start_switch twins
  names=$(crictl_at twins metricdescs | jq -c '[.descriptors[].name] | sort')
  equal "exit code of criswitch" 0 "$(stop_switch twins)"
  equal "crictl metricdescs" "$(crictl_at 2 metricdescs | jq -c '[.descriptors[].name] | sort')" "$names"
}
