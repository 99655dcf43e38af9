"""Two sentences that say which runs are compared, and what their scores mean."""

from typing import Any

from scalable_agent_popart.report.chapter import Chapter
from scalable_agent_popart.report.render import short


def content(chapter: Chapter) -> dict[str, Any]:
    """Returns the agents with their runs and frames, and the frames of published scores."""
    agents = []
    for agent in chapter.comparison.agents:
        frames = [run.budgeted(run.frames) for run in agent.runs]
        ends = dict.fromkeys(map(short, (min(frames), max(frames))))
        count = f"{len(agent.runs)} run{'s' * (len(agent.runs) > 1)}"
        agents.append(f"{agent.label} ({count}, {' to '.join(ends)} frames)")
    # By default a suite's runs are as long as the papers'.
    frames_of_papers = short(chapter.suite.total_frames) if chapter.published else ""
    return {"agents": agents, "published_frames": frames_of_papers}
