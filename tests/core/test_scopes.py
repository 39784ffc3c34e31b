"""The scope that code runs in, and trajectories that end before their scope is left."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from concur_agents import AgentFinishedError, Controller, Outcome, Static
from concur_agents.events import Finished
from concur_agents.scopes import current_scope
from tests.virtual import clock, run


def controller(agents: int = 1) -> Controller:
    return Controller(policy=Static(agents), clock=clock)


def outcomes(concur: Controller) -> list[tuple[str, Outcome]]:
    found: list[tuple[str, Outcome]] = []
    concur.subscribe(lambda e: found.append((e.agent_id, e.outcome)) if isinstance(e, Finished) else None)
    return found


def test_the_innermost_scope_of_the_controller_asked_for() -> None:
    async def main() -> None:
        one, two = controller(), controller()
        assert current_scope(one) is None
        async with one.agent("a") as a:
            assert current_scope(one) is a
            assert current_scope(two) is None
            async with two.agent("b") as b, one.agent("c", parent="a") as c:
                assert (current_scope(one), current_scope(two)) == (c, b)
            assert (current_scope(one), current_scope(two)) == (a, None)
        assert current_scope(one) is None

    run(main())


def test_it_reaches_tasks_and_to_thread_but_no_other_threads() -> None:
    async def main() -> None:
        concur = controller()

        async def ask() -> object:
            return current_scope(concur)

        found: list[object] = []
        before = contextvars.copy_context()
        async with concur.agent("a") as a:
            assert await asyncio.create_task(ask()) is a
            assert await asyncio.to_thread(current_scope, concur) is a
            thread = threading.Thread(target=lambda: found.append(current_scope(concur)))
            thread.start()
            thread.join()
            assert await asyncio.create_task(ask(), context=before) is None
        assert found == [None]

    run(main())


def test_tasks_that_outlive_their_scope_see_that_it_is_over() -> None:
    async def main() -> None:
        concur = controller()

        async def late() -> bool:
            await asyncio.sleep(1)
            return current_scope(concur).over

        async with concur.agent("a") as a:
            assert not a.over
            task = asyncio.create_task(late())
        assert a.over
        assert await task

    run(main())


def test_a_generator_closed_in_another_context_leaves_its_scope_all_the_same() -> None:
    async def main() -> None:
        concur = controller()

        async def stream():
            async with concur.agent("a") as a, a.step():
                yield 1
                yield 2

        reading = stream()
        await asyncio.create_task(anext(reading))
        await asyncio.create_task(reading.aclose())
        assert (concur.snapshot().open, concur.snapshot().active) == (0, 0)

    run(main())


def test_finish_ends_the_trajectory_once_and_leaving_adds_nothing() -> None:
    async def main() -> None:
        concur = controller()
        seen = outcomes(concur)
        async with concur.agent("a") as a:
            async with a.step():
                pass
            a.finish(Outcome.CANCELLED)
            a.finish(Outcome.FAILED)
            assert concur.snapshot().active == 0
            with pytest.raises(AgentFinishedError):
                await a.step().__aenter__()
        assert seen == [("a", Outcome.CANCELLED)]

    run(main())


def test_finish_in_the_middle_of_a_step_gives_the_place_to_who_waits() -> None:
    async def main() -> None:
        concur = controller()
        async with concur.agent("a") as a, concur.agent("b") as b, a.step():
            waiting = asyncio.create_task(b.step().__aenter__())
            await asyncio.sleep(1)
            a.finish(Outcome.CANCELLED)
            await asyncio.wait_for(waiting, 1)
        assert concur.snapshot().active == 0

    run(main())


def test_a_finished_scope_leaves_its_successor_of_the_same_id_alone() -> None:
    async def main() -> None:
        concur = controller()
        async with concur.agent("a") as old:
            old.finish()
            async with concur.agent("a") as new:
                old.finish()
                async with new.step():
                    assert concur.snapshot().generating == 1
                assert not new.over
            assert current_scope(concur) is old

    run(main())


def test_a_scope_that_was_never_entered_has_nothing_to_end() -> None:
    async def main() -> None:
        concur = controller()
        scope = concur.agent("a")
        async with concur.agent("a") as other, other.step():
            scope.finish()  # not this one, which only has its name
            assert concur.snapshot().generating == 1

    run(main())
