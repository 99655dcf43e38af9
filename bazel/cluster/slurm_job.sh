# The environment may set PYTHON, EXECUTABLE and LOGDIR to others, which all nodes see.
python=${PYTHON:-python3}
executable=${EXECUTABLE:-$SLURM_SUBMIT_DIR/$executable_name}
logdir=${LOGDIR:-$SLURM_SUBMIT_DIR/runs/$name}
pause=${RESTART_SECONDS:-10} # before something that failed is started again

if ((population_size)); then
  # Which member it is, the script's argument says; Slurm keeps it where it queues the job again.
  if [[ $# != 1 || ! $1 =~ ^[0-9]{1,2}$ ]] || ((10#$1 >= population_size)); then
    last=$((population_size - 1))
    echo "error: give a member's number from 0 to $last, as in: sbatch $name.slurm.sh $last" >&2
    exit 2
  fi
  member=$((10#$1))
  flags+=(--mode=pbt --population_size="$population_size" --pbt_member="$member")
  name+=$(printf -- -m%02d "$member") # of the logs; the run directory is for all members
  echo "this is $name, job $SLURM_JOB_ID"
  # No two members take the same port; two runs of different populations seldom do.
  port=$((first_port + SLURM_JOB_ID % (1000 / population_size) * population_size + member))
else
  # Two runs whose learners share a node take different ports.
  port=$((first_port + SLURM_JOB_ID % 1000))
fi
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

# The shell itself starts again what fails, here and below: the executable may be a Python zip,
# from which only the experiment can be run, not the package's supervisor.
#
# Arguments: part of the job, number of processes, cores for each, role, and flags of its own.
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

keep_running 1 "$actor_jobs" "$actor_cpus" actor --learner_address="$address"
if ((evaluator_cpus)); then
  keep_running 2 1 "$evaluator_cpus" evaluator --logdir="$logdir"
fi

status=1
quick_failures=0
while [[ -z $stop ]]; do
  began=$SECONDS
  # Nobody but the program itself is to hear TERM: were a zip's own launcher to die of it, Slurm
  # would kill what is left of the step, the program, while that saves.
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
