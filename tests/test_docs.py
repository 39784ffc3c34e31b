"""Every block of the documentation runs, in order, against an engine."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from concur_agents.simulator.hosting import EmbeddedServer
from concur_agents.simulator.profiles import profile_named
from tests.test_readme import ROOT, python_blocks

ENGINE = "http://localhost:8000"
PAGES = sorted((ROOT / "docs").glob("*.md"))


async def run_blocks(page: Path, text: str, url: str) -> dict[str, Any]:
    """The names that the page's blocks leave behind; a block goes on where the one before ended."""
    names: dict[str, Any] = {"__name__": page.stem}
    for block in python_blocks(text):
        line = text[: text.index(block)].count("\n")
        source = "\n" * line + block.replace(ENGINE, url)  # a traceback shows the line on the page
        code = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        left = eval(code, names)
        if inspect.isawaitable(left):
            await left
        snapshot = names["controller"].snapshot()
        assert (snapshot.active, snapshot.open) == (0, 0), f"{page.name}:{line}: an agent is left"
    return names


def test_the_langgraph_page() -> None:
    page = ROOT / "docs" / "langgraph.md"
    text = page.read_text(encoding="utf-8")
    profile = replace(profile_named("cpu-tiny"), model="Qwen/Qwen3-32B")
    with EmbeddedServer(profile, speed=50) as server:
        names = asyncio.run(run_blocks(page, text, server.url))
    assert len(names["replies"]) == names["done"] == 8
    assert names["used"] > 0
    assert names["nodes"] == ["gate", "agent"]
    assert [event["concur"] for event in names["said"]] == ["admitted"]
    assert "__interrupt__" in names["stopped"]
    assert [message.content for message in names["resumed"]["messages"]][-1] == "yes"
    assert len(names["finished"]) == 8
    assert all(result.ok and not result.interrupted for result in names["results"])
    assert names["results"][3].value["messages"][-1].content == "yes"


def test_the_autogen_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "autogen.md"
    text = page.read_text(encoding="utf-8")
    profile = replace(profile_named("cpu-tiny"), model="Qwen/Qwen3-32B")
    with EmbeddedServer(profile, speed=200) as server:
        names = asyncio.run(run_blocks(page, text, server.url))
    assert [len(reply.messages) for reply in names["replies"]] == [5] * 8
    assert names["third"].messages[-1].source == "worker"
    assert names["going"].cancelled()
    assert "was not done after" in str(names["late"])
    assert names["failed"] == []
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 8
    assert names["loaded"].controller is names["controller"]


def test_links_lead_somewhere() -> None:
    assert PAGES
    for page in PAGES:
        for link in re.findall(r"\]\(([\w./-]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
