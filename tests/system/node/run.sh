#!/usr/bin/env bash
# Changes a real node with `criswitch node`: systemd as process 1, two real containerds and a real kubelet as units, and
# a kube-apiserver outside of the node. Runs as root on Debian 12 with Rust and Go. Takes the options of
# tests/system/runtimes/run.sh, whose programs and images it uses. CRISWITCH_STRIDE=1 kills an apply at each moment.
set -eu

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CHECKS=$HERE exec "$HERE/../runtimes/run.sh" "$@"
