"""Gating everything in a block of code, without touching it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from langchain_core.tracers.context import register_configure_hook

from concur_agents.controller import Controller
from concur_langgraph.handler import ConcurCallbackHandler

_handler: ContextVar[ConcurCallbackHandler | None] = ContextVar("concur_scope", default=None)
register_configure_hook(_handler, inheritable=True)


@contextmanager
def concur_scope(controller: Controller) -> Iterator[Controller]:
    """Gate every graph, agent and model that is started inside the block, as `gated` would.

        with concur_scope(controller):
            await agent.abatch(inputs)          # nothing below changes

    It follows the context: tasks and `asyncio.to_thread` started in the block are in it, other threads are
    not. What was started in it stays gated after it; a stream starts when its first item is asked for. A
    scope in a scope replaces it for what is started there. It may be combined with `gated`.
    """
    token = _handler.set(ConcurCallbackHandler(controller))
    try:
        yield controller
    finally:
        _handler.reset(token)
