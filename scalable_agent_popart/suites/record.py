"""What the record of a run holds of its suite, and the suite that is read from it again.

Nothing that a record names is imported or loaded, because anyone may have written it. So a suite
from outside of the package comes back as it was described, without environments.
"""

from collections.abc import Mapping
from typing import Any

from scalable_agent_popart import suites
from scalable_agent_popart.scores import ReferenceScore
from scalable_agent_popart.suites.search_space import OneOf
from scalable_agent_popart.suites.suite import EnvironmentOptions, Suite

# A record holds these fields of a suite from outside of the package.
_DESCRIBED = (
    *("name", "title", "module", "headline", "full_score", "own_flags"),
    *("num_channels", "total_frames", "usual_num_actors"),
    *("stacks_frames", "has_instructions", "scalable"),
    *("action_sets", "defaults", "test_versions", "human_starts_scores"),
)


def describe(suite: Suite, options: EnvironmentOptions) -> dict[str, Any]:
    """Returns what the record of a run with these options holds of its suite; see `recorded`."""
    if suite.name in (known.name for known in suites.ALL):
        return {"name": suite.name}
    return {
        **{name: getattr(suite, name) for name in _DESCRIBED},
        "every_task": list(suite.reference_scores),
        "reference_scores": suite.reference_scores if suite.normalised else {},
        "search_space": list(suite.search_space),
        "action_names": list(suite.action_names()),
        "remarks": suite.remarks(options),
    }


def recorded(record: Mapping[str, Any]) -> Suite:
    """Returns the suite of a record, with the record's tasks in play; may raise one of DAMAGE."""
    if "suite" in record:
        known = {suite.name: suite for suite in suites.ALL}
        suite = known.get(record["suite"]["name"]) or _described(record["suite"])
    else:  # Older versions, such as those of some logs in results/, recorded only the tasks.
        played = {*record["tasks"]}
        (suite,) = (s for s in suites.ALL if played <= {*s.reference_scores, *s.more_tasks})
    return suite.select(record["tasks"])


def _described(described: Mapping[str, Any]) -> Suite:
    """Returns a suite from outside of the package, as `describe` has described it."""
    values = {name: described[name] for name in _DESCRIBED}
    for name in ("reference_scores", "human_starts_scores"):
        values[name] = {task: ReferenceScore(*both) for task, both in described[name].items()}
    return Suite(
        **values,
        tasks=described["every_task"],
        search_space=dict.fromkeys(described["search_space"], OneOf(())),
        # Older records have none.
        action_names=lambda: described.get("action_names", ()),
        remarks=lambda _: described["remarks"],
        environment_factory=_refuse_to_play,
    )


def _refuse_to_play(*_: Any) -> Any:
    raise AssertionError("a suite of a record is only to be read")
