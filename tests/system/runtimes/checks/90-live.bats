# A node moves from one containerd to another while its pods run. Every step is a reload under a steady load of calls.
# The checks are the steps, from first to last.

load helpers.bash
load faults.bash
load live.bash

setup_file() {
  have_images
  # The pods exist before criswitch. They are created as the kubelet creates them: `first` without a RuntimeClass,
  # `second` with one.
  begin_service 1 first ""
  begin_service 1 second runc
  for name in first second; do
    echo "old=$(kept "pod.$name")/$(kept "main.$name")"
    started_as "$name" | keep_as "started.$name"
  done | keep_as pods
}

setup() {
  # shellcheck disable=SC2034 # is_backend uses it.
  SWITCH=live
  CALLS=$DIR/load.log
}

teardown() {
  end_background
}

teardown_file() {
  end_remaining TERM load live
  remove_pods
}

# all_undisturbed NAME...: checks that no call has failed so far, that no list was incomplete, and that these pods are
# unchanged and work.
all_undisturbed() {
  local name where
  none "failed calls, lists with a gap, wrong states" '.code != "Ok" or (.right | not)'
  for name in "$@"; do
    where=1
    if pods_at_has 2 "$name"; then where=2; fi
    works "$name" "$where"
    equal "$name: its start" "$(kept "started.$name")" "$(started_as "$name")"
  done
  answers_new_calls
}

# the_pods NAME...: checks that criswitch lists exactly these pods and their containers.
the_pods() {
  equal "pods" "$(for name in "$@"; do kept "pod.$name"; done | sort)" "$(live pods -q --no-trunc | sort)"
  equal "containers" "$(for name in "$@"; do kept "main.$name"; done | sort)" "$(live ps -q --no-trunc | sort)"
}

@test "criswitch is put in front of a containerd with running pods" {
  start_live
  the_pods first second
  start_program load "$LOAD" "$DIR/live.sock" "$LOAD_LIMIT_S" "$BATS_FILE_TMPDIR/pods"
  answers_new_calls
  equal "version" "$(crictl_at 1 version)" "$(live version)"
  all_undisturbed first second
}

@test "a drop-in adds another containerd, and reload reports it" {
  write conf.d/10-new.toml <<<"[handlers]
gvisor = \"new\"
[backends]
new = \"$DIR/containerd-2.sock\""
  equal "what reload prints" $'handler added: gvisor\nbackend added: new' "$(reload)"
  wait_for 60 "the new backend" is_backend new ready
  new_service third gvisor
  started_as third | keep_as started.third
  the_pods first second third
  equal "the pod's containerd" new "$(owner_name third)"
  all_undisturbed first second third
}

@test "SIGHUP moves the default: new pods go to the new containerd, the others stay on the old one" {
  sed -e 's/^runc = "old"/runc = "new"/' -e '1i watch = true' "$LIVE/criswitch.toml" | write criswitch.toml
  equal "what has changed" "$(printf '%s\n' 'handler moved: runc from old to new' \
    'backend retiring: old, which owns 2 pods and 2 containers' 'settings changed: watch')" \
    "$(what_changed kill -HUP "$(cat "$DIR/live.pid")")"
  equal "version" "$(crictl_at 2 version)" "$(live version)"
  new_service fourth ""
  started_as fourth | keep_as started.fourth
  the_pods first second third fourth
  equal "the pod's containerd" new "$(owner_name fourth)"
  equal "its handler" runc "$(live inspectp "$(kept pod.fourth)" | jq -r .status.runtimeHandler)"
  equal "old" '[true,2,2,false]' "$(backend_has old '[.retiring, .pods, .containers, .unnamed]')"
  equal "new" '[false,2,2,false]' "$(backend_has new '[.retiring, .pods, .containers, .unnamed]')"
  all_undisturbed first second third fourth
}

@test "a pod of the old containerd is stopped and removed, and is no longer counted" {
  end_service first
  the_pods second third fourth
  equal "old" '[true,1,1]' "$(backend_has old '[.retiring, .pods, .containers]')"
  all_undisturbed second third fourth
}

# without_old, with_old: removes or adds the line of the old containerd, which `watch` notices.
without_old() {
  grep -v '^old = ' "$LIVE/criswitch.toml" | write criswitch.toml
}

with_old() {
  sed "/^\[backends\]/a old = \"$DIR/containerd-1.sock\"" "$LIVE/criswitch.toml" | write criswitch.toml
}

@test "a containerd that no file names is kept for its pod" {
  equal "what has changed" "backend retiring: old, which owns 1 pod and 1 container
backend old is removed when its last pod ends" "$(what_changed without_old)"
  equal "old" "[true,1,true]" "$(backend_has old '[.retiring, .pods, .unnamed]')"
  the_pods second third fourth
  all_undisturbed second third fourth
  equal "what has changed" "nothing changed" "$(what_changed with_old)"
  equal "old" '[true,1,false]' "$(backend_has old '[.retiring, .pods, .unnamed]')"
}

@test "the empty old containerd is removed with its line" {
  end_service second
  equal "old" '[true,0,0]' "$(backend_has old '[.retiring, .pods, .containers]')"
  equal "pods of the old containerd" "" "$(pods_at 1)"
  equal "what has changed" "backend removed: old" "$(what_changed without_old)"
  equal "old" "" "$(backend_has old .)"
  equal "handlers" '["gvisor=new","runc=new"]' "$(handlers)"
  the_pods third fourth
  all_undisturbed third fourth
}

@test "criswitch is removed, and the new containerd has the same pods" {
  before=$(live pods -q --no-trunc | sort)
  ids=$(live ps -q --no-trunc | sort)
  end_program TERM load
  undisturbed node all old new
  longest=$(calls "$OK" | jq -s 'map(.ended - .began) | max')
  echo "# $(wc -l <"$CALLS") calls, none failed; the longest took $longest ms" >&3
  equal "exit code of criswitch" 0 "$(stop_switch live)"
  equal "pods" "$before" "$(pods_at 2)"
  equal "containers" "$ids" "$(crictl_at 2 ps -q --no-trunc | sort)"
  for name in third fourth; do
    equal "$name: its start" "$(kept "started.$name")" "$(started_as "$name")"
    equal "$name: exec" hi "$(crictl_at 2 exec "$(kept "main.$name")" echo hi)"
  done
}

@test "auto_register adds the handlers of a containerd to the table, also a later one" {
  # Start as on a new node. criswitch would keep the earlier backends, because they had pods.
  rm -r "$LIVE" "$DIR/live.sock.state"
  mkdir -p "$LIVE"
  write criswitch.toml <<<"listen = \"$DIR/live.sock\"
default_handler = \"runc\"
[handlers]
runc = \"third\"
[backends]
third = { socket = \"$DIR/containerd-3.sock\", auto_register = true }"
  start_live
  wait_for 60 "its handlers" has_handlers '["gvisor=third auto-registered","runc=third","runsc=third auto-registered"]'
  live runp --runtime gvisor "$(pod_config registered)"

  end_program TERM containerd-3
  cat >>"$DIR/containerd-3.toml" <<LATE

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.late]
runtime_type = "io.containerd.runc.v2"
options = { BinaryName = "/usr/sbin/runc", Root = "$DIR/containerd-3/runc", SystemdCgroup = false }
LATE
  launch_containerd 3
  wait_for 60 "the new handler" \
    has_handlers '["gvisor=third auto-registered","late=third auto-registered","runc=third","runsc=third auto-registered"]'
  pod=$(live runp --runtime late "$(pod_config late)")
  equal "handler of the pod" late "$(live inspectp "$pod" | jq -r .status.runtimeHandler)"

  end_program TERM containerd-3
  start_containerd 3
  wait_for 60 "the end of the handler" \
    has_handlers '["gvisor=third auto-registered","runc=third","runsc=third auto-registered"]'
  has "a pod for a handler that is gone" 'no runtime for \"late\" is configured' \
    "$(refusal_at live runp --runtime late "$(pod_config late-again)")"
  equal "pods" 2 "$(live pods -q | wc -l)"
  equal "exit code of criswitch" 0 "$(stop_switch live)"
}

# has_handlers JSON: succeeds when criswitch has exactly these handlers; a condition for wait_for.
has_handlers() {
  local seen
  seen=$(handlers) || { echo "$seen"; return 1; }
  echo "$seen"
  [ "$seen" = "$1" ]
}
