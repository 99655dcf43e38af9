"""Measures training throughput next to systems that one would pick instead.

  python benchmarks/peers/compare.py --environments=peers --repeats=3 --seconds=60 --json=peers.json

Runs from this project's environment. Each peer has a virtual environment of its own below
`--environments`, which is made if it is missing. In every repeat all contenders run one after the
other, and ratios are taken within a repeat.

All train IMPALA's deep network on Pong in float32: 32 environments, rollouts of 20 steps, batches
of 32 rollouts, each used once. With `--measure=overhead` they train one linear layer in 64
environments that cost nothing, which shows what the systems' own work takes.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import setting

from scalable_agent_popart.system import supervisor

_HERE = Path(__file__).resolve().parent
_TIMEOUT_SECONDS = 1800.0

# These suit glibc's allocator to a process that frees and asks for large tensors over and over.
_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_ARENA_MAX": "1",
}
# Otherwise threads that wait for work take the cores from processes that have some.
_SLEEPING = {**_MALLOC, "OMP_WAIT_POLICY": "PASSIVE"}
_ONE_THREAD = {**_MALLOC, "OMP_NUM_THREADS": "1"}
_RATE = "agent_steps_per_second"
_OURS = ["../throughput.py", "--use_popart=false", "--precision=float32", "--repeats=1"]
_APPO = ["sample_factory_appo.py"]
_RLLIB = ["rllib_impala.py"]


class Contender(NamedTuple):
    """A system to run: a script of Python with its arguments, in one of the environments."""

    environment: str  # It lies below `--environments`; without a name it is the one of this file.
    command: list[str]
    variables: dict[str, str]
    overhead: tuple[str, ...] = ()  # These arguments measure the system's own work, if it can be.


# The first is what the others are compared with.
CONTENDERS = {
    "ours": Contender("", _OURS, {}, ("--measure=overhead", "--num_actors=64")),
    "Sample Factory, as installed": Contender("sf", _APPO, {}, ("--overhead",)),
    "Sample Factory, malloc tuned": Contender("sf", _APPO, _MALLOC),
    "Sample Factory, tuned": Contender("sf", [*_APPO, "--tuned"], _SLEEPING, ("--overhead",)),
    "RLlib, as installed": Contender("rllib", _RLLIB, {}),
    "RLlib, malloc tuned": Contender("rllib", _RLLIB, _MALLOC),
    "RLlib, tuned": Contender("rllib", [*_RLLIB, "--tuned"], _ONE_THREAD),
}
REQUIREMENTS = {"sf": "requirements-sample-factory.txt", "rllib": "requirements-rllib.txt"}


def python_of(environments: Path, name: str) -> str:
    """Returns the interpreter of an environment, which is made if it is missing."""
    if not name:
        return sys.executable
    python = str(environments / name / "bin" / "python")
    if not os.path.exists(python):
        print(f"Making {environments / name}", flush=True)
        venv.create(environments / name, with_pip=True)
        arguments = ["-m", "pip", "install", "--quiet", "-r", str(_HERE / REQUIREMENTS[name])]
        subprocess.run([python, *arguments], check=True)
    return python


def run(contender: Contender, options: argparse.Namespace) -> dict[str, Any]:
    """Measures once and returns the contender's own JSON; a failure ends the comparison."""
    script, *arguments = contender.command
    python = python_of(options.environments, contender.environment)
    # What is measured as installed must not inherit what tunes the others.
    tuning = {*_SLEEPING, *_ONE_THREAD}
    variables = {name: value for name, value in os.environ.items() if name not in tuning}
    variables |= contender.variables
    with tempfile.TemporaryDirectory() as directory:
        result, output = Path(directory) / "result.json", Path(directory) / "output"
        command = [python, str(_HERE / script), *arguments]
        command += [f"--seconds={options.seconds}", f"--json={result}"]
        with supervisor.group() as group, open(output, "wb") as file:
            child = supervisor.Child(command, output=file, environment=variables, group=group)
            try:
                status = child.wait(_TIMEOUT_SECONDS)
            finally:
                child.send_signal(signal.SIGTERM)
                child.wait(60)
        if status != 0:
            sys.exit(f"{script} ended with {status}:\n{supervisor.tail(output, 4000)}")
        return json.loads(result.read_text())


def main() -> None:
    """Measures everything, prints the medians and writes the JSON file."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--environments", type=Path, default=Path("peers"), help="folder")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="each measurement lasts")
    parser.add_argument("--measure", choices=["training", "overhead"], default="training")
    parser.add_argument("--tuned", action="store_true", help="leave out peers that are not tuned")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.environments = options.environments.expanduser().absolute()
    setting.heed_signals()

    contenders = CONTENDERS
    if options.tuned:
        contenders = {n: c for n, c in contenders.items() if n == "ours" or n.endswith(", tuned")}
    if options.measure == "overhead":
        contenders = {
            name: contender._replace(command=[*contender.command, *contender.overhead])
            for name, contender in contenders.items()
            if contender.overhead
        }
    for contender in contenders.values():
        python_of(options.environments, contender.environment)
    repeats: list[dict[str, dict[str, Any]]] = []
    for number in range(1, options.repeats + 1):
        repeats.append({})
        for name, contender in contenders.items():
            repeats[-1][name] = result = run(contender, options)
            print(f"{number}: {name}: {result[_RATE]:,.1f} agent steps/s", flush=True)
        table = summarise(repeats, options)
    print("\nmedian agent steps/s, and how many times as fast ours is:")
    print(table.to_string(header=False, formatters=["{:,.1f}".format, "{:.2f}".format]))


def summarise(
    repeats: list[dict[str, dict[str, Any]]], options: argparse.Namespace
) -> pd.DataFrame:
    """Returns medians over the repeats so far, and writes everything to the JSON file."""
    rates = pd.DataFrame([{name: r[_RATE] for name, r in results.items()} for results in repeats])
    ratios = rates.rdiv(rates["ours"], axis=0)
    table = pd.DataFrame({"median_rate": rates.median(), "median_ratio": ratios.median()})
    if options.json:
        rows = [
            {"name": name, "rates": rates[name].tolist(), "ratios": ratios[name].tolist()}
            | {"runs": len(rates), **medians}
            for name, medians in table.to_dict("index").items()
        ]
        record = {"game": "pong", "seconds": options.seconds, "contenders": rows}
        text = json.dumps({**record, "repeats": repeats}, indent=2)
        options.json.expanduser().write_text(text + "\n")
    return table


if __name__ == "__main__":
    main()
