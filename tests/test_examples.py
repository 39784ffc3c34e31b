"""The notebooks run from top to bottom and show what their text says."""

from __future__ import annotations

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


@pytest.mark.parametrize("name", ["langgraph_supervisor", "autogen_team"])
def test_teams_with_and_without_control(name: str) -> None:
    notebook = read(EXAMPLES / f"{name}.ipynb")
    client = NotebookClient(notebook, timeout=90, resources={"metadata": {"path": str(EXAMPLES)}})
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    shown = [output.data for output in outputs if "data" in output]
    table = re.sub(r"\x1b\[[0-9;]*m", "", shown[0]["text/plain"])
    (none, aimd) = (re.search(rf"{arm} +([\d.]+) +([\d.]+)x +([\d.]+)", table) for arm in ("none", "aimd"))
    assert none, table
    assert aimd, table
    assert float(aimd[2]) > 1, table  # times as fast
    assert float(aimd[3]) > float(none[3]) + 0.2, table  # hit rate
    assert "image/png" in shown[1]
