"""Tables and numbers of the Markdown pages, as tools/write_tables.py makes them from files."""

from pathlib import Path

import pytest

from tools import write_tables

_PAGE = """# A page

<!-- table: one/scores.csv two/scores.csv
rows: score > 0 and folder == "one" or level == "x.1" and low < 9
across: folder, by agent
Agent: {agent}
two: {folder[two][score]:.0f}
score [interval]: **{score:.1f}** [{low:.1f}, 9]
-->
| what stood here |
<!-- end -->

<!-- table: two/scores.csv
group by: level
Level: {level}
mean, best: {score[mean]:.2f}, {score[max]:,.0f}
interval: {low[low]:.1f} to {low[high]:.1f}
-->
<!-- end -->

It comes to <!-- value: one/scores.csv; agent == "c" and
score > 1; {score:.1f}% --><!-- end --> here.
"""
_FILLED = (
    "| Agent | two | score [interval] |\n| --- | --- | --- |\n"
    "| a\\|b | 3 | **1.5** [0.5, 9] |\n| c | 5000 |  |\n"
    "| a\\|b | 3 | **3.0** [1.0, 9] |\n| c | 5000 | **5000.0** [3.0, 9] |\n",
    # Of 1 and 3 the mean is 2, its standard error 1, and the quantile of Student's t 12.7.
    "| Level | mean, best | interval |\n| --- | --- | --- |\n"
    "| x.1 | 1668.67, 5,000 | -10.7 to 14.7 |\n| y | 4.00, 4 |  |\n",
)


def test_tables_are_made_from_the_files_and_made_again_alike(tmp_path: Path) -> None:
    for folder, rows in (
        ("one", "agent,score,low\na|b,1.5,0.5\nc,2,\nnone,-1,0\n"),
        ("two", "agent,level,score,low\na|b,x.1,3,1\na|b,y,4,\nc,x.1,5000,3\nd,x.1,3,\n"),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "scores.csv").write_text(rows)
    filled = write_tables.fill(_PAGE, tmp_path)
    assert all(f"-->\n{table}<!-- end -->" in filled for table in _FILLED)
    assert "{score:.1f}% -->2.0%<!-- end --> here" in filled
    assert "what stood here" not in filled
    assert write_tables.fill(filled, tmp_path) == filled
    with pytest.raises(ValueError, match=r"table of one/scores\.csv"):
        write_tables.fill(_PAGE.replace("{agent}", "{agnet}", 1), tmp_path)
    with pytest.raises(ValueError, match=r"table of one/scores\.csv.*scoer"):
        write_tables.fill(_PAGE.replace("rows: score", "rows: scoer"), tmp_path)
    with pytest.raises(ValueError, match="no row is left"):
        write_tables.fill(
            _PAGE.replace("rows: score > 0", "rows: score < -9").replace('"x.1"', '"z"'), tmp_path
        )
    with pytest.raises(ValueError, match="without a value"):
        write_tables.fill(_PAGE.replace("{score:.1f}%", "{low:.1f}%"), tmp_path)
    with pytest.raises(ValueError, match="is true for 2 rows"):
        write_tables.fill(_PAGE.replace("and\nscore > 1", "or score > 0"), tmp_path)


def test_json_files_are_rows_and_their_lists_are_by_name_or_reduced(tmp_path: Path) -> None:
    (tmp_path / "speed.json").write_text(
        '{"rate": 2.5, "repeats": [{"rate": 1, "of": {"a": 5}}, {"rate": 4}, {"rate": 2}],'
        ' "peers": [{"name": "this", "rates": [7, 9]}, {"name": "that, tuned", "rates": [1]}]}'
    )
    page = """<!-- value: speed.json; ; {rate:.2f} ({repeats[rate][min]:.0f} to
{repeats[rate][max]:.0f}, then {repeats[rate][last]:.0f}), {repeats[of][a][mean]:.0f}, {peers[that,
tuned][rates][mean]:.0f} --><!-- end -->
<!-- table: speed.json
list: peers
System: {name}
rate: {rates[mean]:.1f}
-->
<!-- end -->
<!-- table: speed.json
rate: {rate}
-->
<!-- end -->
"""
    filled = write_tables.fill(page, tmp_path)
    assert "-->2.50 (1 to 4, then 2), 5, 1<!-- end -->" in filled
    table = "| System | rate |\n| --- | --- |\n| this | 8.0 |\n| that, tuned | 1.0 |\n"
    assert table in filled
    assert "| rate |\n| --- |\n| 2.5 |\n" in filled
    with pytest.raises(ValueError, match=r"table of speed\.json"):
        write_tables.fill(page.replace("{rate}", "{rate[min]}"), tmp_path)
    for old, new, what in (
        ("System: {name}", "rate: {name}", "no new line"),
        ("list: peers", "list: peers\nrows: rates > 0", "chosen"),
        ("speed.json; ;", "speed.json; rate > 0;", "chosen"),
    ):
        with pytest.raises(ValueError, match=what):
            write_tables.fill(page.replace(old, new, 1), tmp_path)
