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
    wait_for 30 "the policy of $class" is_rejected "$class" "$(first_misfit "$class")"
  done
  for class in gvisor kata; do
    wait_for 30 "the warnings of $class" is_warned "$class" '{"hostPID": true}'
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

# misfit LIMIT: prints the part of a pod's spec that meets the limit.
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
  jq --arg class "$class" --argjson spec "$2" '{metadata: {name: "pod"}, spec: (.fit + $spec
      | if $class == "" then . else .runtimeClassName = $class end)}' "$REAL/config/misfits.json" |
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

@test "a pod without a class is admitted, whatever it asks for" {
  for limit in $(all_misfits); do
    equal "$limit" admitted "$(dry_run "" "$(misfit "$limit")")"
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

# answer CLASS LIMIT: what the API server says about the misfit in the class; asked once in a check.
answer() {
  local file=$BATS_TEST_TMPDIR/answer-$1-$2
  [ -e "$file" ] || dry_run "$1" "$(misfit "$2")" >"$file"
  cat "$file"
}

@test "the API server rejects the misfits that the table rejects, and no other" {
  while read -r class limit effect; do
    seen=$(answer "$class" "$limit")
    case $effect in
    fails) has "$limit in $class" rejected "$seen" ;;
    weakens) has "$limit in $class" warned "$seen" ;;
    esac
  done < <(awk -F'|' '/^\| `/ {gsub(/[` ]/, "", $2); gsub(/ /, "", $5); print $3 "|" $2 "|" $5}' \
    "$TOP/docs/compatibility.md" | while IFS='|' read -r kinds limit effect; do
    for class in runc crun gvisor kata windows; do
      case $class in
      gvisor) kind=gVisor ;;
      kata) kind="Kata Containers" ;;
      windows) kind="Windows containers" ;;
      *) kind=$class ;;
      esac
      if [[ $kinds == *"$kind"* ]]; then echo "$class $limit $effect"; fi
    done
  done | grep -v ' note$')
  for limit in gvisor-host-network gvisor-host-pid gvisor-privileged gvisor-host-sockets gvisor-block-volumes; do
    equal "$limit in runc" admitted "$(answer runc "$limit")"
  done
}
