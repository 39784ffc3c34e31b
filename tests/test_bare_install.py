"""The core without the extras: it imports, and what needs an extra says which one."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement

EXTRAS = (
    "anyio",
    "autogen_agentchat",
    "autogen_core",
    "langchain",
    "langchain_core",
    "langchain_openai",
    "langgraph",
    "matplotlib",
    "openai",
    "pydantic",
    "rich",
    "starlette",
    "typer",
    "uvicorn",
)

CORE = (
    "concur_agents",
    "concur_agents.blocking",
    "concur_agents.controller",
    "concur_agents.policies",
    "concur_agents.telemetry",
)

_WITHOUT_EXTRAS = f"""
import importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


def without_extras(code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter that finds none of the extras."""
    program = _WITHOUT_EXTRAS + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("module", CORE)
def test_the_core_imports(module: str) -> None:
    done = without_extras(f"import {module}")
    assert done.returncode == 0, done.stderr


def test_an_agent_runs() -> None:
    done = without_extras("""
        import asyncio
        from concur_agents.controller import Controller

        async def main():
            async with Controller(capacity_tokens=1000) as concur, concur.agent("a") as agent:
                async with agent.step() as step:
                    step.record({"prompt_tokens": 10, "completion_tokens": 2})
            print(concur.snapshot().admitted)

        asyncio.run(main())
        """)
    assert done.stdout.strip() == "1", done.stderr


def test_the_command_line_names_the_extra() -> None:
    done = without_extras("""
        sys.argv = ["concur", "--help"]
        from concur_agents.cli import main
        main()
        """)
    assert done.returncode != 0
    assert "pip install 'concur-agents[bench]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_only_an_http_client_and_a_metrics_parser_are_required() -> None:
    required = [Requirement(line) for line in requires("concur-agents") or ()]
    assert {r.name for r in required if r.marker is None} == {"aiohttp", "prometheus-client"}
