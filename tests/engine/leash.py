"""Runs a command in a process group of its own and ends the group once standard input closes.

The other end of that pipe is held by whoever started this. However that process ends, even by SIGKILL, the
system closes the pipe, so no engine is ever left behind. Standard library only: the engine's Python runs it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

PATIENCE_SECONDS = 10.0
"""For an orderly end, before the group is killed."""


def main() -> None:
    """Run `sys.argv[1:]`; exits with its status."""
    os.setsid()
    command = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    threading.Thread(target=end_with_stdin, args=(command,), daemon=True).start()
    status = command.wait()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)  # children that it left
    sys.exit(status if status >= 0 else 128 - status)


def end_with_stdin(command: subprocess.Popen[bytes]) -> None:
    """Wait for the pipe to close; then the command first, and its children whatever it did."""
    while os.read(0, 1):  # not sys.stdin, whose lock would be held at exit
        pass
    command.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        command.wait(PATIENCE_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
