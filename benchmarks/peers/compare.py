"""Training throughput beside what one would pick instead.

  python benchmarks/peers/compare.py --environments=peers --repeats=3 --seconds=60 --json=peers.json

Runs from this project's environment, and needs nothing but the standard library. Each peer has a
virtual environment of its own below `--environments`, which is made if it is missing. In every
repeat all contenders run one after the other, and ratios are taken within a repeat. All train
IMPALA's deep network on one Atari game: 32 environments, rollouts of 20 steps, batches of 32
rollouts, each used once, in float32 unless a contender's name says otherwise. With
`--measure=overhead` they train one linear layer in 64 environments that cost nothing, which shows
what the systems' own work takes.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import setting

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parent.parent

# glibc's allocator as it suits a process that frees and asks for large tensors over and over.
_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_ARENA_MAX": "1",
}
# Or threads that wait for work take the cores from processes that have some.
_PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}
_TUNING = {*_MALLOC, *_PASSIVE, *_ONE_THREAD}
_OURS = [str(_ROOT / "benchmarks" / "throughput.py"), "--use_popart=false", "--precision=float32"]
_OURS += ["--repeats=1"]
_OURS += ["--level_name={game}", "--seconds={seconds}", "--json={json}"]
_PEER = ["--game={game}", "--seconds={seconds}", "--json={json}"]
_OURS_OVERHEAD = ["--measure=overhead", f"--num_actors={setting.OVERHEAD_ENVIRONMENTS}"]
_SAMPLE_FACTORY = [str(_HERE / "sample_factory_appo.py"), *_PEER]
_RLLIB = [str(_HERE / "rllib_impala.py"), *_PEER]


class Contender(NamedTuple):
    """A system to run: a Python script in one of the environments."""

    name: str
    environment: str | None  # Below `--environments`; None: the one that runs this file.
    command: list[str]
    variables: dict[str, str]


# The first is what the others are compared with.
TRAINING = (
    Contender("ours", None, _OURS, {"PYTHONPATH": str(_ROOT)}),
    Contender("Sample Factory, as installed", "sf", _SAMPLE_FACTORY, {}),
    Contender("Sample Factory, malloc tuned", "sf", _SAMPLE_FACTORY, _MALLOC),
    Contender(
        "Sample Factory, tuned", "sf", [*_SAMPLE_FACTORY, "--tuned"], {**_MALLOC, **_PASSIVE}
    ),
    Contender("RLlib, as installed", "rllib", _RLLIB, {}),
    Contender("RLlib, malloc tuned", "rllib", _RLLIB, _MALLOC),
    Contender("RLlib, tuned", "rllib", [*_RLLIB, "--tuned"], {**_MALLOC, **_ONE_THREAD}),
)
OVERHEAD = (
    Contender("ours", None, [*_OURS, *_OURS_OVERHEAD], {"PYTHONPATH": str(_ROOT)}),
    Contender("Sample Factory, as installed", "sf", [*_SAMPLE_FACTORY, "--overhead"], {}),
    Contender(
        "Sample Factory, tuned",
        "sf",
        [*_SAMPLE_FACTORY, "--overhead", "--tuned"],
        {**_MALLOC, **_PASSIVE},
    ),
)
REQUIREMENTS = {"sf": "requirements-sample-factory.txt", "rllib": "requirements-rllib.txt"}


def python_of(environments: Path, name: str | None) -> Path:
    """The interpreter of an environment."""
    return environments / name / "bin" / "python" if name else Path(sys.executable)


def make_environments(environments: Path, contenders: Sequence[Contender]) -> None:
    """Makes the contenders' virtual environments that are missing."""
    wanted = {contender.environment for contender in contenders}
    for name, requirements in REQUIREMENTS.items():
        if name not in wanted:
            continue
        python = python_of(environments, name)
        if python.exists():
            continue
        print(f"Making {python.parent.parent}", flush=True)
        try:
            venv.create(python.parent.parent, with_pip=True)
            arguments = ["-m", "pip", "install", "--quiet", "-r", str(_HERE / requirements)]
            subprocess.run([str(python), *arguments], check=True)
        except BaseException:
            python.unlink(missing_ok=True)  # Or half an environment would be taken for one.
            raise


def stop(process: subprocess.Popen) -> None:
    """Ends a contender: asks it to, waits, and kills what is left of its process group."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(60)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run(contender: Contender, options: argparse.Namespace) -> dict[str, Any]:
    """One measurement: the contender's own JSON, or `failed` with the end of its output."""
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "result.json"
        values = {"game": options.game, "seconds": options.seconds, "json": result}
        command = [str(python_of(options.environments, contender.environment))]
        command += [argument.format(**values) for argument in contender.command]
        # What is measured as installed must not inherit what tunes the others.
        clean = {name: value for name, value in os.environ.items() if name not in _TUNING}
        with open(Path(directory) / "output", "w+", errors="replace") as output:
            process = subprocess.Popen(
                command,
                cwd=_ROOT,
                env={**clean, **contender.variables},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status: int | str = process.wait(options.timeout)
            except subprocess.TimeoutExpired:
                status = f"no end after {options.timeout:.0f} s"
            finally:
                stop(process)
            if status == 0 and result.exists():
                return json.loads(result.read_text())
            output.seek(0)
            return {"failed": status, "output": output.read()[-4000:]}


def summary(repeats: list[dict[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """For every contender its rates, and how many times as fast the first is in each repeat."""
    rates: list[dict[str, Any]] = [
        {name: result.get("agent_steps_per_second") for name, result in repeat.items()}
        for repeat in repeats
    ]
    rows = []
    first = next(iter(rates[0]))
    for name in rates[0]:
        made = [repeat[name] for repeat in rates if repeat[name]]
        pairs = [(repeat[first], repeat[name]) for repeat in rates]
        ratios = [ours / theirs for ours, theirs in pairs if ours and theirs]
        row: dict[str, Any] = {"name": name, "rates": made, "ratios": ratios, "runs": len(rates)}
        row["median_rate"] = statistics.median(made) if made else None
        row["median_ratio"] = statistics.median(ratios) if ratios else None
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The summary in Markdown: medians, and from the least to the most."""
    lines = [
        f"| Contender | agent steps/s | {rows[0]['name']} / it | failed |",
        "|---|---|---|---|",
    ]
    for row in rows:
        cells = [row["name"]]
        for values, form in ((row["rates"], ",.0f"), (row["ratios"], ".2f")):
            spread = (statistics.median(values), min(values), max(values)) if values else ()
            texts = [format(value, form) for value in spread]
            cells.append("{} ({} to {})".format(*texts) if texts else "failed")
        cells.append(f"{row['runs'] - len(row['rates'])} of {row['runs']}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Measures everything, prints the table and writes the JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--environments", type=Path, default=Path("peers"), help="folder")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="each measurement lasts")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for a contender")
    parser.add_argument("--game", default="pong")
    parser.add_argument("--measure", choices=["training", "overhead"], default="training")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.environments = options.environments.absolute()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    contenders = OVERHEAD if options.measure == "overhead" else TRAINING
    make_environments(options.environments, contenders)
    repeats: list[dict[str, dict[str, Any]]] = []
    for number in range(1, options.repeats + 1):
        repeats.append({})
        for contender in contenders:
            result = repeats[-1][contender.name] = run(contender, options)
            if "failed" in result:
                print(f"{contender.name} FAILED ({result['failed']}):\n{result['output']}")
            else:
                rate = result["agent_steps_per_second"]
                print(f"{number}: {contender.name}: {rate:,.1f} agent steps/s", flush=True)
    rows = summary(repeats)
    print(f"\n{table(rows)}")
    if options.json:
        record = {"game": options.game, "seconds": options.seconds, "contenders": rows}
        record["repeats"] = repeats
        options.json.write_text(json.dumps(record, indent=2) + "\n")
    return int(any(len(row["rates"]) < row["runs"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
