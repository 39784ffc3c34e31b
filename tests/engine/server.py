"""A real vLLM on loopback, for tests and benchmarks, as a context manager or on the command line.

    python -m tests.engine.server                              # serves until Ctrl-C
    python -m tests.engine.server --kv-tokens 8192 -- concur bench --engine {url}

It stands beside the tests, not in the package: it runs a pinned environment of this repository that no user
of the package has. Users start their own vLLM or SGLang.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Self

from concur_agents.errors import ConcurError, check_whole
from tests.engine.leash import PATIENCE_SECONDS
from tests.engine.rig import HERE, Rig

MODEL = "tiny"
START_SECONDS = 300.0
"""It takes 25 to 45 s on two cores; a busy machine may need several times that."""


class EngineStartError(ConcurError, RuntimeError):
    """The engine is not installed, or did not come up."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Of the engine.

    Args:
        kv_tokens: KV cache in tokens, a multiple of the block size, at least one context of full length.
        block_size: KV block in tokens, a multiple of 32; 128 is vLLM's default on a CPU.
        max_model_len: Longest context in tokens, 1..32768.
        max_num_batched_tokens: Tokens of one engine step, >= 1: what a long prefill is cut into.
        port: 0 for any free one.
    """

    kv_tokens: int = 32_768
    block_size: int = 128
    max_model_len: int = 8192
    max_num_batched_tokens: int = 2048
    port: int = 0

    def __post_init__(self) -> None:
        check_whole("block_size", self.block_size, 1)
        check_whole("max_model_len", self.max_model_len, 1, 32_768)
        check_whole("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        reserved = self.block_size  # vLLM keeps one block for itself
        check_whole("kv_tokens", self.kv_tokens, self.max_model_len + reserved)
        check_whole("port", self.port, 0, 65_535)

    def arguments(self, model: Path, port: int) -> list[str]:
        """Of vLLM's server."""
        return [
            *("--model", str(model), "--served-model-name", MODEL, "--load-format", "dummy"),
            *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"),
            *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
            *("--block-size", str(self.block_size)),
            *("--num-gpu-blocks-override", str(self.kv_tokens // self.block_size)),
            *("--max-model-len", str(self.max_model_len)),
            *("--max-num-batched-tokens", str(self.max_num_batched_tokens)),
            # Random weights call a tool when a grammar makes them: tool_choice names it.
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
            *("--tool-strict-level", "parameter"),
            *("--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}'),
        ]


ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # adds /reset_prefix_cache
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


class VLLMServer:
    """vLLM as a child process. Use as `with`, or call `start` and `stop`.

    Args:
        settings: Of the engine.
        rig: Where it is installed; default: what CONCUR_ENGINE_VENV names, else .venv-engine.
        tell: Is told, in a line, what is going on.
    """

    model = MODEL

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        rig: Rig | None = None,
        tell: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        self.settings = settings or Settings()
        self._rig = rig or Rig.here()
        self._tell = tell
        self._process: subprocess.Popen[bytes] | None = None
        self._port = self.settings.port
        self.log = Path()
        """What the engine prints; exists once started, and stays."""

    @property
    def url(self) -> str:
        """Root URL; valid once started."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it and return once it answers.

        Raises:
            EngineStartError: Not installed, running already, ended, or no answer in time; names its log.
        """
        if self._process is not None:
            raise EngineStartError(f"vLLM runs already, on {self.url}: stop it first")
        if self._rig.missing:
            raise EngineStartError(self._rig.missing)
        self._port = self.settings.port or _free_port()
        handle, name = tempfile.mkstemp(prefix="concur-vllm-", suffix=".log")
        self.log = Path(name)
        command = ["-m", "vllm.entrypoints.openai.api_server"]  # its `vllm` script looks for another name
        command += self.settings.arguments(self._rig.model, self._port)
        with os.fdopen(handle, "wb") as log:
            self._process = subprocess.Popen(
                [self._rig.python, HERE / "leash.py", self._rig.python, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._rig.root,  # not the repository: its directories must not shadow packages
                env=os.environ | ENVIRONMENT,
            )
        try:
            self._await_health(self._process)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it and its children, and wait until they have ended. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        process.wait(PATIENCE_SECONDS + 10)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _await_health(self, process: subprocess.Popen[bytes]) -> None:
        began = told = time.monotonic()
        self._tell(f"vLLM is starting on {self.url}, half a minute or so; its log: {self.log}")
        while not self._is_healthy():
            now = time.monotonic()
            if process.poll() is not None:
                msg = f"vLLM ended with status {process.returncode} while it started.{self._last_lines()}"
                raise EngineStartError(msg)
            if now - began > START_SECONDS:
                msg = f"vLLM does not answer at {self.url} after {START_SECONDS:.0f} s.{self._last_lines()}"
                raise EngineStartError(msg)
            if now - told > 15:
                told = now
                self._tell(f"vLLM has been starting for {now - began:.0f} s")
            time.sleep(0.2)
        self._tell(f"vLLM answers on {self.url} after {time.monotonic() - began:.0f} s")

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _last_lines(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join([f" The end of its log, {self.log}:", *lines[-15:]])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.engine.server",
        description="Serve a tiny model with a real vLLM, for as long as COMMAND runs or until Ctrl-C.",
    )
    for field in fields(Settings):
        option = f"--{field.name.replace('_', '-')}"
        parser.add_argument(option, type=int, default=field.default, help="default: %(default)s")
    parser.add_argument("command", nargs="*", help="after `--`; {url} in it becomes the server's address")
    options = vars(parser.parse_args())
    command = options.pop("command")
    try:
        with VLLMServer(Settings(**options)) as server:
            if command:
                words = [word.replace("{url}", server.url) for word in command]
                return subprocess.run(words, check=False).returncode
            print(server.url, flush=True)
            while True:
                time.sleep(3600)
    except KeyboardInterrupt:
        return 130
    except ConcurError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
