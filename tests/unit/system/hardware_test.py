"""The machine's properties, on machines that the tests make up, and the process's own settings."""

import gc
import os
import resource
import subprocess
import sys
from unittest import mock

import pytest

from scalable_agent_popart.system import cores, hardware
from tests.fakes.programs import ROOT, run_python


@pytest.mark.parametrize("gpus", [[], ["H100", "A2"]])
def test_a_prepared_process_has_a_thread_a_core_unless_gpus_compute(
    monkeypatch: pytest.MonkeyPatch, gpus: list[str]
) -> None:
    config = mock.Mock()
    config.list_physical_devices.side_effect = lambda kind: gpus * (kind == "GPU")
    config.get_visible_devices.side_effect = lambda _: config.set_visible_devices.call_args.args[0]
    monkeypatch.setattr(hardware, "tf", mock.Mock(config=config))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
    hardware.prepare_process()
    assert 256 < resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= most, "of open files"
    # A learner computes on one GPU, and leaves others alone.
    growth = config.experimental.set_memory_growth
    assert growth.mock_calls == [mock.call(name, True) for name in gpus[:1]]
    for kind, number in (("intra", 1), ("inter", cores.num_cores())):
        limit = getattr(config.threading, f"set_{kind}_op_parallelism_threads")
        assert limit.mock_calls == [mock.call(number)] * (not gpus)
    assert gc.get_freeze_count() > 10_000, "modules' objects are kept from the garbage collector"
    gc.unfreeze()


_PROGRAM = """
import resource, sys, threading
from unittest.mock import MagicMock
sys.modules["tensorflow"] = MagicMock()
from scalable_agent_popart.system import cores, hardware

def allocate(faults):
    for _ in range(5):
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        b"x" * (50 * 2**20)

for prepare in (int, hardware.keep_freed_memory):
    prepare()
    thread = threading.Thread(target=allocate, args=[faults := []])
    thread.start()
    thread.join()
    print(faults[-1] - faults[1])
"""


def test_freed_memory_is_kept() -> None:
    output = subprocess.check_output([sys.executable, "-c", _PROGRAM], cwd=ROOT)
    without, kept = map(int, output.split())
    assert kept <= without / 20, "page faults"


_GRANDCHILD = "block = bytearray(b'x') * (100 * 2**20); print('ready', flush=True); input()"
_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_GRANDCHILD!r}])"


def test_memory_counts_processes_started_by_this_one_and_by_those() -> None:
    before = hardware.memory_mib()
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout
        assert child.stdout.readline() == b"ready\n"
        during = hardware.memory_mib()
        child.communicate()
    assert 100 < during - before < 200
    assert hardware.memory_mib() < during - 75


def test_a_gpu_that_is_asked_for_and_is_not_there_is_named_or_refused() -> None:
    prepare = "from scalable_agent_popart.system.hardware import prepare_process as prepare"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "99"}  # No machine has so many GPUs.
    program = f"""{prepare}; import os, sys
prepare(0); print("ASKED", file=sys.stderr)
prepare(-1); os.environ["CUDA_VISIBLE_DEVICES"] = ""; prepare(1)"""
    result = run_python("-c", program, env=environment)
    assert result.returncode == 1
    quiet, asked = result.stderr.split("ASKED\n")
    assert "trains without" not in quiet
    assert "trains without a GPU: CUDA_VISIBLE_DEVICES or" in asked
    assert asked.endswith("UserError: --gpus=1: there is no GPU to train on\n")
