"""The bar of a batch: on a terminal, where rich is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


class Bar:
    """Counts what has ended; shows it if there is a `progress` to show it on."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._progress = progress
        self._total = total
        self._ended = 0
        self._failed = 0
        self._in = 0
        self._task = None if progress is None else progress.add_task("", total=total, status=self._status())

    def admitted(self) -> None:
        """One more input has a place for the first time."""
        self._in += 1
        self._show()

    def ended(self, *, failed: bool, was_in: bool) -> None:
        """One more input has ended."""
        self._ended += 1
        self._failed += failed
        self._in -= was_in
        self._show()

    def _show(self) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=self._ended, status=self._status())

    def _status(self) -> str:
        failed = f", {self._failed} failed" if self._failed else ""
        return f"{self._in} in, {self._total - self._ended - self._in} to come{failed}"


@contextmanager
def bar_on_stderr(total: int, *, shown: bool) -> Iterator[Bar]:
    """A bar that vanishes into nothing where it cannot or shall not be shown."""
    if not shown or not total:
        yield Bar(total, None)
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ModuleNotFoundError:
        yield Bar(total, None)
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Bar(total, None)
        return
    columns = (
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("agents"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[status]}"),
    )
    with Progress(*columns, console=console) as progress:
        yield Bar(total, progress)
