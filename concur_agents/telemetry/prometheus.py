"""Reading Prometheus text cheaply: only the wanted lines are parsed, only the wanted names are asked for.

The text is parsed by `prometheus_client`; the line filter in front of it makes that some ten times cheaper on
an engine's full /metrics, and the engine's answer to `/metrics/?name[]=...` is fifty times shorter. What the
numbers mean is left to the engine's own module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from concur_agents.telemetry.endpoint import ScrapeError, StatusError, Visit

Series = Mapping[str, Sequence[Sample]]
"""Samples by the exact name in the exposition (`..._total` included)."""


def parse(text: str, wanted: AbstractSet[str]) -> dict[str, list[Sample]]:
    """The samples whose exact name is in `wanted`; `x_total` never matches its twin `x_created`.

    Raises:
        ScrapeError: a wanted line is not Prometheus text.
    """
    lines = [line for line in text.split("\n") if _name(line) in wanted]
    found: dict[str, list[Sample]] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines)):
            for sample in family.samples:
                found.setdefault(sample.name, []).append(sample)
    except Exception as error:  # the parser documents none and raises several kinds
        msg = f"a line of the metrics is not Prometheus text: {error!r}"
        raise ScrapeError(msg) from error
    return found


def _name(line: str) -> str:
    words = line.partition("{")[0].split(None, 1)
    return words[0] if words else ""


class Scraper:
    """Gets the wanted series of one endpoint and remembers the cheapest way that works there.

    The first scrape reads all of /metrics and learns which dialect is spoken; later ones ask for that
    dialect's names only. Where a known name is missing from such an answer (an exporter in multiprocess
    mode answers with an empty body, others ignore the filter or refuse the path), all of /metrics is read
    again, and if that has it, the filter is given up.

    Args:
        dialects: Sets of names; an engine speaks one of them.
        common: Names asked for beside them.
    """

    def __init__(self, *dialects: frozenset[str], common: frozenset[str] = frozenset()) -> None:
        self._dialects = dialects
        self._common = common
        self._wanted = common.union(*dialects)
        self._known: frozenset[str] = frozenset()
        self.filtered = True
        """Whether the endpoint is still believed to filter by name."""

    async def scrape(self, visit: Visit) -> Series:
        """The wanted series that the endpoint has now; empty when it has none.

        Raises:
            ScrapeError: the endpoint failed.
        """
        narrow: Series = {}
        ask = self._names_to_ask()
        if ask:
            narrow = await self._filtered(visit, ask)
            if self._known <= narrow.keys():
                return narrow
        full = parse(await visit.get("/metrics"), self._wanted)
        if ask and full.keys() - narrow.keys():
            self.filtered = False
        self._known = frozenset(full)
        return full

    def _names_to_ask(self) -> frozenset[str]:
        spoken = [names for names in self._dialects if names & self._known]
        return self._common.union(*spoken) if self.filtered and spoken else frozenset()

    async def _filtered(self, visit: Visit, ask: frozenset[str]) -> Series:
        # The trailing slash matters: without it vLLM ignores the filter.
        try:
            return parse(await visit.get("/metrics/", [("name[]", name) for name in sorted(ask)]), ask)
        except StatusError:
            return {}


def by_engine(
    samples: Iterable[Sample],
    engine_of: Callable[[Mapping[str, str]], str],
    *,
    duplicates: AbstractSet[str],
    combine: Callable[[Iterable[float]], float],
) -> dict[str, float]:
    """One value an engine.

    Samples that differ only in the labels `duplicates` repeat one number and count once (the largest: a
    worker that did not report yet shows 0); what is left is combined. NaN counts only where an engine has
    nothing else.
    """
    distinct: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for sample in samples:
        labels = frozenset(item for item in sample.labels.items() if item[0] not in duplicates)
        values = distinct.setdefault(engine_of(sample.labels), {})
        values[labels] = _larger(values.get(labels, math.nan), float(sample.value))
    return {engine: _combined(values.values(), combine) for engine, values in distinct.items()}


def _larger(one: float, other: float) -> float:
    return other if math.isnan(one) or other > one else one


def _combined(values: Iterable[float], combine: Callable[[Iterable[float]], float]) -> float:
    numbers = [value for value in values if not math.isnan(value)]
    return combine(numbers) if numbers else math.nan


def count(value: float | None) -> float | None:
    """A counter's or a size's value, or None when it cannot be one (negative, infinite, NaN, missing)."""
    return value if value is not None and math.isfinite(value) and value >= 0 else None


def whole(value: float | None) -> int | None:
    """The same as a whole number."""
    number = count(value)
    return None if number is None else int(number)
