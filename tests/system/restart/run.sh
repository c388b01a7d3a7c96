#!/usr/bin/env bash
# Restarts criswitch 60 times, or 200 times with CRISWITCH_NIGHTLY=1, while the test holds the socket. The load comes
# from tonic's client, and from the client library of the kubelet and crictl. No call may fail. Needs Rust and Go. Build
# results are kept in ${CRISWITCH_CACHE:-~/.cache/criswitch}.
set -eu

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
CACHE=${CRISWITCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/criswitch}

mkdir -p "$CACHE"
cd "$TOP/tests/system/restart/client"
[ -z "${CRISWITCH_NIGHTLY:-}" ] || go vet ./...
go build -trimpath -mod=readonly -o "$CACHE/restarts-client" .
cd "$TOP"
RESTARTS_CLIENT=$CACHE/restarts-client cargo test --quiet --locked --test restart -- --ignored --nocapture
