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
    wait_for 60 "the warnings of $class" is_warned "$class" "$(first_warning "$class")"
  done
}

teardown_file() {
  end_remaining KILL apiserver etcd
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

# first_misfit CLASS: prints a misfit that the policies of the class reject.
first_misfit() {
  case $1 in
  runc | crun) misfit node-sysctls ;;
  windows) misfit windows-privileged ;;
  gvisor) misfit gvisor-kernel-capabilities ;;
  *) misfit "$1-host-network" ;;
  esac
}

# first_warning CLASS: prints a misfit that the policies of the class admit with a warning.
first_warning() {
  case $1 in
  runc | crun) misfit host-dev-directory ;;
  windows) misfit windows-security ;;
  *) misfit "$1-host-pid" ;;
  esac
}

# dry_run CLASS SPEC: sends a pod to the API server, which only runs admission. Prints the status and the warnings.
dry_run() {
  local class=$1
  jq --arg class "$class" --argjson spec "$2" '{metadata: ({name: "pod"} + ($spec.metadata // {})),
      spec: (.fit + ($spec | del(.metadata)) | if $class == "" then . else .runtimeClassName = $class end)}' "$REAL/config/misfits.json" |
    curl -ksS --max-time 120 -D "$BATS_TEST_TMPDIR/head" -H 'Authorization: Bearer token' \
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

# answers: prints each class, each misfit, and each line of the API server's answer to this misfit in this class,
# without backslashes. Asks the API server once.
answers() {
  local file=$BATS_FILE_TMPDIR/answers class limit
  [ -e "$file" ] || for class in runc crun gvisor kata windows; do
    for limit in $(all_misfits); do
      dry_run "$class" "$(misfit "$limit")" | sed "s/^/$class\t$limit\t/"
    done
  done | tr -d '\134' >"$file"
  cat "$file"
}

# meets CLASS ANSWER MESSAGE: prints the limits whose misfits get this answer with this message in the class.
meets() {
  answers | ANSWER=$2 MESSAGE=$(tr -d '\134' <<<"$3") awk -F '\t' -v class="$1" \
    '$1 == class && index($3, ENVIRON["ANSWER"]) && index($3, ENVIRON["MESSAGE"]) {print $2}'
}

# answer CLASS LIMIT: prints the API server's answer to the misfit in the class.
answer() {
  answers | awk -F '\t' -v class="$1" -v limit="$2" '$1 == class && $2 == limit {print $3}'
}

# by_the_table: prints each class, each misfit, and the worst action in policies of the limits that the misfit meets in the
# class by `criswitch explain`: Deny, Warn or none.
by_the_table() {
  local class action actions
  actions=$(for class in runc crun gvisor kata windows; do
    for action in Deny Warn; do
      documented "$class" "$action" | jq -R --arg class "$class" --arg action "$action" '{($class): {(.): $action}}'
    done
  done | jq -s 'reduce .[] as $one ({}; . * $one)')
  jq '.fit as $fit | {kind: "List", items: [.misfits | to_entries[]
      | {kind: "Pod", metadata: ({name: .key} + (.value.metadata // {})), spec: ($fit + (.value | del(.metadata)))}]}' "$REAL/config/misfits.json" |
    "$CRISWITCH" explain --config "$DIR/policies.toml" -o json -f - >"$BATS_TEST_TMPDIR/fits" || true
  jq -r --argjson actions "$actions" '.pods[] | .name as $misfit | .handlers[] | $actions[.handler] as $own
      | [(.reasons[], .undecided[]).limit | $own[.]] as $met
      | (["Deny", "Warn"] | map(select(IN($met[]))) | first // "none") as $worst
      | "\(.handler) \($misfit) \($worst)"' "$BATS_TEST_TMPDIR/fits"
}

@test "each class rejects the misfits that the table rejects, and no other" {
  by_the_table >"$BATS_TEST_TMPDIR/actions"
  equal "pairs of a class and a misfit" "$(($(all_misfits | wc -l) * 5))" "$(wc -l <"$BATS_TEST_TMPDIR/actions")"
  while read -r class limit action; do
    seen=$(answer "$class" "$limit")
    case $action in
    Deny) has "$limit in $class" rejected "$seen" ;;
    Warn)
      has "$limit in $class" admitted "$seen"
      has "$limit in $class" warned "$seen"
      ;;
    none) equal "$limit in $class" admitted "$seen" ;;
    esac
  done <"$BATS_TEST_TMPDIR/actions"
}

# class_in NAMESPACE SPEC: prints the class and the overhead of a pod that the API server would create, and fails if it
# rejects the pod.
class_in() {
  local seen
  seen=$(jq -c --argjson spec "$2" '{metadata: ({name: "pod"} + ($spec.metadata // {})),
      spec: (.fit + ($spec | del(.metadata)))}' "$REAL/config/misfits.json" |
    api "api/v1/namespaces/$1/pods?dryRun=All" POST) && jq -c '.spec | [.runtimeClassName, .overhead]' <<<"$seen"
}

# has_class_in NAMESPACE SPEC RESULT: succeeds when class_in prints the result; a condition for wait_for.
has_class_in() {
  local seen
  seen=$(class_in "$1" "$2")
  echo "$seen"
  [ "$seen" = "$3" ]
}

@test "a pod of a namespace with a default class gets the class, its overhead and its policies, unless it names a class" {
  local label
  api apis/node.k8s.io/v1/runtimeclasses POST \
    <<<'{"metadata": {"name": "heavy"}, "handler": "gvisor", "overhead": {"podFixed": {"memory": "89Mi"}}}' >/dev/null
  "$CRISWITCH" manifests --policy=default-class --config "$DIR/policies.toml" | kubectl_at_cluster apply -f - >"$DIR/applied"
  equal "policies" "mutatingadmissionpolicy.admissionregistration.k8s.io/criswitch-default-class created
mutatingadmissionpolicybinding.admissionregistration.k8s.io/criswitch-default-class created" "$(cat "$DIR/applied")"
  for label in heavy gvisor nosuch; do
    api api/v1/namespaces POST \
      <<<"{\"metadata\": {\"name\": \"in-$label\", \"labels\": {\"criswitch.io/default-class\": \"$label\"}}}" >/dev/null
  done
  wait_for 60 "the default class" has_class_in in-heavy '{}' '["heavy",{"memory":"89Mi"}]'
  equal "the named class" '["runc",null]' "$(class_in in-heavy '{"runtimeClassName": "runc"}')"
  equal "a namespace without the label" '[null,null]' "$(class_in suite '{}')"
  equal "a static pod" '[null,null]' \
    "$(class_in in-heavy '{"nodeName": "node", "metadata": {"annotations": {"kubernetes.io/config.mirror": "1"}}}')"
  ! class_in in-gvisor "$(misfit gvisor-kernel-capabilities)" || fail "the API server ignores the policy of the default class"
  ! class_in in-nosuch '{}' || fail "the API server accepts a class that does not exist"
  kubectl_at_cluster delete -f <("$CRISWITCH" manifests --policy=default-class --config "$DIR/policies.toml") >/dev/null
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

# documented CLASS ACTION: prints the limits with this action in policies that docs/compatibility.md has for the class. The policies of runc and crun omit the limits that other kinds of runtimes have too.
documented() {
  local kind=$1 omitted='^$'
  case $1 in
  runc | crun) omitted='gVisor|Kata|Windows' ;;
  gvisor) kind=gVisor ;;
  kata) kind=Kata ;;
  windows) kind=Windows ;;
  esac
  awk -F ' [|] ' -v kind="$kind" -v action="\`$2\`" -v omitted="$omitted" \
    '/^[|] [[]?`/ && ($2 == "any" || index(", " $2 ",", ", " kind ",")) && $2 !~ omitted && index($4, action) {
      split($1, limit, "`")
      print limit[2]
    }' "$TOP/docs/compatibility.md"
}

# validated CLASS SUFFIX: prints the number of limits in the policy of the class with this suffix. A limit may have several
# validations, whose messages differ only in the field.
validated() {
  validations "$2" | awk -F '\t' -v class="$1" '$1 == class {sub(/^[^:]*: /, "", $2); print $2}' | sort -u | wc -l
}

@test "the policies of each class have as many validations as the documented table has limits" {
  for class in runc crun gvisor kata windows; do
    equal "limits of $class that reject" "$(documented "$class" Deny | wc -l)" "$(validated "$class" "")"
    equal "limits of $class that warn" "$(documented "$class" Warn | wc -l)" "$(validated "$class" -warnings)"
    [ "$(validated "$class" "")" -ge 1 ]
  done
}
