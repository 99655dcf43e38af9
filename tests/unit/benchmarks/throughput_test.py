"""The benchmark writes what it promises; how fast anything is, no test judges."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


def _run(result: Path, *flags: str) -> dict[str, Any]:
    subprocess.run(
        [
            sys.executable,
            "benchmarks/throughput.py",
            "--level_name=catch5",
            "--network=shallow",
            "--seconds=0.1",
            f"--json={result}",
            *flags,
        ],
        cwd=ROOT,
        check=True,
        timeout=300,
    )
    return json.loads(result.read_text())


def test_benchmark_reports_training_beside_the_bare_rates(tmp_path: Path) -> None:
    figures = _run(tmp_path / "figures.json", "--use_popart", "--repeats=1")
    bare = [figures[name] for name in ("forward", "train_step", "emulation")]
    assert all(rate > 0 for rate in bare)
    assert figures["roofline"] == pytest.approx(1 / sum(1 / rate for rate in bare))
    assert figures["efficiency"] == pytest.approx(
        figures["agent_steps_per_second"] / figures["roofline"]
    )
    assert figures["agent_steps_per_second"] > 0
    assert figures["policy_lag"] >= 0
    assert 0 <= figures["queue_fill"] <= 1
    assert figures["peak_memory_gib"] > 0
    for thread in ("actor", "learner"):
        shares = {name: f for name, f in figures.items() if name.startswith(f"{thread}_")}
        assert len(shares) > 1
        assert sum(shares.values()) == pytest.approx(1)
    assert figures["settings"]["use_popart"] is True
    assert figures["settings"]["precision"] in ("float32", "bfloat16")


def test_benchmark_compares_two_agents_that_differ_in_the_flags_named(tmp_path: Path) -> None:
    figures = _run(tmp_path / "figures.json", "--against=use_popart=true;seed=2", "--repeats=2")
    assert len(figures["repeats"]) == 2
    for repeat in figures["repeats"]:
        assert repeat["ratio"] == pytest.approx(
            repeat["agent_steps_per_second"] / repeat["against"]
        )


def test_benchmark_of_endurance_reports_memory_and_traces(tmp_path: Path) -> None:
    figures = _run(tmp_path / "figures.json", "--endurance_minutes=0.05")
    assert figures["updates"] >= 60
    assert figures["retraced"] == 0
    assert figures["memory_gib_late"] > 0
    assert figures["memory_growth"] == pytest.approx(
        figures["memory_gib_late"] / figures["memory_gib_early"] - 1
    )


def test_benchmark_of_overhead_reports_one_thread_beside_two(tmp_path: Path) -> None:
    figures = _run(tmp_path / "figures.json", "--measure=overhead", "--repeats=1")
    for name in ("one_thread", "two_threads"):
        assert figures[name] > 0
        assert figures[f"{name}_processor_us"] > 0
    assert figures["ratio"] == pytest.approx(figures["two_threads"] / figures["one_thread"])


def test_impossible_flags_get_one_line(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "benchmarks/throughput.py", "--against=num_actors=0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("error: --num_actors must be above 0")
