"""The flags that shape learning: those by which agents differ, and those they share."""

from typing import Any

from scalable_agent_popart.report.chapter import Chapter
from scalable_agent_popart.report.compare import experiment


def content(chapter: Chapter) -> dict[str, Any]:
    """Returns the flags that shape learning: those that differ, by agent, and the others."""
    flags_of = {own.label: experiment(own.runs[0]) for own in chapter.comparison.agents}
    differing, shared = {}, []
    for name in dict.fromkeys(name for own in flags_of.values() for name in own):
        values = [str(own.get(name, "")) for own in flags_of.values()]
        if len({*values}) > 1:
            differing[name] = values
        elif name != "dataset_path":  # Few levels show images, so it hardly matters.
            shared.append(f"--{name}={values[0]}")
    return {"agents": list(flags_of), "differing": differing, "shared": shared}
