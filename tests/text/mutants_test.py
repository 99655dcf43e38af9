"""The list of mutants still fits the code."""

from tests.slow import mutants


def test_every_mutant_changes_a_text_that_its_file_has_once() -> None:
    assert mutants.load()
