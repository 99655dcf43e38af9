"""Fills the tables and numbers of the Markdown pages from the files of the results.

  python tools/write_tables.py           # fills those of all pages
  python tools/write_tables.py --check   # only names those that are not up to date

A page says in a comment what a table is made of; the lines up to the end mark are replaced:

  <!-- table: results/catch5/summary.csv
  rows: kind == "agent" and measure == "aggregate" and task == "mean"
  Agent: {agent}
  mean [95% interval]: **{value:.1f}** [{low:.1f}, {high:.1f}]
  -->
  <!-- end -->

The first line names a CSV file, by its path from the root of the repository. Each row of the table
is a row of that file, and each line `HEAD: TEXT` is a column, whose text has the row's values put
in as `str.format` does. A text that needs a missing value is left empty. Three kinds of lines are
optional, and no columns:

  rows: QUERY
    Keeps the rows of the file for which this is true (`pandas.DataFrame.query`).
  group by: A, B
    Makes one row of all rows with the same A and B, sorted by these. Any other column NAME, of
    numbers, is then `{NAME[mean]}`, or so with `median`, `min`, `max`, `count` or `last`, or with
    `low` or `high`, the ends of the mean's 95% interval by Student's t.
  across: C, by A, B
    Puts in `{C[VALUE][NAME]}`: column NAME of the row that is kept with the same A and B, and with
    VALUE in column C; where there are several such rows, they are grouped as above.

If the first line names several CSV files, the table is of the rows of all, and a column `folder`
has the name of each file's folder.

Within a text, a comment says what the number after it is made of: a file, a query that is true for
one of its rows, and the text for that row. No line may begin with it, or Markdown takes that line
for HTML:

  <!-- value: results/catch5/earlier.csv; set == "later" and agent == "IMPALA"; {score:.1f} -->

A JSON file is a row by itself, and the query stays empty. Its lists of numbers are `{NAME[mean]}`
and so on as above, its lists of objects are objects of such lists, `{NAME[KEY][mean]}`, or, if each
has a `name`, are by these, `{NAME[THE NAME][KEY]}`. In a table the line

  list: NAME
    makes each object of that list a row.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from scalable_agent_popart import scores

_ROOT = Path(__file__).resolve().parents[1]
# What a query or a text raises that does not fit the files.
_MISTAKES = (AttributeError, LookupError, NameError, OSError, SyntaxError, TypeError, ValueError)
_END = "<!-- end -->"
_TABLE = re.compile(rf"(<!-- table: (.*?)\n(.*?)-->\n).*?({_END})", re.DOTALL)
_VALUE = re.compile(rf"(<!-- value: ([^;]*);([^;]*);(.*?)-->).*?({_END})", re.DOTALL)


def low(values: pd.Series) -> float:
    """Gives the lower end of the 95% interval of the mean of a normal distribution's values."""
    return float(scores.students_t(values.mean(), values.std(), values.count())[0])


def high(values: pd.Series) -> float:
    """Gives the upper end, as `low`."""
    return float(scores.students_t(values.mean(), values.std(), values.count())[1])


_REDUCERS = ["mean", "median", "min", "max", "count", "last", low, high]


def fill(text: str, root: Path) -> str:
    """Gives a page's text with its tables and numbers made from the files under `root`.

    Raises:
      ValueError: if one cannot be made; names its file.
    """

    def filled(found: re.Match[str]) -> str:
        comment, file, *lines, end = found.groups()
        make = _table if found.re is _TABLE else _value
        try:
            return comment + make([root / name for name in file.split()], *lines) + end
        except _MISTAKES as error:
            raise ValueError(f"table of {file}: {type(error).__name__}: {error}") from error

    return _VALUE.sub(filled, _TABLE.sub(filled, text))


def pages(root: Path) -> list[Path]:
    """Lists the Markdown pages of the repository, without those that programs leave in it."""
    folders = ("bazel", "benchmarks", "configs", "docs", "results")
    return sorted(
        [*root.glob("*.md"), *(p for each in folders for p in root.glob(f"{each}/**/*.md"))]
    )


def _value(paths: list[Path], query: str, template: str) -> str:
    query, template = " ".join(query.split()), " ".join(template.split())
    rows = _rows(paths, query, [])
    if len(rows) != 1:
        raise ValueError(f"{query} is true for {len(rows)} rows")
    text = template.format_map(rows[0])
    if re.search(r"\bnan\b", text):
        raise ValueError(f"{query} is true for a row without a value that is needed")
    return text


def _table(paths: list[Path], lines: str) -> str:
    given: dict[str, str] = {}
    for line in filter(None, map(str.strip, lines.splitlines())):
        head, colon, text = line.partition(": ")
        if not colon or head in given:
            raise ValueError(f"{line} is no new line of the form HEAD: TEXT")
        given[head] = text
    query, group = given.pop("rows", ""), _names(given.pop("group by", ""))
    if several := given.pop("list", ""):
        if query or group:
            raise ValueError("the rows of a list can be neither chosen nor grouped")
        rows = [_reduced(own) for path in paths for own in json.loads(path.read_text())[several]]
    else:
        rows = _rows(paths, query, group)
    if not rows:
        raise ValueError("no row is left")
    if across := given.pop("across", ""):
        column, *keys = _names(across.replace(", by ", ", "))
        found = _rows(paths, query, [*keys, column], only_several=True)
        for row in rows:
            same = [own for own in found if all(own[key] == row[key] for key in keys)]
            row[column] = {str(own[column]): own for own in same}
    cells = [list(given), ["---"] * len(given)]
    cells += [[_cell(template, row) for template in given.values()] for row in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def _reduced(value: Any) -> Any:
    """Gives the content of a JSON file with each list by name or, of numbers, by reducer."""
    if isinstance(value, dict):
        return {key: _reduced(own) for key, own in value.items()}
    if not isinstance(value, list) or not value:
        return value
    if all(isinstance(own, dict) for own in value):
        if all("name" in own for own in value):
            return {own["name"]: _reduced(own) for own in value}
        found = dict.fromkeys(key for own in value for key in own)
        return _reduced({key: [own[key] for own in value if key in own] for key in found})
    if all(isinstance(own, int | float) for own in value):
        (reduced,) = pd.Series(value).groupby([0] * len(value)).agg(_REDUCERS).to_dict("records")
        return reduced
    return value


def _names(text: str) -> list[str]:
    return re.findall(r"[^,\s]+", text)


def _rows(
    paths: list[Path], query: str, keys: list[str], only_several: bool = False
) -> list[dict[str, Any]]:
    """Reads the rows of CSV files by column; of groups, each column of numbers by reducer.

    If `only_several`, rows are grouped only where some have the same keys. A JSON file is one row.
    """
    if paths[0].suffix == ".json":
        if query or keys:
            raise ValueError("the rows of JSON files can be neither chosen nor grouped")
        return [_reduced(json.loads(path.read_text())) for path in paths]
    table = pd.concat([pd.read_csv(path).assign(folder=path.parent.name) for path in paths])
    table = table.query(query) if query else table
    if not keys or (only_several and not table.duplicated(keys).any()):
        return table.to_dict("records")
    numbers = list(table.select_dtypes("number").columns.difference(keys))
    groups = table.groupby(keys)[numbers].agg(_REDUCERS)
    return [
        dict(zip(keys, key, strict=True)) | {name: own[name].to_dict() for name in numbers}
        for key, (_, own) in zip(groups.index.to_frame().to_numpy(), groups.iterrows(), strict=True)
    ]


def _cell(template: str, row: dict[str, Any]) -> str:
    text = template.format_map(row)
    return "" if re.search(r"\bnan\b", text) else text.replace("|", "\\|")


def main() -> None:
    """Fills the tables; with --check, ends with exit code 1 if any page would change."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    stale = []
    for page in pages(_ROOT):
        text = page.read_text(encoding="utf-8")
        try:
            new = fill(text, _ROOT)
        except ValueError as error:
            sys.exit(f"error: {page}: {error}")
        if new != text:
            stale.append(str(page.relative_to(_ROOT)))
            if not check:
                page.write_text(new, encoding="utf-8")
    if stale:
        print("\n".join(stale))
    sys.exit(bool(stale) and check)


if __name__ == "__main__":
    main()
