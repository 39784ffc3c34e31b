"""What README and CONTRIBUTING say exists does."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

from concur_agents.bench.summary import put_into, summary

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def python_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", python_blocks(README))
def test_python_blocks_compile_and_import_what_exists(block: str) -> None:
    tree = compile(block, "README.md", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert imports
    for node in imports:
        module = importlib.import_module(str(node.module))
        for alias in node.names:
            assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"


def test_the_first_commands_are_demo_and_test() -> None:
    commands = re.findall(r"^\$ (make \w+)", README, re.MULTILINE)
    assert commands[:2] == ["make demo", "make test"]


def test_make_targets_exist() -> None:
    named = set(re.findall(r"(?:`|^\$ )make ([a-z-]+)\b", README + CONTRIBUTING, re.MULTILINE))
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    assert {"demo", "test", "lint"} <= named <= targets


def test_the_oldest_releases_tested_are_those_declared() -> None:
    declared = dict(
        re.findall(r'"(langgraph|langchain-core)>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    )
    tested = dict(
        re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / "tests" / "oldest.txt").read_text(), re.MULTILINE)
    )
    assert declared == tested


def test_links_and_the_map_name_files_that_exist() -> None:
    links = re.findall(r"\]\(([\w./]+)\)", README + CONTRIBUTING)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link
    for room in re.findall(r"^    ([a-z_]+(?:\.py|/)) ", CONTRIBUTING, re.MULTILINE):
        assert any((ROOT / top / room).exists() for top in ("concur_agents", "integrations", "tests")), room


def test_every_figure_in_the_readme_is_what_the_result_files_say() -> None:
    assert put_into(README, summary(ROOT / "benchmarks" / "results")) == README
