"""The terminal while TensorFlow, or a stand-in that is quick to import, is imported."""

import os
import subprocess
from pathlib import Path

from tests.fakes.programs import ROOT, run_python

_PROGRAM = """
import os
from pathlib import Path
from scalable_agent_popart.system import tensorflow_import
tensorflow_import.NVIDIA_DRIVER = Path(os.environ.get("DRIVER", "/nowhere"))
tensorflow_import.import_quietly()
import tensorflow
print(os.environ["TF_CPP_MIN_LOG_LEVEL"], os.environ["TF_ENABLE_ONEDNN_OPTS"])
os.write(2, b"afterwards\\n")
"""
_MESSAGE = 'import os; os.write(2, b"oneDNN custom operations are on\\n")\n'


def _run(tmp_path: Path, tensorflow: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the program with a module `tensorflow` of this content."""
    (tmp_path / "tensorflow.py").write_text(_MESSAGE + tensorflow)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    inherited = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    return run_python("-c", _PROGRAM, env={**inherited, "PYTHONPATH": path, **environment})


def test_messages_of_an_import_are_hidden_and_later_ones_of_others_are_not(tmp_path: Path) -> None:
    for driver, level in (("/nowhere", "3"), (str(tmp_path), "2")):  # Errors of GPUs are shown.
        result = _run(tmp_path, "", DRIVER=driver)
        assert (result.stderr, result.stdout) == ("afterwards\n", f"{level} 1\n")
    asked_for = _run(tmp_path, "", TF_CPP_MIN_LOG_LEVEL="0", TF_ENABLE_ONEDNN_OPTS="0")
    assert asked_for.stderr == "oneDNN custom operations are on\nafterwards\n"
    assert asked_for.stdout == "0 0\n"


def test_messages_of_an_import_that_fails_are_shown(tmp_path: Path) -> None:
    result = _run(tmp_path, "raise OSError")
    assert result.returncode != 0
    assert "oneDNN custom operations are on" in result.stderr
