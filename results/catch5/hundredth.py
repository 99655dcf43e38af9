"""Catch-5 with all rewards divided by a hundred, one constant for all tasks.

PYTHONPATH=results/catch5 python experiment.py --level_name=hundredth:hundredth
"""

from dataclasses import replace

from environments import Lockstep
from scalable_agent_popart.scores import ReferenceScore
from scalable_agent_popart.suites import catch

_CONSTANT = 0.01


class Hundredth(catch.CatchEnvironments):
    """Boards of Catch-5 with smaller rewards."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._rewards *= _CONSTANT


SUITE = replace(
    catch.SUITE,
    name="hundredth",
    title="Catch-5, rewards divided by 100",
    reference_scores={
        task: ReferenceScore(score.random * _CONSTANT, score.human * _CONSTANT)
        for task, score in catch.SUITE.reference_scores.items()
    },
    environment_factory=lambda tasks, task_ids, seeds, _: Lockstep(
        Hundredth(tasks, task_ids, seeds)
    ),
)
