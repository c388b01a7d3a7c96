#!/usr/bin/env bash
# Changes real nodes with `criswitch node`, one alone and three of a cluster: systemd as process 1, two real containerds
# and a real kubelet as units, and a kube-apiserver outside of the nodes. Runs as root on Debian 12 with Rust and Go.
#
#   tests/system/node/run.sh [--cuts N] [--cycles N] [--faults all] [ARGUMENT...]
#
#   --cuts N       interrupt changes at N random moments; CRISWITCH_SEED repeats a run
#   --cycles N     install and uninstall N times
#   --faults all   interrupt at each boundary with every fault; by default at some boundaries, with one fault each
#
# The other arguments are those of tests/system/runtimes/run.sh, whose programs and images it uses.
set -eu

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
while [[ ${1:-} == --cuts || ${1:-} == --cycles || ${1:-} == --faults ]]; do
  name=${1#--}
  export "CRISWITCH_${name^^}=$2" CRISWITCH_LIMIT=24h
  shift 2
done
CHECKS=$HERE exec "$HERE/../runtimes/run.sh" "$@"
