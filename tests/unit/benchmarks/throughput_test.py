"""The benchmark writes what it promises; no test judges how fast anything is."""

import json
from pathlib import Path

import pytest
from absl import flags
from absl.testing import flagsaver

from scalable_agent_popart.errors import UserError

_BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
_TINY = "--level_name=catch5 --num_actors=5 --batch_size=2 --unroll_length=5 --precision=float32"


def test_training_is_reported_next_to_the_bare_rates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(_BENCHMARKS))
    with flagsaver.flagsaver():
        import throughput  # noqa: PLC0415 - defines flags.

        more = ["--use_popart", "--repeats=1", "--seconds=0.3", f"--json={tmp_path / 'json'}"]
        throughput.main(flags.FLAGS(["throughput.py", *_TINY.split(), *more]))
        figures = json.loads((tmp_path / "json").read_text())
        with pytest.raises(UserError, match="--num_actors"):
            throughput.main(flags.FLAGS(["throughput.py", "--against=num_actors=0"]))
        for changes, named in (("use_popat=false", "use_popat"), ("seed=two", "--seed=two")):
            with pytest.raises(flags.Error, match=named):
                throughput.main(flags.FLAGS(["throughput.py", f"--against={changes}"]))
        throughput.main(flags.FLAGS(["throughput.py", "--against=", "--measure=overhead"]))
        overhead = json.loads((tmp_path / "json").read_text())
        throughput.main(
            flags.FLAGS(["throughput.py", "--measure=accelerator", "--machine=1e4,1e4,1e4"])
        )
        model = json.loads((tmp_path / "json").read_text())
        with pytest.raises(UserError, match="--machine=typewriter"):
            throughput.main(flags.FLAGS(["throughput.py", "--machine=typewriter"]))
    assert model["ratio"] == model["agent_steps_per_second"] / model["bound"]
    # A policy's call is 3.2 ms, of which 32 environments take 1.07 ms, and an update 0.1 ms a step.
    call = (3.2e-3 - 32 * 1e-4 / 3) / 5 + 1e-4 / 3
    assert model["bound"] == pytest.approx(1 / (1e-4 + call))
    assert overhead["ratio"] == overhead["two_threads"] / overhead["one_thread"]
    bare = [figures[name] for name in ("forward", "train_step", "emulation")]
    assert figures["roofline"] == pytest.approx(1 / sum(1 / rate for rate in bare))
    speed = figures["agent_steps_per_second"]
    assert figures["efficiency"] == pytest.approx(speed / figures["roofline"])
    for thread in ("actor", "learner"):
        shares = [share for name, share in figures.items() if name.startswith(f"{thread}_")]
        assert len(shares) > 1
        assert sum(shares) == pytest.approx(1)
    assert figures["settings"]["use_popart"] is True
