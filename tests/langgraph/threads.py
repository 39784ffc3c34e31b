"""A graph of two steps whose threads can be cut off anywhere, and a process that runs a batch of them."""

from __future__ import annotations

import asyncio
import operator
import os
import signal
import sys
from typing import Annotated, Any, TypedDict

from concur_langgraph import BatchResult, run_batch
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph

from concur_agents import Controller, Static
from tests.langgraph.fakes import FakeModel, say


class Log(TypedDict):
    done: Annotated[list[str], operator.add]


def two_steps(saver: Any, ran: list[str], fails: set[str], seconds: float = 1.0) -> Any:
    """first -> second; `second` fails for the names in `fails`."""
    model = FakeModel(answer=lambda _: say("x"), seconds=seconds)
    builder = StateGraph(Log)

    async def step(state: Log, name: str) -> dict:
        await model.ainvoke("hi")
        ran.append(f"{state['done'][0]} {name}")
        if name == "second" and state["done"][0] in fails:
            msg = "engine is gone"
            raise ConnectionError(msg)
        return {"done": [name]}

    async def first(state: Log) -> dict:
        return await step(state, "first")

    async def second(state: Log) -> dict:
        return await step(state, "second")

    builder.add_node("first", first)
    builder.add_node("second", second)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    return builder.compile(checkpointer=saver)


async def main(path: str, die_after: int) -> None:
    """Run eight of them, or die when `die_after` have ended. Prints calls made, results restored, values."""
    ran: list[str] = []
    ended: list[str] = []

    def see(result: BatchResult) -> None:
        ended.append(result.id)
        if len(ended) == die_after:
            print(len(ran), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    ids = [f"t{i}" for i in range(8)]
    inputs = [{"done": [name]} for name in ids]
    async with AsyncSqliteSaver.from_conn_string(path) as saver, Controller(policy=Static(2)) as controller:
        graph = two_steps(saver, ran, set(), seconds=0.01)
        results = await run_batch(graph, inputs, controller, ids=ids, resume=True, on_result=see)
    print(
        len(ran),
        sum(r.restored for r in results),
        all(r.value["done"][1:] == ["first", "second"] for r in results),
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
