"""A batch of teams: each fresh, failures collected, and a file that lets it go on."""

from __future__ import annotations

import asyncio
import json

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import StructuredMessage
from concur_autogen import BatchResult, ConcurChatCompletionClient, run_batch
from pydantic import BaseModel

from concur_agents import Controller, ControllerClosedError, InvalidValueError, Static
from tests.autogen.fakes import FakeClient, say, tools_then_end
from tests.autogen.teams import agent, round_robin
from tests.langgraph.virtual import clock
from tests.langgraph.virtual import run as virtually


async def work() -> str:
    """Work."""
    await asyncio.sleep(3)
    return "worked"


def boom_on(word: str):
    def answer(messages):
        if any(word in str(m.content) for m in messages):
            raise KeyError(word)
        return say("done")

    return answer


def raises(text: str):
    def answer(messages):
        raise ValueError(text)

    return answer


class Answer(BaseModel):
    number: int


class World:
    def __init__(self, answer="done", places: int = 2) -> None:
        self.controller = Controller(policy=Static(places), clock=clock)
        self.fake = FakeClient(answer)
        self.client = ConcurChatCompletionClient(self.fake, self.controller)
        self.made = 0

    def solo(self):
        self.made += 1
        return agent("solo", self.client, [work])

    async def batch(self, tasks, make=None, **options) -> list[BatchResult]:
        return await run_batch(make or self.solo, tasks, self.controller, progress=False, **options)

    def assert_empty(self) -> None:
        snapshot = self.controller.snapshot()
        assert (snapshot.active, snapshot.waiting, snapshot.open) == (0, 0, 0)


def test_every_task_has_a_fresh_team_and_the_results_are_in_order():
    async def main() -> None:
        world = World(tools_then_end("work", 2))
        results = await world.batch([f"task {n}" for n in range(6)])
        assert world.made == 6
        assert [r.index for r in results] == list(range(6))
        assert [r.result.messages[0].content for r in results] == [f"task {n}" for n in range(6)]
        assert all(r.ok and r.tool_seconds == 3.0 for r in results)
        assert results[0].usage.prompt_tokens == 20
        assert world.fake.peak == 2
        assert asyncio.get_running_loop().time() == 15.0
        assert results[-1].waited_seconds == 10.0
        assert results[-1].seconds == 15.0
        world.assert_empty()

    virtually(main())


def test_a_maker_may_look_at_the_task():
    async def main() -> None:
        world = World()
        seen = []

        def make(task):
            seen.append(task)
            return world.solo()

        await world.batch({"a": "first", "b": "second"}, make)
        assert seen == ["first", "second"]

    virtually(main())


def test_failures_are_results_and_the_others_go_on():
    async def main() -> None:
        world = World(boom_on("bad"))
        delivered = []
        results = await world.batch(
            {"a": "good", "b": "bad", "c": "good"},
            lambda: round_robin(world.client, max_turns=1),
            on_result=delivered.append,
        )
        assert [r.ok for r in results] == [True, False, True]
        assert isinstance(results[1].error, KeyError)
        assert sorted(r.id for r in delivered) == ["a", "b", "c"]
        world.assert_empty()

    virtually(main())


def test_a_time_out_is_one_failure():
    async def main() -> None:
        world = World(places=1)
        world.fake.seconds = 10
        results = await world.batch({"a": "x", "b": "y"}, timeout_seconds=15)
        assert [type(r.error) for r in results] == [type(None), TimeoutError]
        world.assert_empty()

    virtually(main())


def test_cancelled_all_is_given_back():
    async def main() -> None:
        world = World()
        world.fake.seconds = 100
        going = asyncio.create_task(world.batch([f"task {n}" for n in range(10)]))
        await asyncio.sleep(5)
        going.cancel()
        await asyncio.wait([going])
        assert going.cancelled()
        world.assert_empty()

    virtually(main())


def test_a_stopped_controller_ends_the_batch():
    async def main() -> None:
        world = World(places=1)
        async with world.controller:
            going = asyncio.create_task(world.batch(["a", "b", "c"]))
            await asyncio.sleep(0.5)
        with pytest.raises(ControllerClosedError):
            await going

    virtually(main())


class TestFile:
    def lines(self, path) -> list[dict]:
        return [json.loads(line) for line in path.read_text().splitlines()]

    def test_each_result_is_a_line_and_only_what_is_missing_or_failed_runs_again(self, tmp_path):
        path = tmp_path / "results.jsonl"
        tasks = {"a": "good", "b": "bad", "c": "good"}

        async def first() -> None:
            world = World(boom_on("bad"))
            await world.batch(tasks, output=path)
            world.assert_empty()

        async def second() -> None:
            world = World()
            results = await world.batch({**tasks, "d": "new"}, output=path)
            assert world.made == 2
            assert [r.restored for r in results] == [True, False, True, False]
            assert all(r.ok for r in results)
            assert results[0].result.messages[-1].content == "done"
            assert results[0].result.messages[-1].source == "solo"
            assert results[0].usage.prompt_tokens == 10

        virtually(first())
        assert {line["id"]: line["outcome"] for line in self.lines(path)} == {
            "a": "completed",
            "b": "failed",
            "c": "completed",
        }
        failed = next(line for line in self.lines(path) if line["id"] == "b")
        assert failed["error"] == "KeyError: 'bad'"
        virtually(second())
        assert len(self.lines(path)) == 5

    def test_half_a_line_of_a_crash_is_run_again(self, tmp_path):
        path = tmp_path / "results.jsonl"

        async def go(made: int) -> None:
            world = World()
            results = await world.batch(["x", "y"], output=path)
            assert all(r.ok for r in results)
            assert world.made == made

        virtually(go(2))
        text = path.read_text()
        path.write_text(text[: len(text) - 20])
        virtually(go(1))
        virtually(go(0))

    @pytest.mark.parametrize("left", [-1, -20, 3, 40, "é".encode()[:1]], ids=str)
    @pytest.mark.parametrize("tasks", [["x"], ["x", "y"]], ids=len)
    def test_a_crash_at_any_byte_of_the_last_line_loses_that_line_at_most(self, tmp_path, left, tasks):
        path = tmp_path / "results.jsonl"

        odd = "hé, line\u2028separator\x85"

        async def go() -> int:
            world = World(odd)
            results = await world.batch([*tasks, "z"], output=path)
            assert all(r.ok and r.result.messages[-1].content == odd for r in results)
            return world.made

        assert virtually(go()) == len(tasks) + 1
        lines = path.read_bytes().split(b"\n")[: len(tasks)]
        last = lines[-1]
        end = last.index(left) + 1 if isinstance(left, bytes) else left
        lines[-1] = last[:end] if end != -1 else last  # only its newline is missing
        path.write_bytes(b"\n".join(lines))
        assert virtually(go()) == 1 + (end != -1)
        ids = [line["id"] for line in map(json.loads, path.read_bytes().splitlines())]
        assert sorted(ids) == sorted(f"task-{n:05d}" for n in range(len(tasks) + 1))

    def test_structured_answers_come_back_if_their_type_is_named(self, tmp_path):
        path = tmp_path / "results.jsonl"

        async def go(*types) -> BatchResult:
            world = World('{"number": 42}')
            (result,) = await world.batch(
                ["x"],
                lambda: AssistantAgent("solo", world.client, output_content_type=Answer),
                output=path,
                custom_message_types=types,
            )
            return result

        virtually(go())
        with pytest.raises(
            InvalidValueError, match=r"line 1 .*StructuredMessage\[Answer\].*custom_message_types"
        ):
            virtually(go())
        restored = virtually(go(StructuredMessage[Answer]))
        assert restored.restored
        assert restored.result.messages[-1].content == Answer(number=42)

    def test_half_a_surrogate_pair_in_an_error_is_no_reason_to_end_the_batch(self, tmp_path):
        path = tmp_path / "results.jsonl"

        async def main() -> None:
            results = await World(boom_on("\ud83d")).batch(["fine"], output=path)
            assert results[0].ok
            results = await World(raises("\ud83d")).batch(["fine", "x"], output=path)
            assert [r.ok for r in results] == [True, False]

        virtually(main())
        assert self.lines(path)[-1]["error"] == "ValueError: \ud83d"

    @pytest.mark.parametrize("text", ["no json\n{}\n", "[1, 2]\n", "half a line", '{"id": "x"}\n'])
    def test_another_file_is_refused(self, tmp_path, text):
        path = tmp_path / "notes.txt"
        path.write_text(text)

        async def main() -> None:
            with pytest.raises(InvalidValueError, match=r"output='.*notes.txt', line 1"):
                await World().batch(["x"], output=path)

        virtually(main())
        assert path.read_text() == text

    def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(self, tmp_path):
        async def main() -> None:
            world = World()
            with pytest.raises(InvalidValueError, match="output="):
                await world.batch(["x"], output=tmp_path / "none" / "x.jsonl")
            assert world.made == 0

        virtually(main())


@pytest.mark.parametrize(
    ("field", "tasks", "options"),
    [
        ("tasks", "one", {}),
        ("ids", {"": "x"}, {}),
        ("lookahead", ["x"], {"lookahead": 0}),
        ("timeout_seconds", ["x"], {"timeout_seconds": 0}),
    ],
)
def test_bad_arguments_name_the_field(field, tasks, options):
    async def main() -> None:
        with pytest.raises(InvalidValueError, match=field):
            await World().batch(tasks, **options)

    virtually(main())


def test_without_results_the_list_is_light():
    async def main() -> None:
        world = World()
        delivered = []
        results = await world.batch(["x"], keep_results=False, on_result=delivered.append)
        assert results[0].result is None
        assert delivered[0].result is not None

    virtually(main())
