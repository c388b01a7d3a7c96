#!/usr/bin/env bash
# Tests the shipped units with a real systemd, in separate namespaces and on a separate root. Runs as root on Debian 12
# with Rust. Installs systemd, and the tools to boot it, if they are missing. Unpacks Debian's Prometheus into the cache.
set -eu

cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
[ "$(id -u)" = 0 ] || { echo "run these tests as root"; exit 1; }
if ! { [ -x /lib/systemd/systemd ] && type nsenter pgrep findmnt ip; } >/dev/null 2>&1; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends systemd util-linux procps iproute2
fi
PROMETHEUS_TOOLS=$(tests/system/prometheus/unpack.sh) cargo test --quiet --locked --test systemd -- --ignored
