"""Numbers as reports write them."""

import pytest

from scalable_agent_popart.report.chapter import interval, short


@pytest.mark.parametrize(
    ("count", "text"),
    [(999, "999"), (1000, "1k"), (999_499, "999k"), (999_680, "1M"), (999_680_000, "1B")],
)
def test_a_count_has_three_digits_at_most(count: int, text: str) -> None:
    assert short(count) == text


def test_an_interval_of_one_run_has_the_digits_of_its_resamples() -> None:
    row = {"kind": "agent", "value": 18.04, "low": 5.31, "high": 37.66}
    assert interval(row | {"runs": 1}, unit="%") == "18.0% [5, 38]"
    assert interval(row | {"runs": 2}, unit="%") == "18.0% [5.3, 37.7]"  # By Student's t.
    assert interval({"value": 18.04, "low": 5.31, "high": 37.66}, ".3g") == "18 [5.31, 37.7]"
