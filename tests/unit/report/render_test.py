"""Numbers as reports write them."""

import pytest

from scalable_agent_popart.report.render import short


@pytest.mark.parametrize(
    ("count", "text"),
    [(999, "999"), (1000, "1k"), (999_499, "999k"), (999_680, "1M"), (999_680_000, "1B")],
)
def test_a_count_has_three_digits_at_most(count: int, text: str) -> None:
    assert short(count) == text
