"""Rich renderables as plain text."""

from __future__ import annotations

import io

from rich.console import Console


def rendered(thing, width=100):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(thing)
    return console.file.getvalue()
