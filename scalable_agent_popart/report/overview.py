"""The runs of a report, and two sentences that say which are compared and what scores mean."""

from collections.abc import Sequence

import pandas as pd
from markupsafe import Markup

from scalable_agent_popart.errors import one_line
from scalable_agent_popart.report.chapter import Chapter, render, short
from scalable_agent_popart.report.compare import Agent
from scalable_agent_popart.report.read import Run

_RUNS = """
<details><summary>{{ "Runs: " ~ rows | length }}</summary>
{% set heads = ["Agent", "Run", "Seed", "Frames", "Episodes", "Tests", "Dates (UTC)"] %}
{{ table(heads + ["Revision", "Device"], rows) }}
{% if populations %}
<p>A population is one run: the line of descent of its best member's weights through all copies. It
counts the frames that these weights have learned from, those of one instance of the population.</p>
{% endif %}
</details>
"""


def write_runs(runs: Sequence[tuple[Agent, Run]]) -> str:
    """Writes the list of all runs of a report."""
    populations = any(run.population for _, run in runs)
    rows = [_describe(agent.label, run) for agent, run in runs]
    return render(_RUNS, rows=rows, populations=populations)


def _describe(label: str, run: Run) -> list[str | int]:
    """Returns a run's row in the list of runs."""
    place = Markup("<code>{}</code>").format(one_line(str(run.path)))
    if run.from_file:
        return [label, place, run.seed, short(run.frames), *[""] * 5]
    if run.population:
        size, best = run.population.best.config.population_size, run.population.best.name
        waiting = size - len(run.population.members)
        place += f", population of {size}, best: {best}"
        place += f", {waiting} not begun" if waiting else ""
    times = run.numbers("metrics", ["time"])["time"]
    dates = "not recorded"
    if len(times):
        ends = pd.to_datetime(times.agg(["min", "max"]), unit="s")
        first, last = (f"{time:%Y-%m-%d %H:%M}" for time in ends)
        dates = f"{first} to {last.removeprefix(first[:11])}"
    return [
        label,
        place,
        run.seed,
        f"{short(run.frames)} of {short(run.config.total_environment_frames)}",
        f"{len(run.logs['episodes']):,}",
        ", ".join(sorted({test.starts for test in run.evaluations})) or "none yet",
        dates,
        run.record.git_revision or "not recorded",
        run.record.device or "not recorded",
    ]


def write(chapter: Chapter) -> str:
    """Writes the agents with their runs and frames, and what scores mean."""
    agents, suite = [], chapter.suite
    for agent in chapter.comparison.agents:
        frames = [run.budgeted(run.frames) for run in agent.runs]
        ends = dict.fromkeys(map(short, (min(frames), max(frames))))
        count = f"{len(agent.runs)} run{'s' * (len(agent.runs) > 1)}"
        agents.append(f"{agent.label} ({count}, {' to '.join(ends)} frames)")
    text = "This compares" if len(agents) > 1 else "This shows"
    text += f" {'; '.join(agents)} on {len(suite.tasks)} task{'s' * (len(suite.tasks) > 1)}. "
    if not suite.normalised:
        text += "Scores are raw returns, as this suite has no random and human scores"
    else:
        zero = " in the papers" * chapter.published
        if chapter.comparison.measured_zero:
            zero = " as measured with the agent's own actions"
        text += f"0% is the return of random play{zero}, and 100% is {suite.full_score}"
        if chapter.published:  # By default a suite's runs are as long as the papers'.
            text += f"; the published scores were reached after {short(suite.total_frames)} frames"
            text += f" over all {len(suite.reference_scores)} tasks"
    return render("<p>{{ text }}.</p>", text=text)
