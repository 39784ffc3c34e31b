"""Control laws: signals in, window out. One law a file."""

from __future__ import annotations

from collections.abc import Callable

from concur_agents.errors import InvalidValueError
from concur_agents.policies.aimd import AIMD
from concur_agents.policies.base import Policy
from concur_agents.policies.headroom import Headroom
from concur_agents.policies.request_limit import RequestLimit
from concur_agents.policies.static import Static
from concur_agents.policies.unlimited import Unlimited

_PLAIN: dict[str, Callable[[], Policy]] = {
    "none": Unlimited,
    "headroom": Headroom,
    "aimd": AIMD,
    "aimd-seed": AIMD.seed,
    "aimd-paper": AIMD.paper,
}
_COUNTED: dict[str, Callable[[int], Policy]] = {"requests": RequestLimit, "static": Static}
KNOWN = ("none", "requests:N", "static:N", "headroom", "aimd", "aimd-seed", "aimd-paper")
"""What `parse` understands."""


def parse(spec: str) -> Policy:
    """A policy from its name in tables, such as "none", "requests:6", "static:6" or "aimd"; see `KNOWN`.

    Raises:
        InvalidValueError: unknown name or N; the message lists what is known.
    """
    name, colon, count = spec.partition(":")
    if not colon and name in _PLAIN:
        return _PLAIN[name]()
    if colon and name in _COUNTED and count.isdecimal() and int(count):
        return _COUNTED[name](int(count))
    msg = f"policy={spec!r} is unknown: expected one of {', '.join(KNOWN)}, with N a whole number >= 1"
    raise InvalidValueError(msg)


__all__ = ["AIMD", "KNOWN", "Headroom", "Policy", "RequestLimit", "Static", "Unlimited", "parse"]
