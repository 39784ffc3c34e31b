"""The idiomatic surface of `create_agent`: tags requests, and tells the user that an agent waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import quote

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain.tools.tool_node import ToolCallRequest
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config
from langgraph.types import Command

from concur_agents.controller import Controller
from concur_langgraph.lookup import enclosing
from concur_langgraph.runs import SESSION_ID, Run
from concur_langgraph.waiting import announced

_HEADER = "X-Session-ID"

ToolResult = ToolMessage | Command[Any]


class ConcurMiddleware(AgentMiddleware[Any, Any]):
    """Makes admission visible in a `create_agent` agent. The agent has to be gated as well.

        agent = create_agent(model, tools, middleware=[ModelRetryMiddleware(), ConcurMiddleware(controller)])
        agent = gated(agent, controller)

    - The requests of an OpenAI-compatible model carry the header `X-Session-ID` (vLLM: `session_id` of the
      request), the same for all steps of a conversation.
    - `stream_mode="custom"` yields `{"concur": "queued" | "admitted", "agent_id": ...}` for each model call
      ("queued" only where it has to wait), and `{"concur": "boundary", "agent_id": ..., "tool": ...}` for
      each tool call.

    Admission itself is the handler's that `gated` or `concur_scope` attaches: no hook of a middleware sees
    how a run ends, nor the calls that tools and other middleware make, so on its own this one would keep the
    place of every run that is cancelled or interrupted. Without the handler the first model call raises.

    Order: last in the list, the innermost. Inside retry and fallback middleware each attempt is tagged and
    announced, and the pauses between them are boundaries; inside one that edits the request it tags what is
    sent. The call of a summarisation middleware runs before the model node: it is admitted, not tagged.

    Args:
        controller: Who admits; None for the one that gates the agent.
        session_header: Whether to send `X-Session-ID`.
    """

    def __init__(self, controller: Controller | None = None, *, session_header: bool = True) -> None:
        super().__init__()
        self.controller = controller
        self.session_header = session_header

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Tag the request, announce its admission.

        Raises:
            InvalidValueError: the agent is not gated by the same controller.
        """
        config, run = self._where()
        with self._announced(request, run):
            return handler(self._tagged(request, config, run))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """As `wrap_model_call`."""
        config, run = self._where()
        with self._announced(request, run):
            return await handler(self._tagged(request, config, run))

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolResult]
    ) -> ToolResult:
        """Announce the boundary."""
        self._mark(request)
        return handler(request)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolResult]]
    ) -> ToolResult:
        """Announce the boundary."""
        self._mark(request)
        return await handler(request)

    def _where(self) -> tuple[RunnableConfig, Run]:
        config = get_config()
        return config, enclosing(config, self.controller, self.name)[1]

    def _announced(self, request: ModelRequest[Any], run: Run) -> AbstractContextManager[None]:
        write, agent_id = request.runtime.stream_writer, run.trajectory.agent_id
        return announced(lambda what: write({"concur": what, "agent_id": agent_id}))

    def _mark(self, request: ToolCallRequest) -> None:
        _, run = self._where()
        mark = {"concur": "boundary", "agent_id": run.trajectory.agent_id, "tool": request.tool_call["name"]}
        request.runtime.stream_writer(mark)

    def _tagged(self, request: ModelRequest[Any], config: RunnableConfig, run: Run) -> ModelRequest[Any]:
        if not (self.session_header and _speaks_openai(request.model)):
            return request
        session = config.get("metadata", {}).get(SESSION_ID) or config.get("configurable", {}).get(
            "thread_id"
        )
        # A header holds ASCII only.
        value = quote(str(session or run.trajectory.agent_id), safe=" !#$%&'()*+,/:;=?@[]^`{|}~")
        headers = {_HEADER: value, **(request.model_settings.get("extra_headers") or {})}
        return request.override(model_settings={**request.model_settings, "extra_headers": headers})


def _speaks_openai(model: object) -> bool:
    """By name: langchain-openai need not be installed."""
    return any(kind.__name__ == "BaseChatOpenAI" for kind in type(model).__mro__)
