"""Pages rendered from their sources and from files."""

from pathlib import Path

import pytest

from tools import render_pages

_HEAD = "<!-- Made of page.md.j2 by tools/render_pages.py. -->\n\n"
_SUMMARY = """kind,measure,task,agent,versus,runs,value,low,high,effect,p
agent,aggregate,mean,A,,3,1.5,0.5,2.5,,
agent,aggregate,median,A,,1,18,5.3,37.7,,
agent,normalised,x,A,,3,3,,,,
agent,entropy,x,A,,3,7,6,8,,
difference,aggregate,mean,A,B,3,-0.5,-1,0.04,-2,0.0079
difference,median_member,,A,C,3,-2,-3,-1,,
difference,aggregate,probability_of_improvement,A,B,3,80,,,,
"""
_JSON = """{"rates": [4, 1, 2.5], "repeats": [{"of": {"a": 1}}, {"of": {"a": 3}}],
"peers": [{"name": "this", "rate": 1}, {"name": "that, tuned", "rate": 20}]}"""


def _render(folder: Path, text: str) -> str:
    (folder / "summary.csv").write_text(_SUMMARY)
    (folder / "speed.json").write_text(_JSON)
    source = folder / "page.md.j2"
    loads = '{% set summary, speed = load("summary.csv"), load("speed.json") %}\n'
    source.write_text(loads + text)
    page = render_pages.render(source, folder)
    assert page.startswith(_HEAD)
    return page.removeprefix(_HEAD)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{{ summary | score("mean", "A") | interval }}', "1.5 [0.5, 2.5]"),
        ('{{ summary | score("median", "A") | interval }}', "18.0 [5, 38]"),  # A bootstrap.
        ('{{ summary | score("mean", "A") | interval(".0%", bold=true) }}', "**150%** [50%, 250%]"),
        ('{{ summary | score("x", "A") | says("{value:.2f}") }}', "3.00"),
        ('{{ summary | score("x", "A", "entropy") | interval(".0f") }}', "7 [6, 8]"),
        ('{{ summary | lead("mean", "A", "B") | difference }}', "-0.5 [-1.0, 0.0], p = 0.0079"),
        (
            '{{ summary | lead("mean", "A", "B") | difference(effect=true) }}',
            "-0.5 [-1.0, 0.0], g = -2.0, p = 0.0079",
        ),
        (
            '{{ summary | lead("mean", "B", "A") | difference(effect=true) }}',
            "0.5 [-0.0, 1.0], g = 2.0, p = 0.0079",
        ),
        (
            '{{ summary | lead("probability_of_improvement", "B", "A") | says("{value:.0f}") }}',
            "20",
        ),
        ('{{ summary | lead("", "C", "A", "median_member") | interval }}', "2.0 [1.0, 3.0]"),
        ('{{ speed.rates | span(".1f") }}, {{ speed.rates | median }}', "1.0 to 4.0, 2.5"),
        # The mean of 1 and 3 is 2, its standard error 1, and the quantile of Student's t 12.7.
        ('{{ speed.repeats | map(attribute="of.a") | mean_interval(".1f") }}', "2.0 [-10.7, 14.7]"),
        ('{{ (speed.peers | named("that, tuned")).rate | number(",.1f") }}', "20.0"),
        (
            "{% for row in summary | where(task=['x'], kind='agent') | rows %}\n"
            '| {{ row.measure }} | {{ row.low | number(".0f", "none") }} |\n{% endfor %}\n',
            "| normalised | none |\n| entropy | 6 |\n",
        ),
    ],
)
def test_numbers_are_those_of_the_files(tmp_path: Path, text: str, expected: str) -> None:
    assert _render(tmp_path, text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{{ summary | score("x", "A") | interval }}', "lacks a value"),
        ('{{ summary | score("x", "C") | interval }}', "no row has"),
        ('{{ summary | where(kind="agent") | interval }}', "too many values"),
        ('{{ summary | where(task="x", measure="normalised") | says("{worth}") }}', "worth"),
        ('{{ (summary | score("x", "A") | rows)[0].low | number(".0f") }}', "missing"),
        ('{{ speed.peers | named("nobody") }}', "not enough values"),
        ("{{ speed.rate }}", "no attribute 'rate'"),
    ],
)
def test_what_a_file_lacks_is_an_error(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(Exception, match=says):
        _render(tmp_path, text)
