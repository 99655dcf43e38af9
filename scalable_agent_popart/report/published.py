"""Published scores to compare with, each table in `data/` with its source named.

Of the PopArt paper only aggregate scores are published; of IMPALA (Espeholt et al., 2018) the
scores by game and by level too, from which aggregates of any subset can be computed.
"""

import csv
from importlib import resources

IMPALA = "IMPALA (Espeholt et al., 2018)"
# Suite to file, columns of the level and of the multi-task agent's raw score, and the column of
# Table 1 whose protocol the scores were played by.
_BY_LEVEL = {
    "atari57": ("impala_atari57_table_c1.csv", "game", "impala_deep_multitask", "noop"),
    "dmlab30": ("impala_dmlab30_table_b1.csv", "test_level", "impala_deep_pbt", "test"),
}


def aggregate(suite: str, reward_clipping: str, column: str, agent: str) -> float | None:
    """A cell of the paper's Table 1 in percent, or None if there is none.

    Args:
      suite: name of a benchmark.
      reward_clipping: that the agent was trained with.
      column: `noop` or `human` (starts), `train` or `test` (levels).
      agent: the paper's name.
    """
    wanted = [suite, reward_clipping, column, agent]
    for *cell, score in _rows("table1.csv"):
        if cell == wanted:
            return float(score)
    return None


def agents(suite: str) -> list[tuple[str, str]]:
    """Name and reward clipping of the agents that Table 1 has of a benchmark."""
    rows = [row for row in _rows("table1.csv") if row[0] == suite]
    return list(dict.fromkeys((agent, clipping) for _, clipping, _, agent, _ in rows))


def impala_by_level(suite: str, column: str) -> dict[str, float]:
    """IMPALA's raw scores (Tables C.1 and B.1 there) by level; empty if there are none."""
    file, level, agent, of_column = _BY_LEVEL.get(suite, ("", "", "", ""))
    if column != of_column:
        return {}
    header, *rows = _rows(file, header=True)
    return {row[header.index(level)]: float(row[header.index(agent)]) for row in rows}


def _rows(file: str, header: bool = False) -> list[list[str]]:
    text = resources.files("scalable_agent_popart.report").joinpath("data", file).read_text()
    rows = list(csv.reader(line for line in text.splitlines() if not line.startswith("#")))
    return rows if header else rows[1:]
