"""Draws what `criswitch status --watch` shows on a terminal before, during and after the failure of a backend."""

import io
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import termios

import node
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME
from rich.text import Text

COLUMNS = 90
COMMAND = "criswitch status --watch"
# The command clears the terminal before each screen.
CLEAR = "\x1b[2J\x1b[H"
# The number of screens to read before the failure, and again while the backend is down.
DOWN = 4


def screens(master):
    """Each screen that the command shows, as soon as the next one begins."""
    shown = ""
    while True:
        shown += os.read(master, 65536).decode().replace("\r\n", "\n")
        *whole, shown = shown.split(CLEAR)
        yield from filter(None, whole)


def is_down(screen):
    return re.search(r"^kata +.*down", screen, re.MULTILINE)


def record():
    """The screens to show, each with what has happened before it."""
    runtimes = node.start()
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (50, COLUMNS))
    subprocess.Popen([node.CRISWITCH, *COMMAND.split()[1:]], stdout=slave, stderr=slave)
    shown = screens(master)
    for _ in range(DOWN):
        ready = next(shown)
    yield f"$ {COMMAND}", ready
    runtimes.send_signal(signal.SIGUSR1)
    for _ in range(DOWN):
        down = next(screen for screen in shown if is_down(screen))
    yield "# The runtime of the backend kata was killed. Lists have its pods from the cache.", down
    runtimes.send_signal(signal.SIGUSR2)
    yield "# The runtime has started again.", next(screen for screen in shown if not is_down(screen))


def main(path):
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
    for note, screen in record():
        console.print(Text(note, style="bold"))
        console.print(Text.from_ansi(screen))
    svg = console.export_svg(title=COMMAND, theme=DEFAULT_TERMINAL_THEME, unique_id="status")
    # Remove the fonts that rich would load from another host. Every browser has a font for terminals.
    svg = re.sub(r" *@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)
    pathlib.Path(path).write_text(svg)


main(*sys.argv[1:])
