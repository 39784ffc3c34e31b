"""Only the wanted lines, by exact name, with the numbers they have."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given
from prometheus_client.parser import text_string_to_metric_families

from concur_agents.telemetry.endpoint import ScrapeError
from concur_agents.telemetry.prometheus import by_engine, count, parse, whole
from concur_agents.telemetry.vllm import DIALECTS
from tests.telemetry.fake import SGLANG_0523, VLLM_032

HITS = "vllm:prefix_cache_hits_total"


def value(text: str, name: str) -> float:
    [sample] = parse(text, {name})[name]
    return sample.value


def test_created_twins_and_longer_names_never_match() -> None:
    text = (
        "# TYPE vllm:prefix_cache_hits_total counter\n"
        'vllm:prefix_cache_hits_total{engine="0"} 7\n'
        'vllm:prefix_cache_hits_created{engine="0"} 1.79e+09\n'
        'vllm:prefix_cache_hits_total_more{engine="0"} 8\n'
        'vllm:external_prefix_cache_hits_total{engine="0"} 9\n'
    )
    assert value(text, HITS) == 7


@pytest.mark.parametrize(
    ("written", "number"),
    [("9.75e-06", 9.75e-06), ("1.2114239e+07", 12114239.0), ("0", 0), ("+Inf", math.inf)],
)
def test_numbers_in_any_notation(written, number) -> None:
    assert value(f'{HITS}{{engine="0"}} {written}\n', HITS) == number


@pytest.mark.parametrize("line", ["a 5", "a\t5", "a{} 5", "a  5 1700000000000", 'a{l="x} y\\"{a b"} 5\r'])
def test_spellings_of_a_line(line) -> None:
    assert value(f"ab 1\n{line}\nb 2\n", "a") == 5


def test_the_filter_loses_nothing_of_what_the_parser_finds_in_the_real_dumps() -> None:
    for text in (VLLM_032, SGLANG_0523):
        everything = [s for f in text_string_to_metric_families(text) for s in f.samples]
        for name in {s.name for s in everything if not s.name.endswith(("_bucket", "_created"))}:
            wanted = [(s.labels, str(s.value)) for s in everything if s.name == name]
            assert [(s.labels, str(s.value)) for s in parse(text, {name})[name]] == wanted


@pytest.mark.parametrize(
    "line", [f'{HITS}{{engine="0"', f'{HITS}{{engine="0"}}', f"{HITS} much", f"{HITS}{{engine=0}} 1", HITS]
)
def test_a_broken_line_is_a_described_failure(line) -> None:
    with pytest.raises(ScrapeError, match="not Prometheus text"):
        parse(line, {HITS})


@given(st.text(), st.sampled_from(["", HITS, HITS + "{", HITS + " ", HITS + '{engine="']))
def test_any_text_is_parsed_or_refused(text, start) -> None:
    try:
        found = parse(start + text, DIALECTS[0])
    except ScrapeError:
        return
    assert found.keys() <= DIALECTS[0]


def test_duplicates_count_once_and_the_rest_adds_up() -> None:
    lines = [
        ("0", "0", "a", 3),
        ("1", "0", "a", 3),
        ("0", "0", "b", 4),
        ("0", "1", "a", 5),
        ("1", "1", "a", "NaN"),
    ]
    text = "".join(f'x{{tp="{t}",dp="{d}",mode="{m}"}} {v}\n' for t, d, m, v in lines)
    values = by_engine(
        parse(text, {"x"})["x"], lambda labels: labels["dp"], duplicates=frozenset(("tp",)), combine=sum
    )
    assert values == {"0": 7, "1": 5}


def test_only_a_counter_that_can_be_one_is_one() -> None:
    assert [count(v) for v in (math.nan, math.inf, -1, None, 0, 2.5)] == [None, None, None, None, 0, 2.5]
    assert [whole(v) for v in (math.nan, -math.inf, 3.0)] == [None, None, 3]
