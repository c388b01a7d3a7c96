#!/usr/bin/env bash
# The shipped units in a real systemd, in namespaces and on a root of its own. As root, on Debian 12 with Rust; installs
# systemd and what boots it, if they are missing.
set -eu

cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
[ "$(id -u)" = 0 ] || { echo "these tests must be root"; exit 1; }
if ! { [ -x /lib/systemd/systemd ] && command -v nsenter pgrep findmnt; } >/dev/null; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends systemd util-linux procps
fi
cargo test --quiet --locked --test systemd -- --ignored
