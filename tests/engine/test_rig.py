"""The rig without an engine: what it says when it is missing; nothing it starts outlives its holder."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from concur_agents.errors import InvalidValueError
from tests.engine.rig import HERE, Rig, recipe
from tests.engine.server import EngineStartError, Settings, VLLMServer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="vLLM for CPUs is installed on Linux only")

LEASH = HERE / "leash.py"
GRANDCHILD = """
import subprocess, sys
child = subprocess.Popen(["sleep", "60"])
print(child.pid, flush=True)
child.wait()
"""
HOLDER = f"""
import subprocess, sys
held = subprocess.Popen([sys.executable, {str(LEASH)!r}, sys.executable, "-c", {GRANDCHILD!r}],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print(held.stdout.readline().decode(), flush=True)
sys.stdin.read()
"""


def test_nothing_outlives_a_holder_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        child = int(holder.stdout.readline())
        ended = os.pidfd_open(child)
        holder.kill()
    try:
        assert select.select([ended], [], [], 10)[0], f"{child} still runs"
    finally:
        os.close(ended)


def test_the_leash_hands_on_the_status() -> None:
    command = [sys.executable, LEASH, sys.executable, "-c", "raise SystemExit(3)"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as leash:
        assert leash.wait(10) == 3


def test_an_engine_that_is_not_there_or_out_of_date_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(EngineStartError, match=r"no real engine in .*: `make engine` installs one"):
        VLLMServer(rig=Rig(tmp_path)).start()
    (tmp_path / "made-from.txt").write_text("something older")
    with pytest.raises(EngineStartError, match="is out of date: `make engine` renews it"):
        VLLMServer(rig=Rig(tmp_path)).start()


def test_an_engine_that_dies_at_once_shows_its_log(tmp_path: Path) -> None:
    (tmp_path / "made-from.txt").write_text(recipe())
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)  # which has no vLLM
    with pytest.raises(EngineStartError, match=r"(?s)ended with status 1 .*\.log:.*No module named 'vllm'"):
        VLLMServer(rig=Rig(tmp_path), tell=lambda line: None).start()


def test_a_cache_that_holds_no_context_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="kv_tokens=8192 is out of range"):
        Settings(kv_tokens=8192, max_model_len=8192)
