"""Where the real engine is installed, and whether it is. Needs nothing but the standard library."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
VARIABLE = "CONCUR_ENGINE_VENV"
"""Names another environment than .venv-engine, to share one between clones."""


@dataclass(frozen=True, slots=True)
class Rig:
    """An environment with vLLM in it and the model beside it."""

    root: Path

    @classmethod
    def here(cls) -> Rig:
        """The one that CONCUR_ENGINE_VENV names, else this clone's."""
        repository = HERE.parents[1]
        return cls(repository / os.environ.get(VARIABLE, ".venv-engine"))

    @property
    def python(self) -> Path:
        """The interpreter that has vLLM."""
        return self.root / "bin" / "python"

    @property
    def model(self) -> Path:
        """Directory of the tiny model."""
        return self.root / "tiny-qwen3"

    @property
    def stamp(self) -> Path:
        """A copy of what it was made from; another content means that it is out of date."""
        return self.root / "made-from.txt"

    @property
    def missing(self) -> str:
        """Why it cannot be used and what to do; empty when it can."""
        if not self.stamp.exists():
            return f"there is no real engine in {self.root}: `make engine` installs one (3 GB, 2 minutes)"
        if self.stamp.read_text(encoding="utf-8") != recipe():
            return f"the real engine in {self.root} is out of date: `make engine` renews it"
        return ""


def recipe() -> str:
    """What a rig is made from: the releases and the model."""
    return "".join((HERE / name).read_text(encoding="utf-8") for name in ("requirements.txt", "model.py"))
