"""A node for the pictures: three simulated runtimes, a client that calls them as a kubelet does, and the daemon between.
Needs namespaces of its own with an empty /run and an /etc that it may write: draw.sh makes them."""

import os
import pathlib
import subprocess
import time

CRISWITCH = os.environ["CRISWITCH"]
TEXT = """\
default_handler = "runc"

[handlers]
runc   = "containerd"
kata   = "kata"
gvisor = { backend = "crio", handler = "runsc" }

[backends]
containerd = "/run/containerd/containerd.sock"
kata       = "/run/kata/kata.sock"
crio       = "/run/crio/crio.sock"

[metrics]
listen = "127.0.0.1:9199"
"""
PATIENCE = 30


def start():
    """Starts the node and waits until all backends are ready. SIGUSR1 to the process that this returns kills the runtime
    of the backend kata, SIGUSR2 starts it again."""
    config = pathlib.Path("/etc/criswitch/criswitch.toml")
    config.parent.mkdir(exist_ok=True)
    config.write_text(TEXT)
    runtimes = subprocess.Popen([os.environ["RUNTIMES"], "/run"])
    subprocess.Popen([CRISWITCH, "serve"], stderr=subprocess.DEVNULL)
    latest = time.monotonic() + PATIENCE
    while subprocess.run([CRISWITCH, "status"], capture_output=True).returncode != 0:
        if time.monotonic() > latest:
            raise TimeoutError("the backends are not ready")
    return runtimes
