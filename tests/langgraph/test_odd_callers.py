"""What LangChain does not tell, and what callers do that no graph would."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from concur_langgraph import AGENT_ID, ConcurCallbackHandler, gated
from concur_langgraph.handler import runs_of
from concur_langgraph.runs import Runs
from langchain.agents import create_agent
from langchain_core.callbacks import StdOutCallbackHandler
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from concur_agents import Controller, RequestLimit, Static
from concur_agents.errors import ControllerClosedError, DuplicateAgentError, WouldDeadlockError
from concur_agents.lifecycle import Outcome
from tests.langgraph.fakes import FakeModel, say, tools_then_end
from tests.langgraph.surfaces import SURFACES, around
from tests.langgraph.virtual import clock, run

TASK = {"messages": [("user", "go")]}


@tool
async def work() -> str:
    """Work."""
    await asyncio.sleep(1)
    return "ok"


def one_node(node):
    builder = StateGraph(MessagesState)
    builder.add_node("llm", node)
    builder.add_edge(START, "llm")
    return builder.compile()


def test_gating_twice_is_gating_once() -> None:
    async def main() -> None:
        model = FakeModel(answer=tools_then_end("work", 3))
        async with Controller(policy=RequestLimit(1), clock=clock) as controller:
            graph = gated(gated(create_agent(model, [work]), controller), controller)
            await graph.ainvoke(TASK, {"callbacks": [ConcurCallbackHandler(controller)]})
            assert (model.calls, controller.snapshot().completed) == (3, 1)
            assert runs_of(controller).idle

    run(main())


def test_a_call_that_timed_out_in_its_node_does_not_hold_up_the_next_one() -> None:
    async def main() -> None:
        slow, quick = FakeModel(answer=lambda _: say("x"), seconds=60), FakeModel(answer=lambda _: say("x"))

        async def impatient(state: MessagesState) -> dict:
            try:
                async with asyncio.timeout(5):
                    reply = await slow.ainvoke(state["messages"])
            except TimeoutError:
                reply = await quick.ainvoke(state["messages"])
            return {"messages": [reply]}

        async with Controller(policy=RequestLimit(1), clock=clock) as controller:
            async with asyncio.timeout(100):
                await gated(one_node(impatient), controller).ainvoke(TASK)
            assert quick.calls == 1
            assert runs_of(controller).idle

    run(main())


@pytest.mark.parametrize("how", ["cancelled", "waited for", "timed out"])
def test_a_bare_model_whose_call_is_cancelled_gives_its_place_back(how: str) -> None:
    async def main() -> None:
        async with Controller(policy=Static(1), clock=clock) as controller:
            model = gated(FakeModel(answer=lambda _: say("x"), seconds=60), controller)

            async def impatient() -> None:
                with contextlib.suppress(TimeoutError):
                    if how == "waited for":
                        await asyncio.wait_for(model.ainvoke("go"), 1)
                    else:
                        async with asyncio.timeout(1 if how == "timed out" else None):
                            await model.ainvoke("go")

            task = asyncio.create_task(impatient())
            await asyncio.sleep(0.5)
            assert controller.snapshot().active == 1
            if how == "cancelled":
                task.cancel()
            await asyncio.wait([task])
            await asyncio.sleep(0)
            assert controller.snapshot().active == 0
            assert runs_of(controller).idle

    run(main())


def test_an_agent_named_inside_an_active_one_does_not_wait_for_it() -> None:
    async def main() -> None:
        inner = create_agent(FakeModel(answer=tools_then_end("work", 2)), [work])

        @tool
        async def delegate() -> str:
            """Delegate."""
            await inner.ainvoke(TASK, {"metadata": {AGENT_ID: "inner"}})
            return "ok"

        async with Controller(policy=Static(1), clock=clock) as controller:
            outer = gated(
                create_agent(FakeModel(answer=tools_then_end("delegate", 3)), [delegate]), controller
            )
            async with asyncio.timeout(100):
                await outer.ainvoke(TASK)
            assert runs_of(controller).idle

    run(main())


def test_two_trajectories_under_one_name_at_once_are_refused() -> None:
    async def main() -> None:
        async with Controller(policy=Static(4), clock=clock) as controller:
            graph = gated(create_agent(FakeModel(answer=tools_then_end("work", 2)), [work]), controller)
            same = {"metadata": {AGENT_ID: "twin"}}
            results = await asyncio.gather(
                graph.ainvoke(TASK, same), graph.ainvoke(TASK, same), return_exceptions=True
            )
            assert [type(r) for r in results] == [dict, DuplicateAgentError]
            assert (controller.snapshot().completed, controller.snapshot().active) == (1, 0)
            assert runs_of(controller).idle
            await graph.ainvoke(TASK, same)  # one after the other is fine

    run(main())


def test_an_interrupt_is_not_a_failure() -> None:
    async def main() -> None:
        @tool
        async def ask() -> str:
            """Ask."""
            return str(interrupt("well?"))

        async with Controller(policy=Static(1), clock=clock) as controller:
            inner = gated(create_agent(FakeModel(answer=tools_then_end("ask", 2)), [ask]), controller)

            async def node(state: MessagesState) -> dict:
                return await inner.ainvoke(state)

            builder = StateGraph(MessagesState)
            builder.add_node("inner", node)
            builder.add_edge(START, "inner")
            outer = builder.compile(checkpointer=InMemorySaver())  # not gated itself
            await outer.ainvoke(TASK, {"configurable": {"thread_id": "t"}})
            assert (controller.snapshot().failed, controller.snapshot().completed) == (0, 1)

    run(main())


def test_a_controller_nobody_uses_any_more_is_forgotten() -> None:
    controller = Controller(policy=Static(1))
    gated(FakeModel(answer=lambda _: say("x")), controller).invoke("go")
    gone = weakref.ref(controller)
    del controller
    gc.collect()
    assert gone() is None


def test_calls_in_threads_share_their_tools_context(monkeypatch) -> None:
    controller = Controller(policy=Static(1))
    really_open = controller.open

    def dawdle(*args, **kwargs) -> None:
        time.sleep(0.01)  # long enough for the other threads to come by
        really_open(*args, **kwargs)

    monkeypatch.setattr(controller, "open", dawdle)
    runs = Runs(controller)
    root = runs.start(uuid4(), None, {})
    used = runs.start(uuid4(), root.run_id, {}, tool=True)
    calls = [runs.start(uuid4(), used.run_id, {}) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        contexts = list(pool.map(runs.enter, calls))
        assert len(set(contexts)) == len(calls)  # those at the same time are branches of the tool's
        list(pool.map(runs.leave, calls))
    runs.end(root.run_id, Outcome.COMPLETED)
    assert controller.snapshot().open == 0
    assert runs.idle


def test_a_graph_keeps_its_own_methods_when_gated() -> None:
    controller = Controller(policy=Static(1))
    graph = gated(one_node(lambda state: state), controller)
    assert "llm" in graph.get_graph().nodes
    assert type(graph).__name__ == "CompiledStateGraph"


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("surface", SURFACES)
def test_a_synchronous_run_on_a_loops_thread_is_an_error_and_no_deadlock(surface: str, nodes: int) -> None:
    """One node runs on the caller's thread, several at once on others."""

    @tool
    def work_now() -> str:
        """Work."""
        return "ok"

    async def main() -> None:
        async with Controller(policy=Static(1)) as controller:
            model = FakeModel(answer=tools_then_end("work_now", 2), seconds=0)
            graph = SURFACES[surface](controller, model, work_now)
            if nodes == 2:
                builder = StateGraph(MessagesState)
                for name in ("a", "b"):
                    builder.add_node(name, graph)
                    builder.add_edge(START, name)
                graph = gated(builder.compile(), controller)
            async with controller.agent("holder") as holder, holder.step():
                with around(surface, controller), pytest.raises(WouldDeadlockError, match="Use ainvoke"):
                    graph.invoke(TASK)
            assert (model.calls, runs_of(controller).idle) == (0, True)

            async def blocking_node(state: MessagesState) -> dict:
                return {"messages": [model.invoke(state["messages"])]}

            with pytest.raises(WouldDeadlockError):
                await gated(one_node(blocking_node), controller).ainvoke(TASK)
            # In a thread of its own it is fine, and so is a synchronous step that calls no model.
            with around(surface, controller):
                RunnableLambda(lambda x: x).invoke(1)
                await asyncio.to_thread(graph.invoke, TASK)
            assert (controller.snapshot().active, runs_of(controller).idle) == (0, True)

    asyncio.run(main())


def test_a_refused_synchronous_call_does_not_go_ahead() -> None:
    """LangChain logs and forgets what an asynchronous handler raises in a synchronous run."""
    controller = Controller(policy=Static(1))
    model = FakeModel(answer=lambda _: say("x"))
    asyncio.run(_closed(controller))
    with pytest.raises(ControllerClosedError):
        gated(create_agent(model, []), controller).invoke(TASK)
    assert (model.calls, runs_of(controller).idle) == (0, True)


def test_repeated_event_loops_share_a_controller() -> None:
    @tool
    async def quick() -> str:
        """Work."""
        return "ok"

    controller = Controller(policy=Static(1))
    model = FakeModel(answer=tools_then_end("quick", 2), seconds=0)
    graph = gated(create_agent(model, [quick]), controller)
    for _ in range(2):
        asyncio.run(graph.abatch([TASK] * 2))
    assert (controller.snapshot().completed, model.peak) == (4, 1)


async def _closed(controller: Controller) -> None:
    async with controller:
        pass


@pytest.mark.parametrize("reader", ["ainvoke", "astream_events", "with_config"])
def test_callbacks_of_the_users_own_do_not_displace_the_handler(reader: str) -> None:
    async def main() -> None:
        async with Controller(policy=Static(1), clock=clock) as controller:
            graph = gated(create_agent(FakeModel(answer=lambda _: say("x")), []), controller)
            config = {"callbacks": [StdOutCallbackHandler()]}
            if reader == "ainvoke":
                await graph.ainvoke(TASK, config)
            elif reader == "astream_events":
                async for _ in graph.astream_events(TASK, config, version="v2"):
                    pass
            else:
                await graph.with_config(config).ainvoke(TASK)
            assert controller.snapshot().completed == 1

    run(main())
