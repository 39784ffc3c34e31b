"""The public surface, type-checked as a user's own strict project would be."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.timeout(400)  # without a cache it checks the frameworks' types first
def test_a_users_project_passes_the_strict_type_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = pytest.importorskip("mypy.api")
    monkeypatch.chdir(tmp_path)  # none of this repository's settings
    projects = ["users_project.py", "autogen_project.py"]
    for name in projects:
        (tmp_path / name).write_text((HERE / name).read_text())
    # A cache that outlives the run: the frameworks' own types take most of the time.
    cache = HERE.parents[1] / ".mypy_cache" / "users_project"
    report, errors, status = api.run(["--strict", "--cache-dir", str(cache), *projects])
    assert (status, errors) == (0, ""), report
