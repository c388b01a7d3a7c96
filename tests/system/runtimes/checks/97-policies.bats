# The admission policies of `criswitch manifests --policy` in a real kube-apiserver: pods that fit pass, and each known
# misfit is rejected, or admitted with a warning, with the reason of its limit. Rust tests check the same pods.

load helpers.bash
load cluster.bash

setup_file() {
  render policies.toml "$DIR/policies.toml"
  start_cluster
  post_all apis/node.k8s.io/v1/runtimeclasses <<<"$("$CRISWITCH" manifests -o json --config "$DIR/policies.toml")"
  "$CRISWITCH" manifests --policy -o json --config "$DIR/policies.toml" >"$DIR/policies.json"
  local group=apis/admissionregistration.k8s.io/v1
  post_all $group/validatingadmissionpolicies ValidatingAdmissionPolicy <"$DIR/policies.json"
  post_all $group/validatingadmissionpolicybindings ValidatingAdmissionPolicyBinding <"$DIR/policies.json"
  # The API server learns of new policies a moment later.
  local class
  for class in runc crun gvisor kata windows; do
    wait_for 60 "the policy of $class" is_rejected "$class" "$(first_misfit "$class")"
  done
  for class in runc crun gvisor kata windows; do
    wait_for 60 "the warnings of $class" is_warned "$class" "$(misfit unsafe-sysctls)"
  done
}

teardown_file() {
  for program in apiserver etcd; do
    [ -e "$DIR/$program.exit" ] || end_program KILL "$program" || true
  done
}

# post_all PATH [KIND]: creates the objects of this kind in the List on standard input.
post_all() {
  local object
  jq -c --arg kind "${2:-}" '.items[] | select($kind == "" or .kind == $kind)' | while read -r object; do
    api "$1" POST <<<"$object" >/dev/null || return
  done
}

# misfit LIMIT: prints the part of a pod's spec that meets the limit. `metadata` in it is that of the pod.
misfit() {
  jq -c --arg limit "$1" '.misfits[$limit]' "$REAL/config/misfits.json"
}

# first_misfit CLASS: a misfit that the class rejects.
first_misfit() {
  case $1 in
  runc | crun) misfit node-sysctls ;;
  windows) misfit windows-privileged ;;
  *) misfit "$1-host-network" ;;
  esac
}

# dry_run CLASS SPEC: sends a pod to the API server, which only runs admission. Prints the status and the warnings.
dry_run() {
  local class=$1
  jq --arg class "$class" --argjson spec "$2" '{metadata: ({name: "pod"} + ($spec.metadata // {})),
      spec: (.fit + ($spec | del(.metadata)) | if $class == "" then . else .runtimeClassName = $class end)}' "$REAL/config/misfits.json" |
    curl -ksS --max-time 20 -D "$BATS_TEST_TMPDIR/head" -H 'Authorization: Bearer token' \
      -H 'Content-Type: application/json' --data-binary @- \
      "https://127.0.0.1:$(kept api.port)/api/v1/namespaces/suite/pods?dryRun=All" >"$BATS_TEST_TMPDIR/body"
  jq -r 'if .kind == "Status" then "rejected \(.message)" else "admitted" end' "$BATS_TEST_TMPDIR/body"
  sed -n 's/^[Ww]arning: 299 - /warned /p' "$BATS_TEST_TMPDIR/head"
}

is_rejected() {
  local seen
  seen=$(BATS_TEST_TMPDIR=$BATS_FILE_TMPDIR dry_run "$@")
  echo "$seen"
  [[ $seen == rejected* ]]
}

is_warned() {
  local seen
  seen=$(BATS_TEST_TMPDIR=$BATS_FILE_TMPDIR dry_run "$@")
  echo "$seen"
  [[ $seen == *warned* ]]
}

# validations SUFFIX: prints the class and the message of each validation in the policies with this suffix, one in each
# line.
validations() {
  jq -r --arg suffix "$1" '.items[] | select(.kind == "ValidatingAdmissionPolicy") | .metadata.name as $name
    | select(($name | endswith("-warnings")) == ($suffix == "-warnings"))
    | ($name | ltrimstr("criswitch-") | rtrimstr("-warnings")) as $class
    | .spec.validations[] | "\($class)\t\(.message)"' "$DIR/policies.json"
}

# all_misfits: prints the names of the limits that have a misfit.
all_misfits() {
  jq -r '.misfits | keys[]' "$REAL/config/misfits.json"
}

@test "pods that fit are admitted without a warning in every class, and without a class" {
  for class in "" runc crun gvisor kata windows; do
    equal "class <$class>" admitted "$(dry_run "$class" '{}')"
  done
}

@test "a HostProcess pod may use the network of a Windows node" {
  equal "windows" admitted "$(dry_run windows "$(jq -c .hostProcess "$REAL/config/misfits.json")")"
}

@test "a pod without a class is admitted, whatever it asks for" {
  for limit in $(all_misfits); do
    # The API server may have a warning of its own.
    seen=$(dry_run "" "$(misfit "$limit")")
    equal "$limit" admitted "${seen%%$'\n'*}"
    lacks "$limit" criswitch "$seen"
  done
}

@test "each known misfit is rejected with the reason of its limit" {
  count=0
  while IFS=$'\t' read -r class message; do
    met=$(meets "$class" "rejected" "$message")
    [ -n "$met" ] || fail "no misfit meets: $class: $message"
    count=$((count + 1))
  done < <(validations "")
  echo "# $count validations reject" >&3
  [ "$count" -ge 15 ]
}

@test "each pod that would run with less is admitted with the reason as a warning" {
  count=0
  while IFS=$'\t' read -r class message; do
    met=$(meets "$class" "warned" "$message")
    [ -n "$met" ] || fail "no misfit meets: $class: $message"
    count=$((count + 1))
  done < <(validations -warnings)
  echo "# $count validations warn" >&3
  [ "$count" -ge 10 ]
}

# meets CLASS ANSWER MESSAGE: prints the limits whose misfits get this answer with this message in the class.
meets() {
  local limit
  for limit in $(all_misfits); do
    if answer "$1" "$limit" | grep -F "$2" | tr -d '\134' | grep -qF "$(tr -d '\134' <<<"$3")"; then
      echo "$limit"
    fi
  done
}

# answer CLASS LIMIT: what the API server says about the misfit in the class; asked once.
answer() {
  local file=$BATS_FILE_TMPDIR/answer-$1-$2
  [ -e "$file" ] || dry_run "$1" "$(misfit "$2")" >"$file"
  cat "$file"
}

# by_the_table: prints each class, each misfit, and the worst effect of the limits that the misfit meets in the class by
# `criswitch explain`: fails, weakens or none. A limit that depends on a setting of a node weakens, as in the policies.
by_the_table() {
  jq '.fit as $fit | {kind: "List", items: [.misfits | to_entries[]
      | {kind: "Pod", metadata: ({name: .key} + (.value.metadata // {})), spec: ($fit + (.value | del(.metadata)))}]}' "$REAL/config/misfits.json" |
    "$CRISWITCH" explain --config "$DIR/policies.toml" -o json -f - >"$BATS_TEST_TMPDIR/fits" || true
  jq -r '.pods[] | .name as $limit | .handlers[]
      | [.reasons[].effect, (.undecided[] | select(.onlyIf | test("feature") | not) | "weakens")] as $effects
      | (["fails", "weakens"] | map(select(IN($effects[]))) | first // "none") as $worst
      | "\(.handler) \($limit) \($worst)"' "$BATS_TEST_TMPDIR/fits"
}

@test "each class rejects the misfits that the table rejects, and no other" {
  by_the_table >"$BATS_TEST_TMPDIR/effects"
  equal "pairs of a class and a misfit" "$(($(all_misfits | wc -l) * 5))" "$(wc -l <"$BATS_TEST_TMPDIR/effects")"
  while read -r class limit effect; do
    seen=$(answer "$class" "$limit")
    case $effect in
    fails) has "$limit in $class" rejected "$seen" ;;
    weakens)
      has "$limit in $class" admitted "$seen"
      has "$limit in $class" warned "$seen"
      ;;
    none) equal "$limit in $class" admitted "$seen" ;;
    esac
  done <"$BATS_TEST_TMPDIR/effects"
}

@test "manifests --kubectl warns of a class of the cluster with a different handler" {
  # The cluster has the class `boxed` with the handler `boxed`.
  printf 'default_handler = "runc"\n[handlers]\nrunc = { socket = "/run/a.sock", class = "boxed" }\n' >"$DIR/boxed.toml"
  export KUBECONFIG=$DIR/cluster/kubeconfig
  run --separate-stderr "$CRISWITCH" manifests --kubectl --config "$DIR/boxed.toml"
  equal "the exit status" 0 "$status"
  # shellcheck disable=SC2154 # bats sets it.
  has "the warning" 'RuntimeClass "boxed" exists with the handler "boxed", which is immutable' "$stderr"
  run --separate-stderr "$CRISWITCH" manifests --kubectl --config "$DIR/policies.toml"
  equal "the exit status and the warnings" "0 " "$status $stderr"
  sed 's/127.0.0.1:[0-9]*/127.0.0.1:1/' "$KUBECONFIG" >"$DIR/no-cluster"
  KUBECONFIG=$DIR/no-cluster run --separate-stderr "$CRISWITCH" manifests --kubectl --config "$DIR/policies.toml"
  equal "the exit status and the objects" "1 " "$status $output"
  has "the failure" "the RuntimeClasses of the cluster are unknown" "$stderr"
}

# documented CLASS ACTION: prints the number of limits with this action in policies that docs/compatibility.md has for the
# kind of runtime of the class.
documented() {
  local kind=$1
  case $1 in
  gvisor) kind=gVisor ;;
  kata) kind=Kata ;;
  windows) kind=Windows ;;
  esac
  awk -F ' [|] ' -v kind="$kind" -v action="\`$2\`" \
    '/^[|] [[]`/ && ($2 == "any" || index(", " $2 ",", ", " kind ",")) && index($4, action)' \
    "$TOP/docs/compatibility.md" | wc -l
}

# validated CLASS SUFFIX: prints the number of validations in the policy of the class with this suffix.
validated() {
  validations "$2" | awk -F '\t' -v class="$1" '$1 == class' | wc -l
}

@test "the policies of each class have as many validations as the documented table has limits" {
  for class in runc crun gvisor kata windows; do
    equal "limits of $class that reject" "$(documented "$class" Deny)" "$(validated "$class" "")"
    equal "limits of $class that warn" "$(documented "$class" Warn)" "$(validated "$class" -warnings)"
    [ "$(documented "$class" Deny)" -ge 1 ]
  done
}
