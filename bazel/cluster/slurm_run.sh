# Two runs whose learners share a node take different ports.
port=$((first_port + SLURM_JOB_ID % 1000))
