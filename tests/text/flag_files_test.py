"""Flag files say in their first line what they are, and set nothing of a single run."""

import re
from pathlib import Path

import pytest

from tests.text.repository import files_named, name_of

_AGENTS = {"impala": "IMPALA", "multihead": "MultiHead-IMPALA", "popart": "PopArt-IMPALA"}


@pytest.mark.parametrize("path", files_named(".flags"), ids=name_of)
def test_a_flag_file_says_what_it_is_and_sets_an_experiments_flags(path: Path) -> None:
    first, *lines = path.read_text().splitlines()
    name = re.search(r"-(impala|multihead|popart)(-large)?(-pbt)?$", path.stem)
    agent = "Pixel-" * ("--pixel_control" in lines) + _AGENTS[name[1]]
    assert re.match(rf"# (.*[^\w-])?{agent} (on|with) ", first)
    assert all(re.fullmatch(r"# .+|--\w+(=[\w.,:/+-]+)?", line) for line in lines)
    given = {line.partition("=")[0] for line in lines}
    assert not {"--logdir", "--seed", "--dataset_path"} & given
