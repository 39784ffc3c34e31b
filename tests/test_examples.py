"""The notebooks run from top to bottom and show what their text says."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(path: Path) -> None:
    for cell in read(path).cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)


@pytest.fixture(scope="module")
def executed() -> dict[str, nbformat.NotebookNode]:
    """All notebooks, run at the same time: they mostly wait for their engines."""

    async def execute(path: Path) -> nbformat.NotebookNode:
        notebook = read(path)
        where = {"metadata": {"path": str(EXAMPLES)}}
        await NotebookClient(notebook, timeout=100, resources=where).async_execute()
        return notebook

    async def main() -> list[nbformat.NotebookNode]:
        return await asyncio.gather(*map(execute, NOTEBOOKS))

    return dict(zip((path.stem for path in NOTEBOOKS), asyncio.run(main()), strict=True))


@pytest.mark.parametrize("name", [path.stem for path in NOTEBOOKS])
def test_teams_with_and_without_control(name: str, executed: dict[str, nbformat.NotebookNode]) -> None:
    notebook = executed[name]
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    shown = [output.data for output in outputs if "data" in output]
    table = re.sub(r"\x1b\[[0-9;]*m", "", shown[0]["text/plain"])
    (none, aimd) = (re.search(rf"{arm} +([\d.]+) +([\d.]+)x +([\d.]+)", table) for arm in ("none", "aimd"))
    assert none, table
    assert aimd, table
    assert float(aimd[2]) > 1, table  # times as fast
    assert float(aimd[3]) > float(none[3]) + 0.2, table  # hit rate
    assert "image/png" in shown[1]
