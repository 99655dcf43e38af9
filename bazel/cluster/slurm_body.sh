address=${SLURMD_NODENAME:-$(hostname)}:$port
command=("$python" "$executable" "${flags[@]}")
export PYTHONUNBUFFERED=1

stop=""    # Once asked to: "requeue" at the time limit, "end" if the job was cancelled.
learner="" # Its srun, which passes signals on to it.

# shellcheck disable=SC2317,SC2329 # Traps call it.
ask_to_stop() {
  stop=$1
  [[ -z $learner ]] || kill -TERM "$learner" 2>/dev/null
}
trap 'ask_to_stop requeue' USR1
trap 'ask_to_stop end' TERM INT

# Processes of part $1 of the job that are started again wherever they fail. Its other arguments:
# their number, cores for each, the role, and flags of their own.
keep_running() {
  local part=$1 number=$2 cpus=$3 role=$4
  shift 4
  # shellcheck disable=SC2016 # The loop's variables are those of the nodes.
  srun --het-group="$part" --ntasks="$number" --cpus-per-task="$cpus" \
    --kill-on-bad-exit=0 --no-kill --open-mode=append --output="$name-%j-$role-%t.log" \
    bash -c '
      export CUDA_VISIBLE_DEVICES=-1 # Only the learner uses GPUs.
      pause=$1
      shift
      [[ $0 != actor ]] || set -- "$@" --task="$SLURM_PROCID"
      until "$@"; do sleep "$pause"; done
    ' "$role" "$pause" "${command[@]}" --job_name="$role" "$@" &
}

# Once, until it ends. Nobody but the program itself is to hear TERM: were a zip's own launcher to
# die of it, Slurm would kill what is left of the step, the program, while that saves.
run_learner() {
  # shellcheck disable=SC2016
  srun --het-group=0 --ntasks=1 --cpus-per-task="$learner_cpus" --kill-on-bad-exit=0 \
    bash -c 'trap "" TERM; exec "$@"' learner \
    "${command[@]}" --job_name=learner --learner_address="$address" --logdir="$logdir" &
  learner=$!
  wait "$learner"
  status=$?
  while kill -0 "$learner" 2>/dev/null; do # A signal to this script ended the waiting only.
    wait "$learner"
    status=$?
  done
  learner=""
}

keep_running 1 "$actor_jobs" "$actor_cpus" actor --learner_address="$address"
if ((evaluator_cpus)); then
  keep_running 2 1 "$evaluator_cpus" evaluator --logdir="$logdir"
fi

status=1
quick_failures=0
while [[ -z $stop ]]; do
  began=$SECONDS
  run_learner
  # 143: it was sent TERM, saved, and ended.
  [[ $status != 0 && $status != 143 ]] || break
  quick_failures=$((SECONDS - began < 120 ? quick_failures + 1 : 0))
  if ((quick_failures == 10)); then
    echo "the learner failed ten times at once; giving up" >&2
    break
  fi
  [[ -n $stop ]] || echo "the learner ended with exit code $status; starting it again" >&2
  sleep "$pause" &
  wait $! # A signal is heard at once.
done

if [[ $stop == requeue && $status != 0 ]]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status" # Slurm ends what still runs.
