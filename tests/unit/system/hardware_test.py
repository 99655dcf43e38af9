"""What is asked of the machine, on machines that the tests make up, and what the process gets."""

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from scalable_agent_popart import factory
from scalable_agent_popart.config import Config
from scalable_agent_popart.system import hardware

_ROOT = Path(__file__).resolve().parents[3]
_CPUINFO = "processor\t: 0\nmodel name\t: Xeon\nflags\t\t: fpu\n\n"


def use_processor(monkeypatch: pytest.MonkeyPatch, cpuinfo: str | OSError) -> None:
    """A machine without a GPU whose Linux describes its processor like this."""

    real_read_text = Path.read_text

    def read_text(path: Path) -> str:
        if str(path) != "/proc/cpuinfo":
            return real_read_text(path)
        if isinstance(cpuinfo, OSError):
            raise cpuinfo
        return cpuinfo

    monkeypatch.setattr(hardware.tf.config, "list_physical_devices", lambda kind: [])
    monkeypatch.setattr(hardware.Path, "read_text", read_text)


def use_gpus(monkeypatch: pytest.MonkeyPatch, *details: dict[str, Any]) -> list[str]:
    """A machine with these GPUs; returns their names."""
    by_name = {f"gpu-{i}": detail for i, detail in enumerate(details)}
    monkeypatch.setattr(
        hardware.tf.config,
        "list_physical_devices",
        lambda kind: list(by_name) if kind == "GPU" else [],
    )
    monkeypatch.setattr(
        hardware.tf.config.experimental, "get_device_details", lambda gpu: by_name[gpu]
    )
    return list(by_name)


def run_apart(program: str) -> Any:
    """Runs a program in a process of its own and returns the JSON that it prints."""
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=_ROOT,
        timeout=120,
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(result.stdout)


class Stopwatch:
    """A processor's clock that moves only by what the works are made to take.

    The time on the wall moves by as much, and by `waits` for each work.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        waits: Mapping[str, float] | None = None,
        **seconds: float | Callable[[int], float],
    ):
        self.now = self.waited = 0.0
        self.log: list[str] = []
        self._seconds = seconds
        self._waits = waits or {}
        monkeypatch.setattr(hardware.time, "process_time", lambda: self.now)
        monkeypatch.setattr(hardware.time, "perf_counter", lambda: self.now + self.waited)

    def make_work(self, dtype: tf.DType) -> Callable[[], object]:
        def work() -> None:
            self.log.append(dtype.name)
            seconds = self._seconds[dtype.name]
            count = self.log.count(dtype.name)
            self.now += seconds(count) if callable(seconds) else seconds
            self.waited += self._waits.get(dtype.name, 0.0)

        return work


@pytest.mark.parametrize(
    ("float32", "bfloat16", "expected"),
    [
        (0.02, 0.01, tf.bfloat16),
        (0.02, 0.015, tf.bfloat16),
        (0.02, 0.0195, tf.float32),  # Which is no clear gain.
        (0.02, 0.02, tf.float32),
        (0.01, 0.02, tf.float32),
    ],
)
def test_the_type_taken_follows_the_measurement(
    monkeypatch: pytest.MonkeyPatch, float32: float, bfloat16: float, expected: tf.DType
) -> None:
    watch = Stopwatch(monkeypatch, float32=float32, bfloat16=bfloat16)
    assert hardware.faster_type(watch.make_work) == expected
    assert watch.now < 2.0
    assert watch.log == ["float32", "bfloat16"] * (len(watch.log) // 2)


@pytest.mark.parametrize(("gpu", "expected"), [(False, tf.bfloat16), (True, tf.float32)])
def test_what_counts_is_a_processors_own_time_and_of_a_gpu_the_time_until_it_is_done(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, expected: tf.DType
) -> None:
    monkeypatch.setattr(hardware, "has_gpu", lambda: gpu)
    watch = Stopwatch(monkeypatch, {"bfloat16": 0.05}, float32=0.02, bfloat16=0.01)
    assert hardware.faster_type(watch.make_work) == expected


def test_a_first_call_that_compiles_and_pauses_of_a_busy_machine_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fast_but_disturbed(count: int) -> float:
        return 5.0 if count == 1 else 0.01 + 0.2 * (count % 2)

    watch = Stopwatch(monkeypatch, float32=0.02, bfloat16=fast_but_disturbed)
    assert hardware.faster_type(watch.make_work) == tf.bfloat16


def test_slow_work_is_timed_several_times_too(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Stopwatch(monkeypatch, float32=1.0, bfloat16=lambda count: 0.5 if count == 4 else 3.0)
    assert hardware.faster_type(watch.make_work) == tf.bfloat16


@pytest.mark.parametrize("fails", ["to be made", "to run"])
def test_a_type_that_a_device_cannot_compute_is_not_taken(fails: str) -> None:
    def make_work(dtype: tf.DType) -> Callable[[], object]:
        def fail() -> None:
            raise tf.errors.UnimplementedError(None, None, "no such kernel")

        if dtype == tf.bfloat16 and fails == "to be made":
            fail()
        return fail if dtype == tf.bfloat16 else lambda: None

    assert hardware.faster_type(make_work) == tf.float32


def test_the_device_is_named_by_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "num_cores", lambda: 6)
    use_processor(monkeypatch, _CPUINFO)
    assert hardware.device() == {"processor": "Xeon", "cores": 6, "gpus": []}
    use_gpus(monkeypatch, {"device_name": "H100"}, {"device_name": "A2"})
    assert hardware.device()["gpus"] == ["H100", "A2"]


@pytest.mark.parametrize("cpuinfo", ["", "processor : 0\n", FileNotFoundError(2, "no such file")])
def test_a_device_whose_system_does_not_name_it_still_has_cores(
    monkeypatch: pytest.MonkeyPatch, cpuinfo: str | OSError
) -> None:
    use_processor(monkeypatch, cpuinfo)
    device = hardware.device()
    assert isinstance(device["processor"], str)
    assert device["cores"] >= 1


def test_the_gpu_learns_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    use_processor(monkeypatch, "")
    assert not hardware.has_gpu()
    assert hardware.learner_device() == "/device:CPU:0"
    use_gpus(monkeypatch, {})
    assert hardware.has_gpu()
    assert hardware.learner_device() == "/device:GPU:0"


def test_cores_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware.os, "sched_getaffinity", lambda process: {3, 5, 6})
    assert hardware.num_cores() == 3


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/", {}, 8),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000"}, 2),
        ("0::/a/b", {"a/b/cpu.max": "1000 100000", "a/cpu.max": "300000 100000"}, 1),
        # As a container sees it: the path is the host's, and the root is the container's group.
        ("0::/host/path", {"cpu.max": "400000 100000"}, 4),
        ("0::/", {"cpu.max": "1600000 100000"}, 8),
        (
            "4:memory:/m\n2:cpu,cpuacct:/a\n0::/",
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "300000", "cpu,cpuacct/a/cpu.cfs_period_us": "1e5"},
            3,
        ),
        (
            "2:cpu:/a",
            {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"},
            8,
        ),
    ],
)
def test_cores_are_no_more_than_the_cgroups_allow(
    own: str,
    files: dict[str, str],
    cores: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "own").write_text(own + "\n")
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text + "\n")
    monkeypatch.setattr(hardware, "_OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(hardware, "_CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(hardware.os, "sched_getaffinity", lambda process: set(range(8)))
    assert hardware.num_cores() == cores


@pytest.mark.parametrize(
    ("cores", "num_actors", "asked", "threads"),
    [(2, 32, 0, 2), (16, 57, 0, 7), (64, 32, 0, 4), (1, 32, 0, 1), (8, 1, 0, 1), (8, 32, 3, 3)],
)
def test_actor_threads_follow_the_machine_unless_they_are_asked_for(
    cores: int, num_actors: int, asked: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "num_cores", lambda: cores)
    config = Config.from_flags(
        {"level_name": "pong", "num_actors": num_actors, "actor_threads": asked}
    )
    assert factory.num_actor_threads(config) == threads


_PREPARE = """
import gc
import json
import tensorflow as tf
from scalable_agent_popart import hardware

hardware.has_gpu = lambda: False
def threads():
    threading = tf.config.threading
    return [
        threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads()
    ]

seen = [threads()]
for _ in range(2):
    hardware.prepare_process()
    seen.append(threads())
total = int(tf.reduce_sum(tf.ones([1000, 1000])))  # From here on the threads are fixed.
hardware.prepare_process()
seen.append(threads())
print(json.dumps([seen, total, hardware.num_cores(), gc.get_freeze_count()]))
"""


def test_prepared_process_has_a_thread_a_core_and_none_within_operations() -> None:
    seen, total, cores, frozen = run_apart(_PREPARE)
    assert seen == [[0, 0], [1, cores], [1, cores], [1, cores]]
    assert total == 1_000_000
    assert frozen > 10_000, "what the modules hold is kept from the garbage collector"


def test_preparing_a_process_that_has_used_tensorflow_leaves_its_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware, "has_gpu", lambda: False)
    threading = tf.config.threading
    assert int(tf.constant(1) + 1) == 2  # Whatever ran before this test.
    before = (
        threading.get_intra_op_parallelism_threads(),
        threading.get_inter_op_parallelism_threads(),
    )
    for _ in range(2):
        hardware.prepare_process()
    assert before == (
        threading.get_intra_op_parallelism_threads(),
        threading.get_inter_op_parallelism_threads(),
    )
    assert int(tf.constant(1) + 1) == 2


def test_every_gpu_takes_memory_as_it_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names = use_gpus(monkeypatch, {}, {})
    asked: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        hardware.tf.config.experimental, "set_memory_growth", lambda *args: asked.append(args)
    )
    for setter in ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads"):
        # A GPU's processor is left all its threads.
        monkeypatch.setattr(hardware.tf.config.threading, setter, asked.append)
    hardware.prepare_process()
    assert asked == [(name, True) for name in names]


def test_gpus_that_are_in_use_keep_the_memory_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpus(monkeypatch, {})

    def refuse(*args: Any) -> None:
        raise RuntimeError("Physical devices cannot be modified after being initialized")

    monkeypatch.setattr(hardware.tf.config.experimental, "set_memory_growth", refuse)
    hardware.prepare_process()


@pytest.mark.parametrize(("driver", "told"), [(True, 1), (False, 0)])
def test_a_gpu_that_tensorflow_cannot_use_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: bool, told: int
) -> None:
    monkeypatch.setattr(hardware, "has_gpu", lambda: False)
    monkeypatch.setattr(hardware, "NVIDIA_DRIVER", tmp_path if driver else tmp_path / "none")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    warnings: list[str] = []
    monkeypatch.setattr(hardware.logging, "warning", warnings.append)
    hardware.prepare_process()
    assert len(warnings) == told
    assert all("TF_CPP_MIN_LOG_LEVEL=0" in warning for warning in warnings)


_GRANDCHILD = "block = bytearray(b'x') * (200 * 2**20); print('ready', flush=True); input()"
_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_GRANDCHILD!r}])"


@pytest.mark.parametrize("hidden", [False, True])
def test_memory_counts_processes_started_by_this_one_and_by_those(
    monkeypatch: pytest.MonkeyPatch, hidden: bool
) -> None:
    if hidden:  # As in containers where a process may not look into another.
        read_text = Path.read_text

        def refuse(path: Path) -> str:
            if path.name == "smaps_rollup":
                raise PermissionError(path)
            return read_text(path)

        monkeypatch.setattr(hardware.Path, "read_text", refuse)
    before = hardware.memory()["memory_mib"]
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin
        assert child.stdout
        assert child.stdout.readline() == b"ready\n"
        during = hardware.memory()["memory_mib"]
        child.stdin.close()
    assert 200 < during - before < 300
    assert hardware.memory()["memory_mib"] < during - 150


_ALLOCATE = """
import ctypes
import json
import resource
import threading
from scalable_agent_popart import hardware

libc = ctypes.CDLL(None)
libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes, libc.free.restype = [ctypes.c_void_p], None
SIZE = 100 * 2**20
faults = []

def work():
    for _ in range(10):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        block = libc.malloc(SIZE)
        libc.memset(block, 1, SIZE)
        libc.free(block)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

{prepare}
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(json.dumps(faults))
"""


def test_freed_memory_is_used_again_without_page_faults_in_any_thread() -> None:
    without = run_apart(_ALLOCATE.format(prepare=""))
    kept = run_apart(_ALLOCATE.format(prepare="hardware.keep_freed_memory()"))
    assert max(kept[1:]) <= min(without[1:]) / 20


def test_an_older_glibc_is_asked_for_the_largest_threshold_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accepted: list[tuple[int, int]] = []

    def mallopt(parameter: int, value: int) -> int:
        if parameter == hardware._M_MMAP_THRESHOLD and value > 2**25:
            return 0
        accepted.append((parameter, value))
        return 1

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=mallopt))
    hardware.keep_freed_memory()
    assert accepted[0] == (hardware._M_MMAP_THRESHOLD, 2**25)
    assert {parameter for parameter, _ in accepted[1:]} == {
        hardware._M_TRIM_THRESHOLD,
        hardware._M_ARENA_MAX,
    }


def test_nothing_happens_where_there_is_no_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load(name: Any) -> SimpleNamespace:
        asked.append(name)
        return SimpleNamespace(malloc=None)

    monkeypatch.setattr(ctypes, "CDLL", load)
    hardware.keep_freed_memory()
    assert asked == [None]
