"""Other systems, measured with the same agents: a router or proxy in front of the engine."""

from __future__ import annotations

from dataclasses import dataclass

from concur_agents.errors import InvalidValueError

VIA = "via"
"""An arm of this name sends its calls through the router; "via:POLICY" is admitted by us as well."""


@dataclass(frozen=True, slots=True)
class Router:
    """Where it listens, and how it learns which agent a call belongs to.

    Args:
        url: Its root, such as http://localhost:9000; it serves the OpenAI API under /v1.
        header: Request header that carries the agent's id; empty for none.
        field: Field of the request's body that carries it, too; empty for none.
    """

    url: str
    header: str = "X-Session-ID"
    field: str = "session_id"

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            msg = f"via={self.url!r} is no address: expected one such as http://localhost:9000"
            raise InvalidValueError(msg)
        object.__setattr__(self, "url", self.url.rstrip("/").removesuffix("/v1"))

    def headers(self, agent_id: str) -> dict[str, str]:
        """Of a call of `agent_id`."""
        return {self.header: agent_id} if self.header else {}

    def fields(self, agent_id: str) -> dict[str, str]:
        """To be added to the body of a call of `agent_id`."""
        return {self.field: agent_id} if self.field else {}


def policy_of(arm: str) -> str:
    """The policy that an arm's calls are admitted by."""
    if arm == VIA:
        return "none"
    return arm.removeprefix(f"{VIA}:")


def is_via(arm: str) -> bool:
    """Whether an arm goes through the router."""
    return arm == VIA or arm.startswith(f"{VIA}:")
