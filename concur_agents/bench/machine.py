"""Where a result was measured: without it a figure in a file means little."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

_PACKAGES = (
    "concur-agents",
    "aiohttp",
    "anyio",
    "autogen-agentchat",
    "langchain-openai",
    "langgraph",
    "openai",
    "uvicorn",
)


def machine() -> dict[str, Any]:
    """Interpreter, processor and the versions of what takes part."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "versions": versions,
    }
