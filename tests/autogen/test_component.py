"""A wrapped client as a component: written into a configuration and made from one again; with a cache."""

from __future__ import annotations

import asyncio
import gc

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_core import ComponentModel
from autogen_core.models import ChatCompletionClient
from autogen_ext.models.cache import ChatCompletionCache
from autogen_ext.models.replay import ReplayChatCompletionClient
from concur_autogen import ConcurChatCompletionClient, register, registered

from concur_agents import Controller, InvalidValueError
from tests import virtual
from tests.autogen.test_client import HELLO, World, held


def inner():
    return ReplayChatCompletionClient(["one", "two"])


def test_round_trip():
    controller = register(Controller(), "batch")
    client = ConcurChatCompletionClient(inner(), controller, agent_id="x", session_field=None)
    dumped = client.dump_component()
    assert dumped.provider == "concur_autogen.ConcurChatCompletionClient"
    assert dumped.component_type == "model"
    written = ComponentModel.model_validate_json(dumped.model_dump_json())
    loaded = ChatCompletionClient.load_component(written)
    assert isinstance(loaded, ConcurChatCompletionClient)
    assert loaded.controller is controller
    assert loaded.dump_component() == dumped
    agent = AssistantAgent("a", client)
    again = AssistantAgent.load_component(agent.dump_component())
    assert again._model_client.controller is controller


def test_nested_in_a_cache_and_round_one():
    controller = register(Controller(), "cached")
    ours = ConcurChatCompletionClient(inner(), controller)
    outside = ChatCompletionCache(ours)
    loaded = ChatCompletionCache.load_component(outside.dump_component())
    assert loaded.client.controller is controller
    inside = ConcurChatCompletionClient(ChatCompletionCache(inner()), controller)
    again = ConcurChatCompletionClient.load_component(inside.dump_component())
    assert isinstance(again.client, ChatCompletionCache)


def test_unknown_and_unnamed_controllers():
    controller = register(Controller(), "known")
    dumped = ConcurChatCompletionClient(inner(), controller).dump_component()
    dumped.config["controller"] = "other"
    with pytest.raises(InvalidValueError, match=r"'other' is not registered .*known: .*known"):
        ConcurChatCompletionClient.load_component(dumped)
    with pytest.raises(InvalidValueError, match="has no name"):
        ConcurChatCompletionClient(inner(), Controller()).dump_component()


def test_a_controller_that_is_gone_is_not_registered():
    register(Controller(), "short-lived")
    gc.collect()
    with pytest.raises(InvalidValueError, match="'short-lived' is not registered"):
        registered("short-lived")


def test_a_hit_of_a_cache_outside_does_not_wait_for_a_place():
    async def main() -> None:
        world = World()
        cached = ChatCompletionCache(world.client)
        async with world.controller.agent("t"):
            await cached.create(HELLO)
        async with held(world):
            hit = await asyncio.wait_for(cached.create(HELLO), 1)
        assert (hit.content, hit.cached, world.fake.calls) == ("two words", True, 1)

    virtual.run(main())
