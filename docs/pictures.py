"""Take the pictures of the README: ``python docs/pictures.py`` (two minutes).

``demo.svg`` is the screen of ``fluxqueue demo`` in a terminal of 110 by 36, at the moment of its
last scene with the most running pods. ``policies.svg`` is what the simulator draws of the workload
on docs/admin/policies.md.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pyte
from rich.console import Console
from rich.text import Text

FOLDER = Path(__file__).with_name("pictures")
WIDTH, HEIGHT = 110, 36
SCENE = "3. "
NODES = 20
"""Nodes of that scene."""
POLICIES = "fcfs,easy,conservative"
SIM = ("sim", "--seed", "1", "--jobs", "60", "--nodes", "8", "--policy", POLICIES, "--out")
COLOURS = {"brown": "yellow", "brightbrown": "bright_yellow", "default": ""}
"""Those of pyte that rich calls otherwise."""


def best_screen() -> Text:
    """Play the demo, and return the fullest screen of its third scene."""
    screen = pyte.Screen(WIDTH, HEIGHT)
    stream = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    environ = {**os.environ, "TERM": "xterm-256color", "COLORTERM": ""}
    command = [sys.executable, "-m", "fluxqueue", "demo"]
    best, most, is_last = Text(""), -1, False
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=environ):
        os.close(theirs)
        while data := _read(ours):
            stream.feed(data)
            shown = "\n".join(screen.display)
            is_last = is_last or any(line.startswith(SCENE) for line in screen.display)
            running = re.search(r"pods (\d+) running", shown)
            # A part of a frame may have been read: a whole one has the bars of all nodes.
            is_whole = len(set(re.findall(r"node-\d+ +[^ \w]* *\d+/\d+", shown))) >= NODES
            if is_last and is_whole and running and int(running[1]) > most:
                best, most = _as_text(screen), int(running[1])
    return best


def _read(source: int) -> bytes:
    try:
        return os.read(source, 65536)
    except OSError:
        return b""  # the other side has closed it


def _as_text(screen: pyte.Screen) -> Text:
    lines = Text()
    for row in range(HEIGHT):
        for column in range(WIDTH):
            cell = screen.buffer[row][column]
            colour = COLOURS.get(cell.fg, cell.fg)
            colour = f"#{colour}" if re.fullmatch(r"[0-9a-f]{6}", colour) else colour
            style = f"{'bold ' if cell.bold else ''}{colour.replace('bright', 'bright_')}"
            lines.append(cell.data, style.replace("__", "_").strip())
        lines.append("\n")
    return lines


def main() -> None:
    """Write both."""
    FOLDER.mkdir(exist_ok=True)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), color_system="truecolor")
    console.print(best_screen())
    picture = console.export_svg(title="make demo")
    # Fonts come from the reader's machine, not from others.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    (FOLDER / "demo.svg").write_text(picture, encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "fluxqueue", *SIM, str(FOLDER / "policies.svg")], check=True
    )


if __name__ == "__main__":
    main()
