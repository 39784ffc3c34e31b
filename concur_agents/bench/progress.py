"""What a benchmark shows while it runs."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from concur_agents.bench.recorder import Recorder, Sample
from concur_agents.bench.results import ArmResult
from concur_agents.bench.tables import rate, seconds, tokens


class LiveProgress:
    """One bar an arm, with the window and the signals beside it. Use as `with`."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[status]}"),
            console=console,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begins(self, arm: str, steps: int) -> None:
        """See `Watcher.begins`."""
        self._task = self._progress.add_task(arm, total=steps, status="")

    def ticks(self, recorder: Recorder) -> None:
        """See `Watcher.ticks`."""
        if self._task is not None and recorder.samples:
            status = _status(recorder.samples[-1])
            self._progress.update(self._task, completed=recorder.steps, status=status)

    def ends(self, result: ArmResult) -> None:
        """See `Watcher.ends`."""
        if self._task is not None:
            status = f"{seconds(result.seconds)}, hit rate {rate(result.hit_rate)}"
            self._progress.update(self._task, completed=result.steps, status=status)
            self._progress.stop_task(self._task)


def _status(now: Sample) -> str:
    window = "∞" if now.window is None else str(now.window)
    if now.window is None and now.window_tokens is not None:
        window = f"{tokens(now.window_tokens)} tokens"
    return (
        f"t {now.at:.0f} s  W {window}  active {now.active}  paused {now.paused}  waiting {now.waiting}  "
        f"U {rate(now.usage)}  H {rate(now.hit_rate)}"
    )
