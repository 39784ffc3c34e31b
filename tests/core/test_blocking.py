"""Threads and several loops on one controller."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from concur_agents.blocking import BlockingController
from concur_agents.controller import Controller
from concur_agents.errors import InvalidValueError, WouldDeadlockError
from concur_agents.policies import Static


class Peak:
    """How many were inside at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = self.most = self.total = 0

    def __enter__(self) -> None:
        with self.lock:
            self.now += 1
            self.total += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.now -= 1


def test_threads_share_the_window() -> None:
    peak = Peak()

    def work(concur: BlockingController, n: int) -> None:
        with concur.agent(f"t{n}") as agent:
            for _ in range(20):
                with agent.step() as step, peak:
                    step.record({"prompt_tokens": 1})

    with BlockingController(policy=Static(2)) as concur, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: work(concur, n), range(16)))
        snapshot = concur.snapshot()
    assert (peak.total, snapshot.completed, snapshot.active) == (320, 16, 0)
    assert peak.most <= 2
    assert threading.active_count() <= 2


def test_threads_and_coroutines_of_several_loops_share_one_controller() -> None:
    peak = Peak()
    controller = Controller(None, policy=Static(2))
    blocking = BlockingController(controller)

    async def coroutine(name: str) -> None:
        async with controller.agent(name) as agent:
            for _ in range(10):
                async with agent.step():
                    with peak:
                        await asyncio.sleep(0)

    async def many(tag: str) -> None:
        await asyncio.gather(*(coroutine(f"{tag}-{n}") for n in range(4)))

    def thread(name: str) -> None:
        with blocking.agent(name) as agent:
            for _ in range(10):
                with agent.step(), peak:
                    pass

    async def main() -> None:
        async with controller:
            await asyncio.gather(
                many("main"),
                asyncio.to_thread(asyncio.run, many("loop2")),
                asyncio.to_thread(asyncio.run, many("loop3")),
                *(asyncio.to_thread(thread, f"thread-{n}") for n in range(3)),
            )
            assert controller.snapshot().active == 0

    for _ in range(2):  # and again on a new loop
        asyncio.run(main())
    assert controller.snapshot().completed == 2 * (3 * 4 + 3)
    assert peak.most <= 2


def test_a_blocking_wait_on_an_event_loop_is_refused_with_an_explanation() -> None:
    async def main() -> None:
        with BlockingController(policy=Static(1)) as concur, concur.agent("a") as agent:
            with pytest.raises(WouldDeadlockError, match=r"async with agent\.step"), agent.step():
                pass
            assert concur.snapshot().active == 0

    asyncio.run(main())


def test_a_wait_can_time_out_and_leaves_the_queue() -> None:
    with BlockingController(policy=Static(1)) as concur:
        with concur.agent("a") as a, a.step(), concur.agent("b") as b:
            with pytest.raises(TimeoutError), b.step(timeout_seconds=0):
                pass
            assert concur.snapshot().waiting == 0
            with pytest.raises(InvalidValueError, match="timeout_seconds"), b.step(timeout_seconds=-1):
                pass
        assert concur.snapshot().active == 0


def test_a_loop_that_died_under_its_waiter_hands_the_grant_on() -> None:
    controller = Controller(None, policy=Static(1))
    blocking = BlockingController(controller)
    for name in ("holder", "ghost", "next"):
        controller.open(name)
    held = blocking.acquire("holder")
    loop = asyncio.new_event_loop()
    ghost = loop.create_task(controller.acquire("ghost"))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()  # killed, not cancelled
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(blocking.acquire, "next", 30)
        while controller.snapshot().waiting < 2:
            pass
        controller.finish("holder")
        # The ghost's grant was handed on though it is still open: it sits at a boundary, and may be paused.
        assert controller.snapshot().generating == 0
        controller.pause("ghost")
        assert waiting.result(30)
    blocking.release(held)
    ghost._log_destroy_pending = False


def test_it_may_be_entered_again_and_by_many_threads() -> None:
    concur = BlockingController(policy=Static(2))

    def work(n: int) -> None:
        with concur, concur.agent(f"t{n}") as agent, agent.step():
            pass

    with concur:
        with concur:
            pass
        work(0)  # the inner exit has stopped nothing
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(work, range(1, 40)))
    assert concur.snapshot().completed == 40
    assert not concur.controller.running
    assert not any(thread.name == "concur-monitor" for thread in threading.enumerate())


def test_a_place_given_back_lets_another_thread_in() -> None:
    with BlockingController(policy=Static(1)) as concur, concur.agent("human") as human:
        with human.step():
            pass
        concur.give_back("human")
        with concur.agent("other") as other, other.step(timeout_seconds=5):
            assert concur.snapshot().generating == 1


def test_a_step_is_used_once() -> None:
    with BlockingController(policy=Static(1)) as concur, concur.agent("a") as agent:
        step = agent.step()
        with step, pytest.raises(InvalidValueError, match="used once"), step:
            pass
        assert concur.snapshot().generating == 0
