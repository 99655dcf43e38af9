# The environment may set PYTHON, EXECUTABLE and LOGDIR to other places, which all nodes see.
python=${PYTHON:-python3}
executable=${EXECUTABLE:-$SLURM_SUBMIT_DIR/$executable_name}
logdir=${LOGDIR:-$SLURM_SUBMIT_DIR/runs/$name}
pause=${RESTART_SECONDS:-10} # before something that failed is started again
