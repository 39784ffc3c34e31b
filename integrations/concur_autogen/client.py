"""The enforcing surface: a model client that waits for admission before each call.

It wraps any `ChatCompletionClient`; agents and teams use it like the one inside. A call's end is a boundary,
however it ends: a result, an error, a cancelled token or task, a stream that is closed, dropped or fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import warnings
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Literal, Self

from autogen_core import CancellationToken, Component, ComponentModel
from autogen_core.models import (
    ChatCompletionClient,
    CreateResult,
    LLMMessage,
    ModelCapabilities,  # type: ignore[deprecated, unused-ignore]
    ModelInfo,
    RequestUsage,
)
from autogen_core.tools import Tool, ToolSchema
from pydantic import BaseModel

from concur_agents import Controller, InvalidValueError
from concur_autogen.registry import name_of, registered
from concur_autogen.trajectories import Call, trajectories_of
from concur_autogen.usage import Meter, reported

_REFUSALS = (400, 422)
"""What servers answer to a field that they do not know."""

ToolChoice = Tool | Literal["auto", "required", "none"]


class ConcurClientConfig(BaseModel):
    """What a `ConcurChatCompletionClient` is made from."""

    client: ComponentModel
    """The wrapped client."""
    controller: str = "default"
    """Name that the controller is registered under (`concur_autogen.register`)."""
    agent_id: str | None = None
    """Trajectory of all its calls; None: found out at each call."""
    session_field: str = "session_id"
    """Field of the request's body that carries the trajectory's id; empty: none (AutoGen dumps no nulls)."""


class ConcurChatCompletionClient(ChatCompletionClient, Component[ConcurClientConfig]):
    """A model client whose calls are admitted, agent by agent, by a concur-agents controller.

    Wrap a client once and give it to all agents and teams. What is one agent for the controller: what runs in
    one `concur_autogen.run(...)` or `async with controller.agent(...)`, with everything nested in it. Without
    either it is a team, or the asyncio task that calls. Each conversation in it counts as a context of its
    own.

    A cache goes outside, `ChatCompletionCache(ConcurChatCompletionClient(client, controller))`: a hit then
    needs no place.

    Args:
        client: The client to wrap. One of the OpenAI family is asked for usage on streams.
        controller: Who admits.
        agent_id: Trajectory of all calls of this client, for places where neither scope nor team can be seen,
            such as one runtime shared by many; see `for_agent`.
        session_field: Where a client of the OpenAI family puts the trajectory's id into the request's body,
            for engines and routers that know sessions (vLLM: `session_id`); None sends none.

    Raises:
        InvalidValueError: an argument is not usable.

    Example:
        .. code-block:: python

            client = ConcurChatCompletionClient(OpenAIChatCompletionClient(...), controller)
            agent = AssistantAgent("writer", client)
            result = await run(controller, agent, task="Write a haiku about queues.")
    """

    component_type = "model"
    component_config_schema = ConcurClientConfig
    component_provider_override = "concur_autogen.ConcurChatCompletionClient"

    def __init__(
        self,
        client: ChatCompletionClient,
        controller: Controller,
        *,
        agent_id: str | None = None,
        session_field: str | None = "session_id",
    ) -> None:
        if not isinstance(client, ChatCompletionClient):
            msg = f"client={client!r} is not usable: expected an AutoGen ChatCompletionClient"
            raise InvalidValueError(msg)
        if not isinstance(controller, Controller):
            msg = f"controller={controller!r} is not usable: expected a concur_agents.Controller"
            raise InvalidValueError(msg)
        if agent_id is not None and (not isinstance(agent_id, str) or not agent_id):
            msg = f"agent_id={agent_id!r} is not usable: expected a non-empty string, or None"
            raise InvalidValueError(msg)
        self.client = client
        """The wrapped client."""
        self.controller = controller
        """Who admits."""
        self.agent_id = agent_id
        """Trajectory of all calls, if it was named."""
        self._session_field = session_field
        self._is_openai = _of_openai_family(client)
        self._meter = Meter()
        self._trajectories = trajectories_of(controller)

    def for_agent(self, agent_id: str) -> ConcurChatCompletionClient:
        """The same client for one trajectory by name, whoever calls it.

        If that is open as `controller.agent(agent_id)` or `run(..., agent_id=...)`, calls belong to it, and
        are refused after it. Otherwise it begins with its first call and ends with `close`, or when it was
        not used for ten minutes.
        """
        client = ConcurChatCompletionClient(
            self.client, self.controller, agent_id=agent_id, session_field=self._session_field
        )
        client._meter = self._meter
        return client

    # ---- calls ----------------------------------------------------------------------------------

    async def create(
        self,
        messages: Sequence[LLMMessage],
        *,
        tools: Sequence[Tool | ToolSchema] = [],
        tool_choice: ToolChoice = "auto",
        json_output: bool | type[BaseModel] | None = None,
        extra_create_args: Mapping[str, Any] = {},
        cancellation_token: CancellationToken | None = None,
        **options: Any,  # noqa: ANN401
    ) -> CreateResult:
        """Wait for admission, then call the wrapped client. Errors are its own, and those of admission.

        Raises:
            AgentFinishedError: the trajectory is over.
            ControllerClosedError: the controller was stopped.
        """
        call = await self._admitted(messages, cancellation_token)
        try:
            with reported() as reports:
                result = await self.client.create(
                    messages,
                    tools=tools,
                    tool_choice=tool_choice,
                    json_output=json_output,
                    extra_create_args=self._tagged(call, extra_create_args),
                    cancellation_token=cancellation_token,
                    **options,
                )
            rewritten = call.conversation.rewritten
            report = reports[-1] if reports else None
            self._trajectories.leave(call, self._meter.usage(messages, result, report, rewritten=rewritten))
            return result
        except Exception as error:
            self._failed(call, error)
            raise
        finally:
            self._trajectories.leave(call)

    async def create_stream(
        self,
        messages: Sequence[LLMMessage],
        *,
        tools: Sequence[Tool | ToolSchema] = [],
        tool_choice: ToolChoice = "auto",
        json_output: bool | type[BaseModel] | None = None,
        extra_create_args: Mapping[str, Any] = {},
        cancellation_token: CancellationToken | None = None,
        **options: Any,  # noqa: ANN401
    ) -> AsyncGenerator[str | CreateResult, None]:
        """As `create`, chunk by chunk; the call is over before its `CreateResult` is handed out."""
        call = await self._admitted(messages, cancellation_token)
        try:
            stream = self.client.create_stream(
                messages,
                tools=tools,
                tool_choice=tool_choice,
                json_output=json_output,
                extra_create_args=self._with_usage(self._tagged(call, extra_create_args), options),
                cancellation_token=cancellation_token,
                **options,
            )
            async with contextlib.aclosing(stream):
                async for item in stream:
                    if isinstance(item, CreateResult):
                        rewritten = call.conversation.rewritten
                        usage = self._meter.usage(messages, item, None, rewritten=rewritten)
                        self._trajectories.leave(call, usage)
                    yield item
        except Exception as error:
            self._failed(call, error)
            raise
        finally:
            self._trajectories.leave(call)

    async def _admitted(self, messages: Sequence[LLMMessage], token: CancellationToken | None) -> Call:
        """Wait for admission of a call; whoever gets it must `leave` it."""
        if token is not None and token.is_cancelled():
            raise asyncio.CancelledError
        call = self._trajectories.enter(self.agent_id, messages, self._meter.length)
        try:
            link = None if token is None else _linked(token)
            call.ticket = await self.controller.acquire(call.conversation.context_id, link=link)
            if token is not None and token.is_cancelled():
                raise asyncio.CancelledError  # granted in the same moment
        except BaseException as error:
            if isinstance(error, Exception):
                call.trajectory.error = error
            self._trajectories.leave(call)
            raise
        return call

    def _tagged(self, call: Call, extra: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self._is_openai or self._session_field is None:
            return extra
        body = {self._session_field: call.trajectory.agent_id, **extra.get("extra_body", {})}
        return {**extra, "extra_body": body}

    def _failed(self, call: Call, error: Exception) -> None:
        call.trajectory.error = error
        refused = getattr(error, "status_code", None) in _REFUSALS
        if refused and self._is_openai and self._session_field and self._session_field in str(error):
            error.add_note(
                f"The request's field {self._session_field!r} is the trajectory's id, from concur_autogen."
                " For a server that refuses fields it does not know, give"
                " ConcurChatCompletionClient(..., session_field=None)"
            )

    def _with_usage(self, extra: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self._is_openai or "include_usage" in options:
            return extra
        return {**extra, "stream_options": {"include_usage": True, **extra.get("stream_options", {})}}

    # ---- the rest of the contract ---------------------------------------------------------------

    async def close(self) -> None:
        """End the trajectories that no scope ends, and close the wrapped client."""
        self._trajectories.finish_unscoped()
        await self.client.close()

    def actual_usage(self) -> RequestUsage:
        """The wrapped client's."""
        return self.client.actual_usage()

    def total_usage(self) -> RequestUsage:
        """The wrapped client's."""
        return self.client.total_usage()

    def count_tokens(self, messages: Sequence[LLMMessage], *, tools: Sequence[Tool | ToolSchema] = []) -> int:
        """The wrapped client's; never used for admission, since it may load a tokenizer."""
        return self.client.count_tokens(messages, tools=tools)

    def remaining_tokens(
        self,
        messages: Sequence[LLMMessage],
        *,
        tools: Sequence[Tool | ToolSchema] = [],
    ) -> int:
        """The wrapped client's; never used for admission, since it raises for models it does not know."""
        return self.client.remaining_tokens(messages, tools=tools)

    @property
    def capabilities(self) -> ModelCapabilities:  # type: ignore[deprecated, unused-ignore]
        """The wrapped client's; deprecated by AutoGen for `model_info`."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return self.client.capabilities

    @property
    def model_info(self) -> ModelInfo:
        """The wrapped client's."""
        return self.client.model_info

    # ---- component ------------------------------------------------------------------------------

    def _to_config(self) -> ConcurClientConfig:
        return ConcurClientConfig(
            client=self.client.dump_component(),
            controller=name_of(self.controller),
            agent_id=self.agent_id,
            session_field=self._session_field or "",
        )

    @classmethod
    def _from_config(cls, config: ConcurClientConfig) -> Self:
        return cls(
            ChatCompletionClient.load_component(config.client),
            registered(config.controller),
            agent_id=config.agent_id,
            session_field=config.session_field or None,
        )


def _linked(token: CancellationToken) -> Callable[[asyncio.Future[None]], None]:
    """Let the token cancel the wait.

    It may be cancelled by another thread, and calls back under a lock that is not re-entrant: so all that
    happens there is to leave word for the loop.
    """

    def link(waiting: asyncio.Future[None]) -> None:
        loop = waiting.get_loop()

        def cancel() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and the wait with it
                loop.call_soon_threadsafe(waiting.cancel)

        token.add_callback(cancel)

    return link


def _of_openai_family(client: ChatCompletionClient) -> bool:
    """Whether it takes the OpenAI client's own arguments. That is imported already if it does."""
    module = sys.modules.get("autogen_ext.models.openai")
    base = getattr(module, "BaseOpenAIChatCompletionClient", None)
    return base is not None and isinstance(client, base)
