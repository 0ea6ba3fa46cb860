#!/bin/bash
# Starts Ray on the nodes of a SLURM job and runs a grid on it. Edit the first lines, then:
#   sbatch recipes/slurm.sh grid.toml s3://bucket/results
#SBATCH --nodes=4
#SBATCH --exclusive
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=1
#SBATCH --time=08:00:00
set -euo pipefail

GRID=$1
PLACE=$2
export DEVICE="${DEVICE:-NVIDIA H200}"                          # the nodes' device kind, as the grid's file names it
export AUTOTUNE_SCRATCH="${AUTOTUNE_SCRATCH:-/tmp}"             # a disk of the node's own
export RAY_PORT=6379
export RAY_AUTH_MODE=token                                      # without it, whoever reaches a node may run code there
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_AUTH_TOKEN

mapfile -t HOSTS < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
HEAD=${HOSTS[0]}
export HEAD_ADDRESS="$HEAD:$RAY_PORT"

# One step holds Ray on every node, the head first; it ends with the job.
# shellcheck disable=SC2016  # expanded on the nodes
srun --overlap --kill-on-bad-exit=0 bash -c '
    label="{\"$DEVICE\": 1}"
    if [ "$SLURM_PROCID" = 0 ]; then
        exec ray start --head --port="$RAY_PORT" --resources "$label" --block
    fi
    until ray health-check --address "$HEAD_ADDRESS" 2>/dev/null; do sleep 2; done
    exec ray start --address "$HEAD_ADDRESS" --resources "$label" --block
' &
RAY=$!
trap 'kill "$RAY" 2>/dev/null || true' EXIT

until ray health-check --address "$HEAD_ADDRESS" 2>/dev/null; do sleep 2; done
srun --overlap --nodes=1 --ntasks=1 --nodelist="$HEAD" \
    autotune search --grid "$GRID" --engine ray --address "$HEAD_ADDRESS" --place "$PLACE"
