# Where this runs: on the login node, which submits it three times, or in one of these jobs.
set -u
role=login
if [[ ${1-} == --role=* ]]; then
  role=${1#*=}
  shift
fi

refuse() {
  echo "error: $*" >&2
  exit 2
}

member=""
if ((population_size)); then
  if [[ $# != 1 || ! $1 =~ ^[0-9]{1,2}$ ]] || ((10#$1 >= population_size)); then
    last=$((population_size - 1))
    refuse "give a member's number from 0 to $last, as in: bash $name.slurm.sh $last"
  fi
  member=$((10#$1))
  flags+=(--mode=pbt --population_size="$population_size" --pbt_member="$member")
  printf -v suffix -- -m%02d "$member"
  printf -v run_directory member-%02d "$member"
elif (($#)); then
  refuse "$name.slurm.sh takes no arguments"
else
  suffix=""
  run_directory=""
fi

if [[ $role == login ]]; then
  PYTHON=$(type -P "${PYTHON:-python3}") || refuse "there is no program ${PYTHON:-python3}; set PYTHON"
  PYTHON=$(realpath -s -- "$PYTHON") # The link in a virtual environment is what makes it that.
  export PATH=${PYTHON%/*}:$PATH     # Where a zip's own launcher looks for Python.
  EXECUTABLE=$(realpath -s -- "${EXECUTABLE:-$executable_name}")
  [[ -r $EXECUTABLE ]] || refuse "there is no $EXECUTABLE; set EXECUTABLE to experiment.py or a zip"
  LOGDIR=$(realpath -m -s -- "${LOGDIR:-runs/$name}")
  export PYTHON EXECUTABLE LOGDIR
  mkdir -p "$LOGDIR" || refuse "LOGDIR cannot be written"
fi
record=$LOGDIR/slurm_jobs$suffix # Numbers of the jobs: learner, actors, evaluator.

submit() {
  local part=$1
  shift
  sbatch --parsable --export=ALL --requeue --open-mode=append --job-name="$name$suffix-$part" \
    --signal="B:USR1@$notice" "$@" "$0" --role="$part" ${member:+"$member"} | cut -d ';' -f 1
}

submit_all() {
  local queued job jobs=()
  set -o pipefail
  exec 9>>"$record" || refuse "$record cannot be written"
  flock -n 9 || refuse "$LOGDIR is being submitted by somebody else"
  queued=$(squeue --noheader --format=%F) || refuse "Slurm does not answer"
  for job in $(head -n 1 "$record"); do
    ! grep -qx "$job" <<<"$queued" ||
      refuse "$LOGDIR belongs to the jobs $(head -n 1 "$record"), of which $job is queued or runs"
  done
  # Nothing runs before all parts are submitted.
  trap '((${#jobs[@]} == 0)) || scancel "${jobs[@]}"' EXIT
  job=$(submit learner --hold --output="$name$suffix-%j-learner.log" "${learner_options[@]}") ||
    exit 1
  jobs+=("$job")
  local logs=$name$suffix-$job # All of them are named by the learner's job.
  local after=--dependency=after:$job
  job=$(submit actor "$after" --output="$logs-actor-%a.log" --array="0-$((actor_jobs - 1))" \
    "${actor_options[@]}") || exit 1
  jobs+=("$job")
  if ((evaluator)); then
    job=$(submit evaluator "$after" --output="$logs-evaluator.log" "${evaluator_options[@]}") ||
      exit 1
    jobs+=("$job")
  fi
  echo "${jobs[*]}" >"$record"
  scontrol release "${jobs[0]}" || exit 1
  trap - EXIT
  echo "submitted; logs are $PWD/$logs-*.log; this ends it: scancel ${jobs[*]}"
}

if [[ $role == login ]]; then
  submit_all
  exit
fi

read -r -a jobs <"$record"
# A number alone would be the whole array's for the last of its jobs.
own_job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
own_job=${own_job:-$SLURM_JOB_ID}
pause=${RESTART_SECONDS:-10} # before something that failed is started again
export PYTHONUNBUFFERED=1
stop=""    # Once asked to: "requeue" at the time limit, "end" if the job was cancelled.
program="" # Its process group, which is this process and its children.

# Slurm sends TERM to all processes of a job, USR1 to this one only. These start no process, for
# the end of which Bash might wait as well.
trap 'stop=requeue; [[ -z $program ]] || kill -TERM -- "-$program" 2>/dev/null' USR1
trap 'stop=end' TERM INT

# Sees that the program, once asked to stop, does.
insist() {
  # One that has just begun may have missed it.
  ((SECONDS - began > 60)) || { sleep 5 && kill -TERM -- "-$program"; }
  # What does not end in time is queued again all the same.
  sleep $((notice - 30)) && kill -KILL -- "-$program"
}

TMPDIR=$(mktemp -d) # A zip unpacks itself there.
export TMPDIR

# shellcheck disable=SC2046,SC2317,SC2329 # These are numbers; a trap calls it.
clean_up() {
  trap '' TERM INT USR1 # Slurm sends TERM to what is called here, too.
  kill $(jobs -p) 2>/dev/null
  rm -rf "$TMPDIR"
}
trap clean_up EXIT

command=("$PYTHON" "$EXECUTABLE" "${flags[@]}" --job_name="$role" --logdir="$LOGDIR")
case $role in
  learner)
    # A number, since names of nodes may not resolve elsewhere; and any free port.
    address=$(scontrol show node "$SLURMD_NODENAME" | grep -oP '(?<=NodeAddr=)\S+')
    if [[ ! $address =~ ^[0-9.]+$ ]]; then
      address=$(getent ahostsv4 "$address" | awk '!/^127/ { print $1; exit }')
      [[ -n $address ]] || address=$(hostname -I | cut -d ' ' -f 1)
    fi
    command+=(--learner_address="$address:0" --gpus="$gpus")
    ;;
  actor) command+=(--task="$SLURM_ARRAY_TASK_ID") ;;
esac
[[ $role == learner ]] || export CUDA_VISIBLE_DEVICES=-1

# Ends actors and evaluator whose learner's job is gone, cancelled for instance, and a learner whose
# actors' job is gone, as nobody plays for it.
needed=${jobs[0]}
[[ $role != learner ]] || needed=${jobs[1]}
watch_needed() {
  local queued
  while sleep "${WATCH_SECONDS:-60}"; do
    queued=$(squeue --me --noheader --format=%F) || continue
    if grep -qx "$needed" <<<"$queued" || [[ $(tail -n 1 "$record") == finished ]]; then
      continue
    fi
    # Actors that were told of the run's end are gone some time before the learner.
    if [[ $role == learner ]] &&
      grep -qs '"finished_frames": [1-9]' "$LOGDIR/$run_directory/learner.json"; then
      continue
    fi
    echo "the job $needed, which the $role needs, is gone; ending" >&2
    scancel --quiet "$own_job"
  done
}
watch_needed &
watch=$!

status=1
# On a node that only Slurm lost sight of, the learner that was started there may train on.
lock=$LOGDIR/$run_directory/lock
if [[ $role == learner && -e $lock ]] && ((${SLURM_RESTART_COUNT:-0})) &&
  ! flock --nonblock "$lock" true; then
  echo "waiting for the end of this run's learner that was started before" >&2
  flock "$lock" true &
  wait $!
fi
quick_failures=0
while [[ -z $stop ]]; do
  began=$SECONDS
  # Nobody but the program itself is to get TERM: a zip's own launcher would die of it before
  # the program has saved.
  set -m
  (
    trap '' TERM
    exec "${command[@]}"
  ) &
  program=$!
  set +m
  insists=""
  wait "$program"
  while kill -0 "$program" 2>/dev/null; do # A signal to this script ended the waiting only.
    if [[ -z $insists ]]; then
      insist 2>/dev/null &
      insists=$!
    fi
    wait "$program"
  done
  wait "$program"
  status=$?
  program=""
  # 2: an error of the user's; 143: it was sent TERM, saved, and ended.
  [[ -z $stop && $status != 0 && $status != 2 && $status != 143 ]] || break
  quick_failures=$((SECONDS - began < 120 ? quick_failures + 1 : 0))
  if ((quick_failures == 10)); then
    echo "the $role failed ten times at once; giving up" >&2
    break
  fi
  echo "the $role ended with exit code $status; starting it again" >&2
  sleep "$pause" &
  wait $! # A signal ends it at once.
done
kill "$watch" 2>/dev/null

if [[ $stop == requeue && $status != 0 && $status != 2 ]]; then
  scontrol requeue "$own_job"
  exit "$status"
fi
# If it was cancelled or queued again by others, Slurm does the rest.
if [[ $role == learner && $stop != end ]]; then
  if ((status == 0)); then
    echo finished >>"$record"
    # Actor jobs that run end by themselves, soon; the evaluator after its final test.
    for ((wait = 0; wait < ${FAREWELL_SECONDS:-60}; wait++)); do
      [[ -n $(squeue --jobs="${jobs[1]}" --states=RUNNING --noheader 2>/dev/null) ]] || break
      sleep 1
    done
    scancel --quiet "${jobs[1]}"
  else
    scancel --quiet "${jobs[@]:1}"
  fi
fi
exit "$status"
