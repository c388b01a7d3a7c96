# `criswitch discover` with the two containerds.

load helpers.bash

setup_file() {
  have_images
}

teardown() {
  remove_pods
}

@test "criswitch with the file of discover serves pods of both containerds and of the default handler" {
  file=$DIR/discovered.toml
  told=$("$CRISWITCH" discover --listen "$DIR/discovered.sock" --write "$file" \
    "$DIR/containerd-2.sock" "$DIR/containerd-1.sock" "$DIR/criswitch.sock" 2>&1)
  has "discover" "wrote $file" "$told"
  has "discover" "$DIR/criswitch.sock is a socket of criswitch" "$told"
  table=$("$CRISWITCH" check --probe --json --config "$file")
  equal "handlers" '{"crun":"containerd-1","gvisor":"containerd-2","runc":"containerd-2","runsc":"containerd-2"}' \
    "$(jq -cS '[.handlers[] | {key: .name, value: .backend}] | from_entries' <<<"$table")"
  equal "default" runc "$(jq -r .defaultHandler <<<"$table")"

  render crictl.yaml "$DIR/crictl-discovered.yaml" "SOCKET=$DIR/discovered.sock"
  start_program discovered "${CRISWITCH}d" --config "$file"
  wait_for 60 "criswitch" crictl_at discovered version
  for handler in crun gvisor runc ""; do
    pod=$(crictl_at discovered runp --runtime "$handler" "$(pod_config "discovered-$handler")")
    equal "owner of the pod of <$handler>" "$pod" \
      "$(crictl_at "$(owner_of "$handler")" pods --no-trunc -q --name "^discovered-$handler\$")"
  done
  equal "pods" 4 "$(crictl_at discovered pods -q | wc -l)"
  equal "exit code of criswitch" 0 "$(stop_switch discovered)"
}

@test "discover never overwrites a file" {
  echo mine >"$DIR/mine.toml"
  run -1 "$CRISWITCH" discover --write "$DIR/mine.toml" "$DIR/containerd-2.sock"
  has "discover" "exists and was not changed" "$output"
  equal "the file" mine "$(cat "$DIR/mine.toml")"
}
