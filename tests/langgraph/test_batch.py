"""A batch: who is started when, how each ends, and how a half-done one goes on."""

from __future__ import annotations

import asyncio
import builtins
import io
import re
import signal
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from concur_langgraph import AGENT_ID, BatchResult, gated, insert_gate, run_batch, run_batch_blocking
from concur_langgraph.handler import runs_of
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt

from concur_agents import Controller, ControllerClosedError, InvalidValueError, Static, Unlimited
from concur_agents.errors import WouldDeadlockError
from concur_agents.events import Tick
from tests.langgraph.fakes import FakeModel, say, tools_then_end
from tests.langgraph.threads import two_steps
from tests.langgraph.virtual import clock, run

TASK = {"messages": [("user", "go")]}


@tool
async def work() -> str:
    """Work."""
    await asyncio.sleep(1)
    return "ok"


def agent_of(model: FakeModel, **options):
    return create_agent(model, [work], **options)


def one_node(node, **options):
    builder = StateGraph(MessagesState)
    builder.add_node("llm", node)
    builder.add_edge(START, "llm")
    return builder.compile(**options)


def echo(model: FakeModel, **options):
    """One model call, which the input's text may make fail."""

    async def llm(state: MessagesState) -> dict:
        if "bad" in str(state["messages"][-1].content):
            msg = f"refused {state['messages'][-1].content}"
            raise ValueError(msg)
        return {"messages": [await model.ainvoke(state["messages"])]}

    return one_node(llm, **options)


def say_it(text: str) -> dict:
    return {"messages": [("user", text)]}


def nothing_left(controller: Controller) -> bool:
    snapshot = controller.snapshot()
    return (snapshot.active, snapshot.waiting, snapshot.open) == (0, 0, 0) and runs_of(controller).idle


# ---- running ------------------------------------------------------------------------------------


def test_results_in_order_with_the_seconds_each_waited() -> None:
    async def main() -> None:
        model = FakeModel(answer=tools_then_end("work", 3))  # 3 calls and 2 tools: 5 seconds
        async with Controller(policy=Static(2), clock=clock) as controller:
            came: list[str] = []
            results = await run_batch(
                agent_of(model),
                [TASK] * 6,
                controller,
                ids=[f"task-{i}" for i in range(6)],
                on_result=lambda result: came.append(result.id),
            )
            assert [(r.index, r.id, r.ok) for r in results] == [(i, f"task-{i}", True) for i in range(6)]
            assert came == [f"task-{i}" for i in range(6)]
            assert [r.waited_seconds for r in results] == pytest.approx([0, 0, 5, 5, 10, 10])
            assert [r.seconds for r in results] == pytest.approx([5, 5, 10, 10, 15, 15])
            assert all(r.value["messages"][-1].content == "done" for r in results)
            assert not any(r.restored or r.interrupted for r in results)
            assert (model.peak, controller.snapshot().completed) == (2, 6)
            assert nothing_left(controller)

    run(main())


def test_failures_are_collected_and_the_others_go_on() -> None:
    async def main() -> None:
        async with Controller(policy=Static(2), clock=clock) as controller:
            graph = echo(FakeModel(answer=lambda _: say("x")))
            texts = ["a", "bad b", "c", "bad d", "e"]
            came: list[BatchResult] = []
            results = await run_batch(graph, map(say_it, texts), controller, on_result=came.append)
            assert [r.ok for r in results] == [True, False, True, False, True]
            assert [str(r.error) for r in results if not r.ok] == ["refused bad b", "refused bad d"]
            assert [r.value is None for r in results] == [False, True, False, True, False]
            assert Counter(r.id for r in came) == Counter(r.id for r in results)
            assert len({r.id for r in results}) == 5
            assert nothing_left(controller)

    run(main())


def test_a_cancellation_inside_a_graph_is_that_inputs_failure() -> None:
    async def main() -> None:
        async def node(state: MessagesState) -> dict:
            if state["messages"][0].content == "bad":
                raise asyncio.CancelledError
            return {}

        async with Controller(policy=Static(2), clock=clock) as controller:
            results = await run_batch(
                RunnableLambda(node),
                [{"messages": [AIMessage(text)]} for text in ("a", "bad", "c")],
                controller,
            )
            assert [type(r.error) for r in results] == [type(None), asyncio.CancelledError, type(None)]

    run(main())


def test_an_empty_batch_is_done() -> None:
    async def main() -> None:
        async with Controller(policy=Static(1), clock=clock) as controller:
            assert await run_batch(agent_of(FakeModel(answer=lambda _: say("x"))), [], controller) == []

    run(main())


def test_inputs_are_started_as_the_window_takes_them_and_the_queue_never_runs_dry() -> None:
    async def main() -> None:
        live = most = 0

        async def node(state: MessagesState) -> dict:
            nonlocal live, most
            live += 1
            most = max(most, live)
            try:
                return {"messages": [await model.ainvoke(state["messages"])]}
            finally:
                live -= 1

        def see(event: object) -> None:
            if isinstance(event, Tick):
                queue.append(event.signals.waiting)

        queue: list[int] = []
        model = FakeModel(answer=lambda _: say("x"))
        async with Controller(policy=Static(4), clock=clock) as controller:
            controller.subscribe(see)
            results = await run_batch(one_node(node), [TASK] * 200, controller, lookahead=8)
            assert all(r.ok for r in results)
            assert (most, model.peak) == (4 + 8, 4)
            # 200 calls of a second, four at a time: not one place was ever empty.
            assert asyncio.get_running_loop().time() == pytest.approx(50)
            assert min(queue[1:45]) == 8

    run(main())


def test_without_a_limit_all_are_started() -> None:
    async def main() -> None:
        model = FakeModel(answer=lambda _: say("x"))
        async with Controller(policy=Unlimited(), clock=clock) as controller:
            await run_batch(echo(model), [TASK] * 50, controller, lookahead=2)
            assert model.peak == 50

    run(main())


def test_a_slow_reader_holds_up_the_start_of_more() -> None:
    async def main() -> None:
        started = []

        async def node(state: MessagesState) -> dict:
            started.append(1)
            return {"messages": [await model.ainvoke(state["messages"])]}

        async def write(result: BatchResult) -> None:
            delivered.append(result.index)
            assert len(started) - len(delivered) <= 2 + 3
            await asyncio.sleep(100)

        delivered: list[int] = []
        model = FakeModel(answer=lambda _: say("x"))
        async with Controller(policy=Static(2), clock=clock) as controller:
            await run_batch(one_node(node), [TASK] * 12, controller, lookahead=3, on_result=write)
            assert sorted(delivered) == list(range(12))

    run(main())


def test_a_long_batch_costs_the_memory_of_the_window() -> None:
    async def peak(count: int) -> int:
        async def hold(_: dict) -> dict:
            state = bytearray(100_000)
            await model.ainvoke("hi")
            return {"state": state}

        model = FakeModel(answer=lambda _: say("x"))
        async with Controller(policy=Static(4), clock=clock) as controller:
            tracemalloc.start()
            results = await run_batch(
                RunnableLambda(hold), [{}] * count, controller, keep_values=False, lookahead=8
            )
            traced = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert all(r.ok and r.value is None for r in results)
            return traced

    run(peak(50))  # what is imported and cached along the way
    short, long = run(peak(50)), run(peak(350))
    # What remains of an input is its result; three hundred more states would be 30 MB.
    assert long - short < 300 * 3_000


def test_values_are_handed_over_even_if_they_are_not_kept() -> None:
    async def main() -> None:
        async with Controller(policy=Static(2), clock=clock) as controller:
            seen: list[object] = []
            results = await run_batch(
                echo(FakeModel(answer=lambda _: say("x"))),
                map(say_it, ("a", "bad")),
                controller,
                keep_values=False,
                on_result=lambda r: seen.append(r.value),
            )
            assert [r.value for r in results] == [None, None]
            assert sum(value is not None for value in seen) == 1
            assert isinstance(results[1].error, ValueError)

    run(main())


def test_synchronous_nodes_behind_a_gate_node_do_not_starve_the_pool_of_threads() -> None:
    @tool
    def at_once() -> str:
        """Work on a thread."""
        return "ok"

    def llm(state: MessagesState) -> dict:
        return {"messages": [model.invoke(state["messages"])]}

    async def main() -> None:
        builder = StateGraph(MessagesState)
        builder.add_node("llm", llm)
        builder.add_node("tools", ToolNode([at_once]))
        builder.add_edge(START, "llm")
        builder.add_conditional_edges("llm", tools_condition)
        builder.add_edge("tools", "llm")
        insert_gate(builder, before="llm")
        async with Controller(policy=Static(1), grace_seconds=None) as controller:
            results = await asyncio.wait_for(run_batch(builder.compile(), [TASK] * 40, controller), 60)
            assert all(r.ok for r in results)
        assert model.calls == 40 * 3

    model = FakeModel(answer=tools_then_end("at_once", 3))
    asyncio.run(main())


# ---- the reader of the results ------------------------------------------------------------------


def test_a_reader_may_be_a_coroutine_and_is_called_one_at_a_time() -> None:
    async def main() -> None:
        inside, most, seen = 0, 0, []

        async def write(result: BatchResult) -> None:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(3)
            seen.append(result.index)
            inside -= 1

        async with Controller(policy=Static(4), clock=clock) as controller:
            graph = echo(FakeModel(answer=lambda _: say("x")))
            await run_batch(graph, [TASK] * 8, controller, on_result=write)
            assert (most, sorted(seen)) == (1, list(range(8)))

    run(main())


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_reader_that_raises_ends_the_batch_with_that(asynchronous: bool) -> None:
    async def main() -> None:
        def full(result: BatchResult) -> None:
            told.append(result.index)
            msg = "disk full"
            raise OSError(msg)

        async def afull(result: BatchResult) -> None:
            full(result)

        told: list[int] = []
        model = FakeModel(answer=tools_then_end("work", 3))
        async with Controller(policy=Static(2), clock=clock) as controller:
            with pytest.raises(OSError, match="disk full"):
                await run_batch(
                    agent_of(model), [TASK] * 9, controller, on_result=afull if asynchronous else full
                )
            assert len(told) == 1
            assert nothing_left(controller)

    run(main())


# ---- ends before the end ------------------------------------------------------------------------


def test_a_cancelled_batch_gives_every_place_back() -> None:
    async def main() -> None:
        model = FakeModel(answer=tools_then_end("work", 3))
        async with Controller(policy=Static(2), clock=clock) as controller:
            told: list[int] = []
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(7):
                    await run_batch(
                        agent_of(model), [TASK] * 9, controller, on_result=lambda r: told.append(r.index)
                    )
            assert told == [0, 1]
            assert nothing_left(controller)
            assert len(asyncio.all_tasks()) == 2  # this one and the controller's monitor
            again = await run_batch(agent_of(model), [TASK] * 2, controller)
            assert all(r.ok for r in again)

    run(main())


def test_a_controller_that_stops_ends_the_batch() -> None:
    async def main() -> None:
        controller = Controller(policy=Static(2), clock=clock)
        async with controller:
            batch = asyncio.create_task(
                run_batch(agent_of(FakeModel(answer=tools_then_end("work", 3))), [TASK] * 9, controller)
            )
            await asyncio.sleep(2.5)
        with pytest.raises(ControllerClosedError):
            await batch
        assert nothing_left(controller)

    run(main())


# ---- going on -----------------------------------------------------------------------------------


def test_a_half_done_batch_goes_on_where_it_stopped() -> None:
    async def main() -> None:
        ids = ["a", "b", "c", "d"]
        inputs = [{"done": [name]} for name in ids]
        saver, ran = InMemorySaver(), []
        async with Controller(policy=Static(2), clock=clock) as controller:
            graph = two_steps(saver, ran, {"b", "d"})
            begun = await run_batch(graph, inputs[:3], controller, ids=ids[:3])
            assert [r.ok for r in begun] == [True, False, True]
            ran.clear()
            graph = two_steps(saver, ran, {"d"})
            results = await run_batch(graph, inputs, controller, ids=ids, resume=True)
            assert sorted(ran) == ["b second", "d first", "d second"]
            assert [r.ok for r in results] == [True, True, True, False]
            assert [r.restored for r in results] == [True, False, True, False]
            assert [r.value and r.value["done"] for r in results] == [
                *([name, "first", "second"] for name in "abc"),
                None,
            ]
            ran.clear()
            results = await run_batch(two_steps(saver, ran, set()), inputs, controller, ids=ids, resume=True)
            assert ran == ["d second"]
            assert [r.restored for r in results] == [True, True, True, False]
            assert nothing_left(controller)

    run(main())


def test_a_thread_cut_off_between_a_nodes_writes_and_its_checkpoint_is_not_taken_for_finished() -> None:
    async def main() -> None:
        saver, ran = InMemorySaver(), []
        graph = two_steps(saver, ran, set())
        async with Controller(policy=Static(2), clock=clock) as controller:
            config = {"configurable": {"thread_id": "a"}}
            await graph.ainvoke({"done": ["a"]}, config)
            checkpoints = saver.storage["a"][""]
            for checkpoint in sorted(checkpoints)[1:]:  # all but the input's, whose writes are all there
                del checkpoints[checkpoint]
            assert (await graph.aget_state(config)).next == ()  # as LangGraph sees it
            ran.clear()
            [result] = await run_batch(graph, [{"done": ["a"]}], controller, ids=["a"], resume=True)
            assert (result.restored, result.value["done"]) == (False, ["a", "first", "second"])
            assert ran == ["a first", "a second"]

    run(main())


def test_a_cancelled_batch_goes_on() -> None:
    async def main() -> None:
        saver, ids = InMemorySaver(), [f"t{i}" for i in range(6)]
        model = FakeModel(answer=tools_then_end("work", 3))
        async with Controller(policy=Static(2), clock=clock) as controller:
            graph = agent_of(model, checkpointer=saver)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(7.5):  # two are done, two have made two of three calls
                    await run_batch(graph, [TASK] * 6, controller, ids=ids)
            before = model.calls
            results = await run_batch(graph, [TASK] * 6, controller, ids=ids, resume=True)
            assert [r.restored for r in results] == [True, True, False, False, False, False]
            assert all(len(r.value["messages"]) == 6 and r.ok for r in results)
            # What was cut off in its second call makes that one again, and no other.
            assert model.calls - before == 2 * 2 + 2 * 3

    run(main())


def test_a_thread_that_waits_for_a_human_asks_again_until_it_is_answered() -> None:
    async def main() -> None:
        async def node(state: MessagesState) -> dict:
            answer = interrupt("sure?")
            return {"messages": [await FakeModel(answer=lambda _: say(f"human says {answer}")).ainvoke("hi")]}

        graph = one_node(node, checkpointer=InMemorySaver())
        async with Controller(policy=Static(1), clock=clock) as controller:
            for resume in (False, True):
                asked = await run_batch(graph, [TASK] * 2, controller, ids=["a", "b"], resume=resume)
                assert [(r.ok, r.interrupted, r.restored) for r in asked] == [(True, True, False)] * 2
                assert asked[0].value["__interrupt__"][0].value == "sure?"
            inputs = [Command(resume="yes"), TASK]
            told = await run_batch(graph, inputs, controller, ids=["a", "b"], resume=True)
            assert [r.interrupted for r in told] == [False, True]
            assert told[0].value["messages"][-1].content == "human says yes"
            again = await run_batch(graph, inputs, controller, ids=["a", "b"], resume=True)
            assert [r.restored for r in again] == [True, False]

    run(main())


def test_a_batch_killed_in_one_process_goes_on_in_another(tmp_path: Path) -> None:
    def process(die_after: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tests.langgraph.threads", str(tmp_path / "sqlite"), str(die_after)],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    killed = process(3)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    second = process(0)
    assert second.returncode == 0, second.stderr
    calls, restored, complete = second.stdout.split()
    assert complete == "True"
    assert int(restored) >= 2  # the third one's last checkpoint may still have been on its way
    # 16 steps in all; the two agents in the window may each have lost the step they were in.
    assert 16 - int(killed.stdout) <= int(calls) <= 16 - int(killed.stdout) + 2


def test_sqlite_in_one_process(tmp_path: Path) -> None:
    async def main() -> None:
        ran: list[str] = []
        async with (
            AsyncSqliteSaver.from_conn_string(str(tmp_path / "threads.sqlite")) as saver,
            Controller(policy=Static(2)) as controller,
        ):
            graph = two_steps(saver, ran, {"a"}, seconds=0)
            for _ in range(2):
                results = await run_batch(graph, [{"done": ["a"]}], controller, ids=["a"], resume=True)
                assert isinstance(results[0].error, ConnectionError)
            assert ran == ["a first", "a second", "a second"]

    asyncio.run(main())


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ids": ["a", "b", "a", "c"]}, "ids has 'a' more than once"),
        ({"ids": ["a", "b"]}, "2 ids for 4 inputs"),
        ({"ids": ["a", "b", "c", ""]}, r"ids\[3\]='': expected a string that is not empty"),
        ({"ids": ["a", "b", "c", 4]}, r"ids\[3\]=4: expected a string"),
        ({"ids": "abcd"}, "one string"),
        ({"lookahead": 0}, "lookahead=0"),
        ({"resume": True}, "resume=True without ids"),
        ({"resume": True, "ids": list("abcd")}, "no checkpointer"),
        ({"config": {"configurable": {"thread_id": "x"}}}, "configurable.thread_id for all inputs"),
        ({"config": {"metadata": {AGENT_ID: "x"}}}, "metadata.concur_agent_id for all inputs"),
    ],
)
def test_what_cannot_work_says_why_before_anything_is_run(options: dict, message: str) -> None:
    async def main() -> None:
        model = FakeModel(answer=lambda _: say("x"))
        async with Controller(policy=Static(1), clock=clock) as controller:
            with pytest.raises(InvalidValueError, match=message):
                await run_batch(echo(model), [TASK] * 4, controller, **options)
            assert model.calls == 0

    run(main())


def test_config_reaches_every_run() -> None:
    async def main() -> None:
        seen = []

        async def node(state: MessagesState, config) -> dict:
            seen.append((config["metadata"]["team"], config["configurable"]["k"], config["tags"]))
            return {}

        async with Controller(policy=Static(1), clock=clock) as controller:
            graph = gated(one_node(node), controller)
            config = {"metadata": {"team": "red"}, "configurable": {"k": 1}, "tags": ["night"]}
            results = await run_batch(graph, [TASK] * 3, controller, config=config)
            assert all(r.ok for r in results)
            assert seen == [("red", 1, ["night"])] * 3
            assert config == {"metadata": {"team": "red"}, "configurable": {"k": 1}, "tags": ["night"]}

    run(main())


# ---- without a loop, with a bar -----------------------------------------------------------------


def test_the_blocking_variant_runs_the_controller_too() -> None:
    controller = Controller(policy=Static(2))
    model = FakeModel(answer=lambda _: say("x"), seconds=0)
    for _ in range(2):
        results = run_batch_blocking(echo(model), map(say_it, ("a", "bad", "c")), controller)
        assert [r.ok for r in results] == [True, False, True]
    assert not controller.running
    assert nothing_left(controller)


def test_the_blocking_variant_refuses_a_thread_with_a_loop() -> None:
    async def main() -> None:
        with pytest.raises(WouldDeadlockError, match="ainvoke"):
            run_batch_blocking(echo(FakeModel(answer=lambda _: say("x"))), [TASK], Controller())

    run(main())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def _batch_with(bar: bool) -> None:
    async with Controller(policy=Static(2), clock=clock) as controller:
        graph = echo(FakeModel(answer=lambda _: say("x")))
        await run_batch(graph, map(say_it, ("a", "bad", "c", "d")), controller, progress=bar)


@pytest.mark.parametrize(("bar", "terminal"), [(True, True), (False, True), (True, False)])
def test_the_bar_is_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, bar: bool, terminal: bool) -> None:
    stderr = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    run(_batch_with(bar))
    if bar and terminal:
        shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stderr.getvalue())
        assert "4/4 agents 0:00:00 0 in, 0 to come, 1 failed" in shown
    else:
        assert stderr.getvalue() == ""


def test_no_bar_and_no_error_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_import = builtins.__import__

    def no_rich(name: str, *args, **kwargs):
        if name.partition(".")[0] == "rich":
            raise ModuleNotFoundError(name, name=name)
        return plain_import(name, *args, **kwargs)

    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(builtins, "__import__", no_rich)
    run(_batch_with(True))
    assert stderr.getvalue() == ""
