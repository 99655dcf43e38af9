"""The machine's properties, on machines that the tests make up, and the process's own settings."""

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf

from scalable_agent_popart.system import hardware

_ROOT = Path(__file__).resolve().parents[3]


def use_gpus(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Makes a machine with these GPUs."""
    monkeypatch.setattr(
        hardware.tf.config, "list_physical_devices", lambda kind: list(names) * (kind == "GPU")
    )
    monkeypatch.setattr(
        hardware.tf.config.experimental, "get_device_details", lambda gpu: {"device_name": gpu}
    )


class Stopwatch:
    """A processor's clock that moves only by the seconds that each call of a work takes.

    The time on the wall moves by as much, and by `waits` for each bfloat16 work.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        float32: float,
        bfloat16: Callable[[int], float],
        waits: float = 0.0,
    ):
        self.now = self.waited = 0.0
        self.log: list[str] = []
        self._seconds = {"float32": lambda count: float32, "bfloat16": bfloat16}
        self._waits = waits
        monkeypatch.setattr(hardware.time, "process_time", lambda: self.now)
        monkeypatch.setattr(hardware.time, "perf_counter", lambda: self.now + self.waited)

    def make_work(self, dtype: tf.DType) -> Callable[[], object]:
        def work() -> None:
            self.log.append(dtype.name)
            self.now += self._seconds[dtype.name](self.log.count(dtype.name))
            self.waited += self._waits * (dtype == tf.bfloat16)

        return work


@pytest.mark.parametrize(
    ("float32", "bfloat16", "expected"),
    [
        (0.02, lambda count: 0.015, tf.bfloat16),
        (0.02, lambda count: 0.0195, tf.float32),  # No clear gain.
        (0.01, lambda count: 0.02, tf.float32),
        # A first call that compiles, and pauses of a busy machine, do not count.
        (0.02, lambda count: 5.0 if count == 1 else 0.01 + 0.2 * (count % 2), tf.bfloat16),
        # Slow work is timed several times, too.
        (1.0, lambda count: 0.5 if count == 4 else 3.0, tf.bfloat16),
    ],
)
def test_the_type_follows_the_shortest_time_of_each(
    monkeypatch: pytest.MonkeyPatch,
    float32: float,
    bfloat16: Callable[[int], float],
    expected: tf.DType,
) -> None:
    watch = Stopwatch(monkeypatch, float32, bfloat16)
    assert hardware.faster_type(watch.make_work) == expected
    assert watch.log == ["float32", "bfloat16"] * (len(watch.log) // 2), "in turn"
    assert len(watch.log) < 200


@pytest.mark.parametrize(("gpu", "expected"), [(False, tf.bfloat16), (True, tf.float32)])
def test_processors_are_compared_by_their_own_time_and_gpus_by_the_time_until_they_are_done(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, expected: tf.DType
) -> None:
    monkeypatch.setattr(hardware, "has_gpu", lambda: gpu)
    watch = Stopwatch(monkeypatch, 0.02, lambda count: 0.01, waits=0.05)
    assert hardware.faster_type(watch.make_work) == expected


@pytest.mark.parametrize("fails", ["to be made", "to run"])
def test_a_type_that_a_device_cannot_compute_is_not_taken(fails: str) -> None:
    def make_work(dtype: tf.DType) -> Callable[[], object]:
        def fail() -> None:
            raise tf.errors.UnimplementedError(None, None, "no such kernel")

        if dtype == tf.bfloat16 and fails == "to be made":
            fail()
        return fail if dtype == tf.bfloat16 else lambda: None

    assert hardware.faster_type(make_work) == tf.float32


@pytest.mark.parametrize(
    ("cpuinfo", "model"),
    [("processor\t: 0\nmodel name\t: Xeon\nflags\t\t: fpu\n", "Xeon"), ("processor : 0\n", None)],
)
def test_the_device_is_described_by_processor_cores_and_gpus(
    monkeypatch: pytest.MonkeyPatch, cpuinfo: str, model: str | None
) -> None:
    read_text = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda p: cpuinfo if p.name == "cpuinfo" else read_text(p)
    )
    monkeypatch.setattr(hardware, "num_cores", lambda: 6)
    use_gpus(monkeypatch)
    described = hardware.device()
    assert (described["cores"], described["gpus"]) == (6, [])
    assert isinstance(described["processor"], str)
    assert model is None or described["processor"] == model
    assert hardware.learner_device() == "/device:CPU:0"
    use_gpus(monkeypatch, "H100", "A2")
    assert hardware.device()["gpus"] == ["H100", "A2"]
    assert hardware.learner_device() == "/device:GPU:0"


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/", {}, 8),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000"}, 2),
        # As a container sees it: the path is the host's, and the root is the container's group.
        ("0::/host/path", {"cpu.max": "400000 100000"}, 4),
        (
            "4:memory:/m\n2:cpu,cpuacct:/a\n0::/",
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "300000", "cpu,cpuacct/a/cpu.cfs_period_us": "1e5"},
            3,
        ),
        ("2:cpu:/a", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_cores_are_those_of_the_affinity_and_no_more_than_cgroups_allow(
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


_PROGRAM = """
import ctypes, gc, json, resource, threading
import tensorflow as tf
from scalable_agent_popart.system import hardware

libc = ctypes.CDLL(None)
libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes, libc.free.restype = [ctypes.c_void_p], None
SIZE = 50 * 2**20

def allocate(faults):
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        block = libc.malloc(SIZE)
        libc.memset(block, 1, SIZE)
        libc.free(block)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

def faults_in_a_thread():
    faults = []
    thread = threading.Thread(target=allocate, args=(faults,))
    thread.start()
    thread.join()
    return faults

def threads():
    get = tf.config.threading
    return [get.get_intra_op_parallelism_threads(), get.get_inter_op_parallelism_threads()]

hardware.has_gpu = lambda: False
seen, faults = [threads()], [faults_in_a_thread()]
for _ in range(2):
    hardware.prepare_process()
    seen.append(threads())
faults.append(faults_in_a_thread())
total = int(tf.reduce_sum(tf.ones([1000, 1000])))  # From here on the threads are fixed.
hardware.prepare_process()
seen.append(threads())
print(json.dumps([seen, faults, total, hardware.num_cores(), gc.get_freeze_count()]))
"""


def test_a_prepared_process_has_a_thread_a_core_and_keeps_freed_memory() -> None:
    command = [sys.executable, "-c", _PROGRAM]
    result = subprocess.run(command, cwd=_ROOT, timeout=120, check=True, capture_output=True)
    seen, (without, kept), total, cores, frozen = json.loads(result.stdout)
    assert seen == [[0, 0], [1, cores], [1, cores], [1, cores]]
    assert max(kept[1:]) <= min(without[1:]) / 20, "page faults"
    assert total == 1_000_000
    assert frozen > 10_000, "the modules' objects are kept from the garbage collector"


def test_gpus_take_memory_as_they_need_it_and_leave_the_processor_its_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_gpus(monkeypatch, "H100", "A2")
    asked: list[tuple[str, bool]] = []
    growth = "tensorflow.config.experimental.set_memory_growth"
    monkeypatch.setattr(growth, lambda *args: asked.append(args))
    for setter in ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads"):
        monkeypatch.setattr(hardware.tf.config.threading, setter, asked.append)
    hardware.prepare_process()
    assert asked == [("H100", True), ("A2", True)]


@pytest.mark.parametrize("driver", [True, False])
def test_a_gpu_that_tensorflow_cannot_use_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: bool
) -> None:
    monkeypatch.setattr(hardware, "has_gpu", lambda: False)
    monkeypatch.setattr(hardware, "NVIDIA_DRIVER", tmp_path if driver else tmp_path / "none")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    warnings: list[str] = []
    monkeypatch.setattr(hardware.logging, "warning", warnings.append)
    hardware.prepare_process()
    assert len(warnings) == driver
    assert all("TF_CPP_MIN_LOG_LEVEL=0" in warning for warning in warnings)


_GRANDCHILD = "block = bytearray(b'x') * (100 * 2**20); print('ready', flush=True); input()"
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

        monkeypatch.setattr(Path, "read_text", refuse)
    before = hardware.memory()["memory_mib"]
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin
        assert child.stdout
        assert child.stdout.readline() == b"ready\n"
        during = hardware.memory()["memory_mib"]
        child.stdin.close()
    assert 100 < during - before < 200
    assert hardware.memory()["memory_mib"] < during - 75


def test_the_allocator_gets_the_largest_threshold_it_takes_where_there_is_glibc(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accepted: list[tuple[int, int]] = []

    def mallopt(parameter: int, value: int) -> int:
        if parameter == hardware._M_MMAP_THRESHOLD and value > 2**25:  # An older glibc.
            return 0
        accepted.append((parameter, value))
        return 1

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    hardware.keep_freed_memory()
    assert not accepted
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=mallopt))
    hardware.keep_freed_memory()
    assert accepted[0] == (hardware._M_MMAP_THRESHOLD, 2**25)
    assert {p for p, _ in accepted[1:]} == {hardware._M_TRIM_THRESHOLD, hardware._M_ARENA_MAX}
