"""`concur` as people use it: files, messages, exit status, Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from concur_agents.bench.library import LOCKSTEP_A
from concur_agents.bench.plot import draw
from concur_agents.bench.session import run_simulated
from concur_agents.commands import app
from concur_agents.simulator.profiles import CPU_TINY

CONCUR = [sys.executable, "-m", "concur_agents.cli"]


def concur(*arguments):
    return CliRunner().invoke(app, arguments)


def process(*arguments, **options):
    return subprocess.Popen(
        [*CONCUR, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


class TestBench:
    def test_writes_what_it_shows(self, tmp_path):
        result_file, plot = tmp_path / "r.json", tmp_path / "r.png"
        done = concur("bench", "--arms", "none, static:6", "--json", result_file, "--plot", plot)
        assert done.exit_code == 0, done.output
        result = json.loads(result_file.read_text())
        assert [arm["arm"] for arm in result["arms"]] == ["none", "static:6"]
        assert result["arms"][1]["speedup"] == pytest.approx(2.85, abs=0.1)
        assert plot.read_bytes().startswith(b"\x89PNG")
        assert "static:6" in done.output
        assert "virtual seconds" in done.output

    def test_the_cache_can_be_resized(self, tmp_path):
        result_file = tmp_path / "r.json"
        concur("bench", "--arms", "none", "--kv-tokens", "200000", "--json", result_file)
        assert json.loads(result_file.read_text())["arms"][0]["hit_rate"] > 0.8  # all contexts fit

    def test_fidelity(self, tmp_path):
        result_file = tmp_path / "f.json"
        assert concur("bench", "--fidelity", "--json", result_file).exit_code == 0
        assert json.loads(result_file.read_text())["ok"] is True

    def test_lists(self):
        done = concur("bench", "--list")
        assert done.exit_code == 0
        assert "lockstep-b" in done.output
        assert "h100-qwen3-32b-tp8" in done.output

    def test_studies_exclude_each_other(self):
        assert concur("bench", "--paper", "--gate").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workload", "x"), "workload='x' is unknown"),
        (("--arms", "none,best"), "policy='best' is unknown"),
        (("--arms", ","), "arms= is empty"),
        (("--profile", "x"), "profile='x' is unknown"),
        (("--engine", "x"), "engine='x' is unknown"),
        (("--kv-tokens", "1"), "kv_tokens=1"),
        (("--interval", "0"), "interval_seconds=0"),
        (("--engine", "embedded", "--speed", "0"), "speed=0"),
        (("--engine", "embedded", "--agents", "no.such:Thing"), "agents='no.such:Thing' is unknown"),
        (("--json", "/no/such/directory/x.json"), "there is no directory"),
        (("--plot", "x.doc"), "expected a name that ends in"),
    ],
)
def test_wrong_arguments_are_named_and_nothing_runs(arguments, message, monkeypatch, capsys):
    from concur_agents.cli import main

    monkeypatch.setattr(sys, "argv", ["concur", "bench", *arguments])
    with pytest.raises(SystemExit) as exit_status:
        main()
    assert exit_status.value.code == 2
    assert message in capsys.readouterr().err


def test_an_engine_that_does_not_answer_is_a_failure_not_a_traceback():
    with process("bench", "--engine", "http://127.0.0.1:9", "--arms", "none") as child:
        _, errors = child.communicate(timeout=60)
    assert child.returncode == 1
    assert "no OpenAI-compatible server answers" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("command", ["engine", "bench", "demo"])
def test_help(command):
    done = concur(command, "--help")
    assert done.exit_code == 0
    assert "--speed" in done.output


class TestCtrlC:
    @pytest.mark.parametrize(
        "arguments",
        [
            ("bench", "--workload", "scale-10k", "--arms", "aimd,none"),
            ("bench", "--engine", "embedded", "--arms", "none,aimd"),
            ("demo", "--speed", "1"),
        ],
        ids=["sim", "embedded", "demo"],
    )
    def test_leaves_a_partial_result_and_no_process(self, tmp_path, arguments):
        result_file = tmp_path / "r.json"
        with process(*arguments, "--json", str(result_file)) as child:
            time.sleep(6.0)  # a process of its own: real time
            child.send_signal(signal.SIGINT)
            output, errors = child.communicate(timeout=30)
        assert child.returncode == 130, errors
        assert "Traceback" not in errors
        result = json.loads(result_file.read_text())
        assert result["partial"] is True
        assert result["arms"][-1]["partial"] is True
        assert result["arms"][-1]["steps"] > 0
        assert "cut short" in output

    def test_ends_the_engine(self):
        with process("engine", "--port", "0", "--speed", "10") as child:
            time.sleep(3.0)
            child.send_signal(signal.SIGINT)
            child.communicate(timeout=10)
        assert child.returncode == 0


class TestPlot:
    def test_has_a_column_an_arm_and_four_rows(self):
        result = run_simulated(LOCKSTEP_A, CPU_TINY, ("none", "static:6", "aimd"))
        figure = draw(result)
        assert len(figure.axes) == 12
        titles = [axes.get_title() for axes in figure.axes[:3]]
        assert [title.split("\n")[0] for title in titles] == ["none", "static:6", "aimd"]
        labels = {axes.get_ylabel() for axes in figure.axes} - {""}
        assert labels == {"window W, agents", "utilisation U", "hit rate H", "agents"}
        window = figure.axes[2].get_lines()[0]
        samples = [s for s in result.arm("aimd").samples if s.window is not None]
        assert list(window.get_ydata()) == [s.window for s in samples]

    def test_draws_an_arm_that_was_cut_short_at_once(self):
        result = run_simulated(LOCKSTEP_A, CPU_TINY, ("none",))
        from dataclasses import replace

        cut = replace(result, arms=(replace(result.arms[0], samples=(), partial=True),))
        assert "partial" in draw(cut).get_suptitle()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bench", "--json", "/"], "json=/ cannot be written"),
        (["bench", "--plot", "/proc/x.png"], "plot=/proc/x.png cannot be written"),
        (["bench", "--arms", "static:0"], "policy='static:0' is unknown: expected"),
        (["engine", "--speed", "inf", "--port", "0"], "speed=inf is out of range"),
    ],
)
def test_what_cannot_work_is_said_before_the_work(arguments: list[str], says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "concur_agents.cli", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
