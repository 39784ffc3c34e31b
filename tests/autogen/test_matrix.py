"""However a trajectory ends by itself, on each surface, for each team: nothing is left of it."""

from __future__ import annotations

import asyncio

import pytest
from autogen_agentchat.conditions import ExternalTermination, HandoffTermination, TextMentionTermination

from tests.autogen.fakes import call, say, tools_then_end
from tests.autogen.surfaces import OURS, SURFACES, BoomError, Case, Ending, boom, check, explode
from tests.autogen.teams import RUNNERS

# ---- every kind on every surface ends by itself ---------------------------------------------------


@pytest.mark.parametrize("kind", RUNNERS)
@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("stream", [False, True], ids=["", "streamed"])
def test_to_the_end(surface: str, kind: str, stream: bool):
    if surface == "shared runtime" and kind in ("solo", "nested", "society"):
        pytest.skip("has a runtime of its own inside, or none")

    async def ending(case: Case) -> None:
        result = await case.go()
        assert result.messages
        assert case.fake.peak == (2 if kind == "graph_flow" else 1)

    check(lambda: Case(surface, kind, model_client_stream=stream), ending)


# ---- endings on each surface ----------------------------------------------------------------------


async def text_mention(case: Case) -> None:
    case.options["termination_condition"] = TextMentionTermination("done")
    assert "done" in (await case.go()).messages[-1].content


async def max_turns(case: Case) -> None:
    case.options["max_turns"] = 1
    assert (await case.go()).stop_reason


async def external_termination(case: Case) -> None:
    stop = ExternalTermination()
    case.options["termination_condition"] = stop
    going = asyncio.create_task(case.go())
    await asyncio.sleep(2)
    stop.set()
    assert "External" in (await going).stop_reason


async def model_raises(case: Case) -> None:
    case.fake.answer = boom
    # A team turns it into text; ours gives the type back.
    expected = BoomError if case.surface in OURS else RuntimeError
    with pytest.raises(expected):
        await case.go()


async def tool_raises(case: Case) -> None:
    case.tools = (explode,)
    case.fake.answer = tools_then_end("explode", 3)
    await case.go()  # AutoGen hands the error to the model


async def crashed_participant(case: Case) -> None:
    def crash(messages):
        raise KeyError("gone")

    case.fake.answer = crash
    with pytest.raises(KeyError if case.surface in OURS else RuntimeError):
        await case.go()


ENDINGS = (text_mention, max_turns, external_termination, model_raises, tool_raises, crashed_participant)


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda e: e.__name__)
@pytest.mark.parametrize("surface", SURFACES)
def test_ends_by_itself(surface: str, ending: Ending):
    check(lambda: Case(surface), ending)


@pytest.mark.parametrize("surface", SURFACES)
def test_handoff_to_somebody_outside(surface: str):
    async def ending(case: Case) -> None:
        case.options["termination_condition"] = HandoffTermination("bob")
        assert "Handoff to bob" in (await case.go()).stop_reason

    check(lambda: Case(surface, "swarm", answer=lambda _: call("transfer_to_bob")), ending)


@pytest.mark.parametrize("kind", RUNNERS)
@pytest.mark.parametrize("surface", OURS)
@pytest.mark.parametrize(
    "error", [BoomError("so"), KeyError("so"), RuntimeError("so"), ValueError()], ids=repr
)
def test_an_error_of_the_model_keeps_its_type(surface: str, kind: str, error: Exception):
    """AutoGen makes text of it, once for each team that is inside another."""

    def fail(messages):
        if messages[0].content == "You are outer.":  # the team that it is in goes on to the inner one
            return say("ok")
        raise error

    async def ending(case: Case) -> None:
        case.fake.answer = fail
        with pytest.raises(type(error)) as raised:
            await case.go()
        assert raised.value is error

    check(lambda: Case(surface, kind), ending)
