"""The scores of an evaluation: the record in `evaluation.json`, and its table in the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalable_agent_popart import scores
from scalable_agent_popart.runs.config import Config
from scalable_agent_popart.suites import Suite


def summarise(
    config: Config, frames: int, returns: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    """Makes the record of an evaluation after so many environment frames of training.

    The returns are raw, by level. If tasks have held-out versions, `train` holds the same about the
    versions in training. What cannot be normalised is None, like the interval of one episode.
    """
    suite = config.suite
    references, remarks = suite.references(config.starts), config.remarks()
    unknown = dict.fromkeys(scores.Aggregate._fields)

    def result(level: str) -> dict[str, Any]:
        mean, reference = float(np.mean(returns[level])), references.get(level)
        return {
            "episodes": len(returns[level]),
            "mean_return": mean,
            "mean_return_interval": scores.interval_of_mean(returns[level]),
            "normalised": None if reference is None else scores.normalise(mean, reference),
            **({"remark": remarks[level]} if level in remarks else {}),
            "returns": returns[level],
        }

    def aggregates(levels: Sequence[str]) -> dict[str, Any]:
        by_level = {level: returns[level] for level in levels}
        aggregate = scores.aggregate_returns(by_level, references)
        return {
            "aggregate": aggregate._asdict() if aggregate else unknown,
            "aggregate_interval": scores.intervals_of_aggregates(by_level, references) or unknown,
        }

    test_levels = [suite.test_version(task) for task in suite.tasks]
    summary = {
        "frames": frames,
        "starts": config.starts,
        "agent": config.agent_name,
        "precision": config.precision,
        "confidence": scores.CONFIDENCE,
        "tasks": {level: result(level) for level in test_levels},
        **aggregates(test_levels),
    }
    if suite.test_versions:
        trained = {task: result(task) for task in suite.tasks if task in suite.test_versions}
        summary["train"] = {"tasks": trained, **aggregates(suite.tasks)}
    return summary


def show(summary: Mapping[str, Any], suite: Suite) -> None:
    """Prints a line per level, then aggregates; raw returns are neither normalised nor capped."""
    unit, normalised = suite.unit, suite.normalised
    agent, frames, starts = (summary[name] for name in ("agent", "frames", "starts"))
    kind = f", {starts} starts" if suite.human_starts_scores else ""  # The rest have one kind.
    print(f"{agent} after {frames:,} environment frames{kind}")
    interval = f"{summary['confidence']:.0%} interval"
    head = f"{'level':<40}{'episodes':>9}{'mean return':>13}{interval:>25}"
    print(head + "  normalised" * normalised)
    train = summary.get("train")
    for level, result in {**summary["tasks"], **(train["tasks"] if train else {})}.items():
        interval = _interval(result["mean_return_interval"], ",.4g")
        score = _score(result["normalised"], unit).rjust(12) * normalised
        print(f"{level:<40}{result['episodes']:>9}{result['mean_return']:>13,.4g}", end="")
        print(f"{interval:>25}{score}  {result.get('remark', '')}".rstrip())
    columns = {" on train levels": train, " on test levels": summary} if train else {"": summary}
    for name in summary["aggregate"]:
        if name == "mean_capped" and not normalised:
            continue
        texts = []
        for levels, column in columns.items():
            score, ends = column["aggregate"][name], column["aggregate_interval"][name]
            style = scores.score_style(unit, score or 0.0, *(ends or ()))
            text = f"{_score(score, unit, style)} {_interval(ends, style)}".rstrip()
            texts.append(text + levels)
        title = f"{name.replace('_', ' ')} {suite.score_name}"
        print(f"{title:<40}{', '.join(texts)}")


def _score(score: float | None, unit: str, style: str = ".1f") -> str:
    return "unknown" if score is None else f"{score:{style}}{unit}"


def _interval(interval: scores.Interval | None, style: str) -> str:
    return "" if interval is None else scores.write_interval(*interval, style)
