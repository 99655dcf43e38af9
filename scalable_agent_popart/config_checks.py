"""Checks of flags that contradict each other or their suite."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from scalable_agent_popart import suites

if TYPE_CHECKING:
    from scalable_agent_popart.config import Config

# Fewest pixels per side for the shallow network without padding, and for pixel control.
MIN_UNPADDED, _MIN_PIXELS = 20, 32
# A host's name or IPv4 address, or its IPv6 address in brackets, and a port.
_ADDRESS = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]+\]):(\d{1,5})")


def problems(config: "Config") -> Iterator[str]:
    """Yields what is wrong with a configuration."""
    suite = config.suite
    if not config.logdir:
        yield "--logdir is empty: give the directory of the run"
    lower, upper = config.popart_scale_lower_bound, config.popart_scale_upper_bound
    if lower > upper:
        yield f"--popart_scale_lower_bound={lower} is above --popart_scale_upper_bound={upper}"
    if config.action_set not in suite.action_sets:
        if config.action_set == suites.MINIMAL and suite.effective_actions:
            yield "--action_set=minimal is for levels with the same minimal actions; give full"
        yield f"--action_set={config.action_set} is none of {', '.join(suite.action_sets)}"
    if config.starts == "human" and not suite.human_starts_scores:
        yield f"--starts=human: {suite.name} has no human starts; leave it out"
    if (config.starts == "human") != bool(config.human_starts_dir):
        yield "--starts=human and --human_starts_dir, of tools/record_starts.py, go together"
    for name in sorted({name for each in suites.ALL for name in each.own_flags}):
        if getattr(config, name) and name not in suite.own_flags:
            yield f"--{name} means nothing to {suite.name}; leave it out"
    for name in () if suite.scalable else ("height", "width", "num_action_repeats"):
        if (value := getattr(config, name)) != suite.defaults[name]:
            yield f"--{name} is always {suite.defaults[name]} in {suite.name}, got {value}"
    if config.pixel_control and min(config.height, config.width) < _MIN_PIXELS:
        got = f"{config.height}x{config.width} in {suite.name}"
        yield f"--pixel_control needs images of {_MIN_PIXELS}x{_MIN_PIXELS} or more, got {got}"
    if config.padding == "valid" and (
        config.network != "shallow" or min(config.height, config.width) < MIN_UNPADDED
    ):
        images = f"images of {MIN_UNPADDED}x{MIN_UNPADDED} or more"
        has = f"the {config.network} one on {config.height}x{config.width}"
        yield f"--padding=valid is for the shallow network on {images}, not for {has}"
    num_tasks, actors = len(suite.tasks), config.num_actors * (config.actor_jobs or 1)
    # A learner with an address may have any number of jobs.
    learns = config.job_name == "learner" and config.mode != "test"
    if learns and not config.learner_address and actors < num_tasks:
        jobs = f" in each of --actor_jobs={config.actor_jobs}" if config.actor_jobs else ""
        played = f"the {num_tasks} tasks of --level_name={config.level_name}"
        told = f"give at least {num_tasks}{' in all' if jobs else ''}"
        yield f"--num_actors={config.num_actors}{jobs} cannot play {played}: {told}"
    if config.actor_threads > config.num_actors and config.mode != "test":
        yield f"--actor_threads={config.actor_threads} is above --num_actors={config.num_actors}"
    port = _ADDRESS.fullmatch(config.learner_address)
    if config.learner_address and not (port and int(port[2]) < 2**16):
        yield f"--learner_address={config.learner_address} must be HOST:PORT as actors see it"
    if config.job_name == "actor" and port and not int(port[2]):
        yield "--learner_address with port 0 is for the learner; actor jobs find it in --logdir"
    if config.gpus > 1:
        yield f"--gpus={config.gpus} is too many: a learner uses one; give 1, or leave it out"
    if config.actor_jobs and config.job_name != "learner":
        yield f"--actor_jobs={config.actor_jobs} is for --job_name=learner; leave it out"
    if config.keys_dir and not config.uses_port:
        yield "--keys_dir is for a run of many processes: give --learner_address"
    if config.job_name == "actor" and config.task < 0:
        yield "--job_name=actor needs --task, the job's number: 0 for the first, then 1, ..."
    if config.job_name != "actor" and config.task > 0:
        yield f"--task={config.task} is for --job_name=actor; leave it out"
    if config.mode != "pbt":
        return
    size, member = config.population_size, config.pbt_member
    if size < 2:
        yield f"--mode=pbt needs --population_size, 2 or more (the paper: 24 or 8), got {size}"
    if not -1 <= member < size:
        yield f"--pbt_member={member} must lie in [0, {size - 1}]; without it all are trained"
    if member < 0 and config.uses_port:
        how = "--learner_address, --actor_jobs and --job_name=actor"
        yield f"{how} are for one member: give --pbt_member too"
    if member >= 0 and config.pbt_places > 1:
        yield "--pbt_places is for members that share a machine; with --pbt_member leave it out"
    for name in suite.search_space:
        if getattr(config, name) == 0:  # No factor changes it.
            yield f"--{name}=0 cannot be tuned; give a value above 0, or leave it out"
    if not suite.normalised or not set(suite.tasks) & set(suite.reference_scores):
        how = f"add a level of {suite.name}" if suite.normalised else "give the suite some"
        yield f"--mode=pbt compares normalised scores; {config.level_name} has none: {how}"
