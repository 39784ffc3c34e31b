"""Tools seen where they run: their names, their times, and those that take a time out of all proportion.

Admission needs none of it: a boundary begins with the end of a model call and ends with the next one. It is
for the eyes (`ToolStarted`, `ToolEnded` events), and for tools during which a place should not be kept.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, TypeVar

from autogen_core.tools import Tool, Workbench

from concur_agents import Controller, InvalidValueError
from concur_agents.scopes import current_scope
from concur_autogen.tool_calls import ToolCalls
from concur_autogen.trajectories import trajectories_of

Used = TypeVar("Used", bound=Tool | Workbench)

_HOOKED = "_concur_boundaries"
"""Attribute of a tool or workbench that has its hooks."""


def with_boundaries(used: Used, *, gives_back: bool = False) -> Used:
    """Let the surrounding trajectory's controller know when `used` runs. Answers the same object.

    Its methods are hooked, not replaced: it stays of its class, with its schema, and can be dumped. Doing it
    again only changes `gives_back`. Outside a trajectory nothing happens.

    Args:
        used: A tool, or a workbench (of MCP servers, say), whose tools are then told apart by name.
        gives_back: Give the place back while it runs: for a human, or a job of hours. The next step queues
            again, before agents that have not started.

    Raises:
        InvalidValueError: it is neither a tool nor a workbench.
    """
    if isinstance(used, Workbench):
        hooks = {"call_tool": _named_by_argument, "call_tool_stream": _named_by_argument}
    elif isinstance(used, Tool):
        hooks = {"run_json": _named_by_itself(used), "run_json_stream": _named_by_itself(used)}
    else:
        msg = f"used={used!r} is not usable: expected an AutoGen tool or workbench"
        raise InvalidValueError(msg)
    hooked = getattr(used, _HOOKED, None)
    setattr(used, _HOOKED, gives_back)
    if hooked is None:
        for method, name_of in hooks.items():
            if hasattr(used, method):
                setattr(used, method, _hook(used, method, name_of))
    return used


def _named_by_argument(*args: Any, **kwargs: Any) -> str:  # noqa: ANN401
    return str(args[0] if args else kwargs.get("name"))


def _named_by_itself(tool: Tool) -> Callable[..., str]:
    return lambda *args, **kwargs: tool.name


def _hook(used: Any, method: str, name_of: Callable[..., str]) -> Callable[..., Any]:  # noqa: ANN401
    original = getattr(used, method)

    if method.endswith("_stream"):

        @functools.wraps(original)
        async def streaming(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:  # noqa: ANN401
            async with (
                _watched(used, name_of(*args, **kwargs), kwargs.get("call_id")),
                contextlib.aclosing(original(*args, **kwargs)) as stream,
            ):
                async for item in stream:
                    yield item

        return streaming

    @functools.wraps(original)
    async def calling(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        async with _watched(used, name_of(*args, **kwargs), kwargs.get("call_id")):
            return await original(*args, **kwargs)

    return calling


@contextlib.asynccontextmanager
async def _watched(used: object, name: str, call_id: str | None) -> AsyncIterator[None]:
    scope = current_scope()
    if scope is None or scope.over or not isinstance(scope.controller, Controller):
        yield
        return
    controller, agent_id = scope.controller, scope.agent_id
    if getattr(used, _HOOKED):
        controller.give_back(agent_id)
    trajectory = trajectories_of(controller).get(agent_id)
    if trajectory is None or call_id is None:  # not a model's call: nobody else sees it
        calls, call_id = ToolCalls(), ""
    else:
        calls = trajectory.tool_calls
    if calls.inside(call_id):
        yield
        return
    if calls.began(call_id):
        controller.tool_started(agent_id, name)
    began, failed = controller.gate.now(), True
    try:
        yield
        failed = False
    finally:
        calls.ended(call_id)
        controller.tool_ended(agent_id, name, controller.gate.now() - began, failed=failed)
