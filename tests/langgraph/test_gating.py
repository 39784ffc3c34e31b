"""Who waits for whom: windows, sub-agents, fan-outs, gate nodes, the ledger."""

from __future__ import annotations

import asyncio
import copy
import operator
from typing import Annotated, TypedDict

import pytest
from concur_langgraph import AGENT_ID, ConcurCallbackHandler, GateNode, gated
from concur_langgraph.handler import runs_of
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Send

from concur_agents import Controller, InvalidValueError, RequestLimit, Static
from concur_agents.events import Finished, Granted, StepEnded, ToolEnded, ToolStarted
from tests.langgraph.fakes import FakeModel, say, tools_then_end
from tests.langgraph.virtual import clock, run

TASK = {"messages": [("user", "go")]}


@tool
async def work() -> str:
    """Work."""
    await asyncio.sleep(1)
    return "ok"


def with_gate(controller: Controller, model: FakeModel, **options):
    """START -> gate -> llm -> tools -> gate."""
    builder = StateGraph(MessagesState)

    async def llm(state: MessagesState) -> dict:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder.add_node(GateNode(controller))
    builder.add_node("llm", llm)
    builder.add_node("tools", ToolNode([work]))
    builder.add_edge(START, "gate")
    builder.add_edge("gate", "llm")
    builder.add_conditional_edges("llm", tools_condition)
    builder.add_edge("tools", "gate")
    return builder.compile(**options)


def test_calls_in_flight_never_exceed_the_window() -> None:
    async def main() -> None:
        model = FakeModel(answer=tools_then_end("work", 4))
        async with Controller(policy=Static(3), clock=clock) as controller:
            graph = gated(create_agent(model, [work]), controller)
            await graph.abatch([TASK] * 10)
            assert controller.snapshot().completed == 10
            assert runs_of(controller).idle
        assert (model.calls, model.peak) == (40, 3)

    run(main())


def test_the_gate_is_a_node_and_lets_pass_in_turn() -> None:
    async def main() -> None:
        model = FakeModel(answer=tools_then_end("work", 3))
        async with Controller(policy=Static(1), clock=clock) as controller:
            compiled = with_gate(controller, model)
            assert "gate" in compiled.get_graph().nodes
            graph = gated(compiled, controller)
            visited = [list(update) async for update in graph.astream(TASK, stream_mode="updates")]
            assert visited == [[n] for n in ["gate", "llm", "tools", "gate", "llm", "tools", "gate", "llm"]]
            await graph.abatch([TASK] * 4)
            assert (model.peak, controller.snapshot().active) == (1, 0)

    run(main())


def test_a_call_behind_a_gate_goes_ahead_on_the_gates_admission() -> None:
    async def main() -> None:
        model = FakeModel(answer=tools_then_end("work", 3))
        async with Controller(policy=RequestLimit(1), clock=clock) as controller:
            asked = []
            controller.subscribe(lambda e: asked.append(e.ticket) if isinstance(e, Granted) else None)
            graph = gated(with_gate(controller, model), controller)
            await graph.abatch([TASK] * 4)
            assert len(asked) == model.calls == 12
            assert controller.snapshot().active == 0

    run(main())


def test_a_gate_whose_call_never_comes_gives_the_place_back() -> None:
    async def main() -> None:
        async with Controller(policy=Static(1), clock=clock) as controller:
            builder = StateGraph(MessagesState)
            builder.add_node(GateNode(controller))
            builder.add_node(GateNode(controller, name="again"))
            builder.add_edge(START, "gate")
            builder.add_edge("gate", "again")
            graph = gated(builder.compile(), controller)
            await asyncio.wait_for(graph.abatch([TASK] * 3), 60)
            assert (controller.snapshot().active, controller.snapshot().open) == (0, 0)
            assert runs_of(controller).idle

    run(main())


def test_a_gate_in_a_graph_that_is_not_gated_says_what_to_do() -> None:
    async def main() -> None:
        async with Controller(policy=Static(1), clock=clock) as controller, Controller() as other:
            graph = with_gate(controller, FakeModel(answer=lambda _: say("x")))
            with pytest.raises(InvalidValueError, match=r"gated\(builder.compile\(\), controller\)"):
                await graph.ainvoke(TASK)
            with pytest.raises(InvalidValueError, match="not in a gated graph"):
                await gated(graph, other).ainvoke(TASK)
            assert controller.snapshot().open == other.snapshot().open == 0

    run(main())


def test_four_parents_with_sub_agents_in_a_tool_get_through_a_window_of_one() -> None:
    async def main() -> None:
        async with Controller(policy=Static(1), clock=clock) as controller:
            child_model = FakeModel(answer=tools_then_end("work", 2))
            child = gated(create_agent(child_model, [work]), controller)  # gated twice: one identity

            @tool
            async def delegate() -> str:
                """Ask two sub-agents."""
                await asyncio.gather(child.ainvoke(TASK), child.ainvoke(TASK))
                return "ok"

            parent = gated(
                create_agent(FakeModel(answer=tools_then_end("delegate", 3)), [delegate]), controller
            )
            await asyncio.wait_for(parent.abatch([TASK] * 4), 600)
            snapshot = controller.snapshot()
            assert (snapshot.completed, snapshot.admitted, snapshot.active) == (4, 4, 0)
            assert child_model.calls == 4 * 2 * 2 * 2
            assert runs_of(controller).idle

    run(main())


class Fan(TypedDict):
    answers: Annotated[list, operator.add]


def test_a_fan_out_is_one_agent_and_eight_contexts() -> None:
    async def main() -> None:
        model = FakeModel(answer=lambda _: say("x", prompt=100))
        builder = StateGraph(Fan)

        async def worker(_: dict) -> dict:
            await model.ainvoke("hi")
            return {"answers": [1]}

        builder.add_node("worker", worker)
        builder.add_conditional_edges(START, lambda _: [Send("worker", {}) for _ in range(8)], ["worker"])
        builder.add_edge("worker", END)
        async with Controller(policy=Static(1), clock=clock) as controller:
            most = []
            ended = []

            def see(event) -> None:
                if isinstance(event, StepEnded):
                    ended.append(event.agent_id)
                    most.append((controller.snapshot().active, controller.snapshot().demand_tokens))

            controller.subscribe(see)
            await gated(builder.compile(), controller).ainvoke({"answers": []})
            assert model.peak == 8
            assert len(set(ended)) == 8
            assert {active for active, _ in most} == {1}
            assert max(tokens for _, tokens in most) == 8 * 112
            assert controller.snapshot().demand_tokens == 0

    run(main())


def test_usage_reaches_the_ledger_streaming_or_not() -> None:
    async def main() -> None:
        for streaming in (False, True):
            tokens = []
            async with Controller(policy=Static(1), clock=clock) as controller:
                controller.subscribe(
                    lambda e, t=tokens: t.append(e.tokens) if isinstance(e, StepEnded) else None
                )
                model = FakeModel(answer=lambda m: say("x", prompt=50, cached=40))
                graph = gated(create_agent(model, []), controller)
                if streaming:
                    async for _ in graph.astream(TASK, stream_mode="messages"):
                        pass
                else:
                    await graph.ainvoke(TASK)
            assert tokens == [52]

    run(main())


def test_a_model_without_usage_is_one_warning(caplog) -> None:
    async def main() -> None:
        async with Controller(policy=Static(1), clock=clock) as controller:
            graph = gated(create_agent(FakeModel(answer=lambda _: AIMessage("x")), []), controller)
            await graph.abatch([TASK] * 3)

    run(main())
    assert sum("stream_usage=True" in r.getMessage() for r in caplog.records) == 1


def test_the_agent_id_can_be_named_and_a_scope_round_the_graph_is_joined() -> None:
    async def main() -> None:
        async with Controller(policy=Static(1), clock=clock) as controller:
            names = []
            controller.subscribe(lambda e: names.append(e.agent_id) if isinstance(e, Finished) else None)
            graph = gated(create_agent(FakeModel(answer=lambda _: say("x")), []), controller)
            await graph.ainvoke(TASK, {"metadata": {AGENT_ID: "swe-17"}})
            assert names == ["swe-17"]
            async with controller.agent("outer"):
                await graph.ainvoke(TASK, {"metadata": {AGENT_ID: "outer"}})
                assert names == ["swe-17"]  # the scope ends it, not the graph
            assert names == ["swe-17", "outer"]

    run(main())


def test_agents_launched_by_one_outer_runnable_keep_their_own_ids() -> None:
    async def main() -> None:
        async with Controller(policy=Static(1), clock=clock) as controller:
            model = FakeModel(answer=tools_then_end("work", 2))
            inner = create_agent(model, [work])

            async def launch(_: object) -> None:
                await asyncio.gather(
                    *(inner.ainvoke(TASK, {"metadata": {AGENT_ID: f"a{n}"}}) for n in range(3))
                )

            from langchain_core.runnables import RunnableLambda

            await gated(RunnableLambda(launch), controller).ainvoke(None)
            assert controller.snapshot().admitted == 3
            assert model.peak == 1
            assert runs_of(controller).idle

    run(main())


def test_sync_graphs_in_threads_share_the_window() -> None:
    controller = Controller(policy=Static(2))
    model = FakeModel(answer=tools_then_end("work_now", 3))

    @tool
    def work_now() -> str:
        """Work."""
        return "ok"

    graph = gated(create_agent(model, [work_now]), controller)
    graph.batch([TASK] * 8)
    assert (controller.snapshot().completed, controller.snapshot().active) == (8, 0)
    assert model.calls == 24
    assert model.peak <= 2


def test_handlers_of_one_controller_are_one() -> None:
    controller = Controller(policy=Static(1))
    handler = ConcurCallbackHandler(controller)
    assert handler == ConcurCallbackHandler(controller)
    assert handler != ConcurCallbackHandler(Controller(policy=Static(1)))
    assert copy.deepcopy(handler) is handler
    assert len({handler, ConcurCallbackHandler(controller)}) == 1


@tool
async def explode() -> str:
    """Explode."""
    await asyncio.sleep(2)
    raise KeyError("gone")


@pytest.mark.parametrize(("used", "seconds", "failed"), [(work, 1.0, False), (explode, 2.0, True)])
def test_tools_are_told_of_by_name_and_time(used, seconds, failed) -> None:
    async def main() -> None:
        model = FakeModel(answer=tools_then_end(used.name, 2))
        async with Controller(policy=Static(1), clock=clock) as controller:
            told = []
            controller.subscribe(told.append)
            graph = gated(create_agent(model, [used]), controller)
            config = {"metadata": {AGENT_ID: "a"}}
            if failed:
                with pytest.raises(KeyError):
                    await graph.ainvoke(TASK, config)
            else:
                await graph.ainvoke(TASK, config)
            assert [e for e in told if isinstance(e, ToolStarted | ToolEnded)] == [
                ToolStarted(1.0, "a", used.name),
                ToolEnded(1.0 + seconds, "a", used.name, seconds, failed),
            ]

    run(main())
