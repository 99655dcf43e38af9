# Which member it is, the script's argument says; Slurm keeps it where it queues the job again.
if [[ $# != 1 || ! $1 =~ ^[0-9]{1,2}$ ]] || ((10#$1 >= population_size)); then
  last=$((population_size - 1))
  echo "error: give a member's number from 0 to $last, as in: sbatch $name.slurm.sh $last" >&2
  exit 2
fi
member=$((10#$1))
flags+=(--mode=pbt --population_size="$population_size" --pbt_member="$member")
name+=$(printf -- -m%02d "$member") # Of the logs from here on; the run directory is for all members.
echo "this is $name, job $SLURM_JOB_ID"

# No two members take the same port; two runs of different populations seldom do.
port=$((first_port + SLURM_JOB_ID % (1000 / population_size) * population_size + member))
