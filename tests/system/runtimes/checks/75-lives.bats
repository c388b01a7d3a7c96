# The time of a pod's life, directly and through criswitch. CRISWITCH_LIVES is the number of pods at each socket. If
# CRISWITCH_LIVES_JSON is set, the file of that name gets the times.

load helpers.bash

setup_file() {
  have_images
}

teardown() {
  remove_pods
}

@test "the life of a pod works directly and through criswitch, and its times are printed" {
  local times=${CRISWITCH_LIVES_JSON:-$BATS_TEST_TMPDIR/lives.json}
  "$LOAD" lives "$DIR/containerd-2.sock" "$DIR/criswitch.sock" "${CRISWITCH_LIVES:-3}" >"$times"
  jq -r 'to_entries[] | "# \(.key): \(.value.directMs) ms directly, ratio \(.value.ratio)"' "$times" >&3
  equal "timed calls and the whole life" 13 "$(jq length "$times")"
}
