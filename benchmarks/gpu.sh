#!/bin/bash
# Measures, on a machine with a GPU, what the speed page wants to know, the most valuable first.
#
#   benchmarks/gpu.sh RESULTS [PIECE...]
#
# Each piece takes at most eight minutes and leaves RESULTS/PIECE.json. A piece that has its file is
# done, so the same command resumes. Without pieces all that are left are measured in order.
# PYTHON names the interpreter, SECONDS_EACH how long a rate is measured, LEVEL the level, and FLAGS
# holds more flags: FLAGS=--network=shallow tries the script on a processor.
# shellcheck disable=SC2086 - Flags are words.
set -u
results=$(mkdir -p "$1" && cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python} SECONDS_EACH=${SECONDS_EACH:-20} LEVEL=${LEVEL:-pong} FLAGS=${FLAGS:-}
export TF_CPP_MIN_LOG_LEVEL=1

# rates NAME FLAG...: training, update, policy and emulation, as `throughput.py` measures them.
rates() {
  "$PYTHON" benchmarks/throughput.py --use_popart --level_name="$LEVEL" --repeats=1 \
    --seconds="$SECONDS_EACH" --json="$results/$1.json" "${@:2}" $FLAGS
}

# trained NAME FLAG...: trains in $results/runs/NAME until the flags end it, and writes how long the
# first line of metrics took, then the median rate, the most memory, and all of the last line.
trained() {
  local run=$results/runs/$1 start=$EPOCHREALTIME
  rm -rf "$run"
  "$PYTHON" experiment.py --use_popart --level_name="$LEVEL" --logdir="$run" --log_seconds=1 \
    "${@:2}" $FLAGS || return
  "$PYTHON" - "$run/metrics.jsonl" "$start" > "$results/$1.json.part" << 'END' &&
import json, statistics, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
json.dump({
    "seconds_to_first_update": lines[0]["time"] - float(sys.argv[2]),
    "agent_steps_per_second": statistics.median(l["frames_per_second"] for l in lines[1:]) / 4,
    "largest_memory_mib": max(l["memory_mib"] for l in lines),
    "last": lines[-1],
}, sys.stdout, indent=1)
END
    mv "$results/$1.json.part" "$results/$1.json"
}

# life NAME: a run is trained, stopped, resumed, tested, and moved to the processor and back.
life() {
  local run=$results/runs/$1 train test
  train=("$PYTHON" experiment.py --use_popart --level_name="$LEVEL" --logdir="$run" --num_actors=64
    --checkpoint_seconds=10 --total_environment_frames=1e9 $FLAGS)
  test=("$PYTHON" experiment.py --mode=test --logdir="$run" --test_num_episodes=2)
  timeout -s TERM 60 "${train[@]}"
  timeout -s TERM 40 "${train[@]}"
  "${test[@]}" && cp "$run/evaluation.json" "$results/$1-gpu.json" || return
  timeout -s TERM 60 "${train[@]}" --gpus=0
  CUDA_VISIBLE_DEVICES=-1 "${test[@]}" && cp "$run/evaluation.json" "$results/$1-processor.json" || return
  timeout -s TERM 40 "${train[@]}"
  cp "$run/config.json" "$results/$1.json"
}

# The pieces in order, each a name and what measures it.
pieces=(
  "float32-256     rates --num_actors=256"
  "bfloat16-256    rates --num_actors=256 --precision=bfloat16"
  "float32-64      rates --num_actors=64"
  "float32-1024    rates --num_actors=1024"
  "bfloat16-xla-256 rates --num_actors=256 --precision=bfloat16 --xla"
  "bfloat16-1024   rates --num_actors=1024 --precision=bfloat16"
  "float32-xla-256 rates --num_actors=256 --xla"
  "threads-4-512   rates --num_actors=512 --actor_threads=4"
  "threads-2-512   rates --num_actors=512 --actor_threads=2"
  "start-57        trained --level_name=atari57 --total_environment_frames=2e6"
  "start-512       trained --num_actors=512 --total_environment_frames=2e6"
  "jobs-8          trained --actor_jobs=8 --num_actors=32 --total_environment_frames=6e6"
  "threads-256     trained --num_actors=256 --total_environment_frames=6e6"
  "life            life"
  "bfloat16-64     rates --num_actors=64 --precision=bfloat16"
  "float32-xla-64  rates --num_actors=64 --xla"
)

for piece in "${pieces[@]}"; do
  read -r name measure flags <<< "$piece"
  if [ $# -gt 0 ] && [[ " $* " != *" $name "* ]]; then continue; fi
  [ -e "$results/$name.json" ] && continue
  echo "$name" >&2
  export -f "$measure"
  export results PYTHON SECONDS_EACH LEVEL FLAGS
  timeout 480 bash -c '"$@"' "$0" "$measure" "$name" $flags > "$results/$name.log" 2>&1 ||
    echo "$name ended with $?; see $results/$name.log" >&2
done
