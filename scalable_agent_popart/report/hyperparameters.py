"""The flags that shape learning: those by which agents differ, and those they share."""

from scalable_agent_popart.report.chapter import Chapter
from scalable_agent_popart.report.compare import experiment

_WORDS = """
<details><summary>Hyperparameters</summary>
{% if rows %}
{{ table(heads, rows) }}
{% endif %}
<p>All agents have {% for flag in shared %}<code>{{ flag }}</code> {% endfor %}</p>
</details>
"""


def write(chapter: Chapter) -> str:
    """Writes the flags that shape learning: those that differ, by agent, and the others."""
    first = {agent.label: agent.runs[0] for agent in chapter.comparison.agents}
    flags = {label: experiment(run) for label, run in first.items() if not run.from_file}
    rows, shared = [], []
    for name in dict.fromkeys(name for flags_of_agent in flags.values() for name in flags_of_agent):
        values = [str(flags_of_agent.get(name, "")) for flags_of_agent in flags.values()]
        if len({*values}) > 1:
            rows.append([name, *values])
        elif name != "dataset_path":  # Few levels show images, so it hardly matters.
            shared.append(f"--{name}={values[0]}")
    return chapter.render(_WORDS, heads=["Flag", *flags], rows=rows, shared=shared)
