"""The benchmark writes what it promises; how fast anything is, no test judges."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_benchmark_reports_training_beside_the_bare_rates(tmp_path: Path) -> None:
    result = tmp_path / "throughput.json"
    subprocess.run(
        [
            sys.executable,
            "benchmarks/throughput.py",
            "--level_name=catch5",
            "--network=shallow",
            "--repeats=1",
            "--seconds=0.1",
            f"--json={result}",
        ],
        cwd=ROOT,
        check=True,
        timeout=300,
    )
    figures = json.loads(result.read_text())
    bare = [figures[name] for name in ("forward", "train_step", "emulation")]
    assert all(rate > 0 for rate in bare)
    assert figures["roofline"] == pytest.approx(1 / sum(1 / rate for rate in bare))
    assert figures["efficiency"] == pytest.approx(
        figures["agent_steps_per_second"] / figures["roofline"]
    )
    assert figures["agent_steps_per_second"] > 0
    assert figures["policy_lag"] >= 0
    assert figures["peak_memory_gib"] > 0
