# The boot after a power cut, while `criswitch node` changed the node. The share's file `changed` has the output of the
# change, and `change` the arguments of the next change.

load ../runtimes/checks/helpers.bash
load machine.bash
load node.bash

setup_file() {
  # The unit that undoes the change at a boot may still run.
  wait_for 300 "the end of the undo" remove_rest
}

@test "after a power cut in a change the node is as before or as after, and its pods run" {
  show "the output of the change ends with: $(tail -n 1 /share/changed)"
  wait_for 600 "a whole node" is_whole
  show "$(node status | paste -sd ' ')"
}

@test "the node gets ready for the next change" {
  local next=uninstall
  grep -q ^apply /share/change || next="apply --spec /root/spec.toml"
  wait_for 120 "a plan that rejects nothing" would_change
  # shellcheck disable=SC2086 # The words of the command.
  node $next
  wait_for 300 "a whole node" is_whole
  wait_for 120 "a plan that rejects nothing" would_change
}
