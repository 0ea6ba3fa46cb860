#!/bin/bash
# Starts Ray on hosts that ssh reaches without a password, runs a grid on them, and stops Ray again:
#   recipes/ssh.sh grid.toml /shared/results "NVIDIA H200" host1 host2 host3
# This host is the head and runs no task. autotune and Ray are installed on all, on the path of a login shell.
set -euo pipefail

GRID=$1
PLACE=$2
DEVICE=$3
shift 3
ADDRESS="$(hostname -f):6379"
LABEL=$(printf '{"%s": 1}' "$DEVICE")

# Without a token, whoever reaches a host may run code there. It goes by standard input, where no list of processes has it.
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_AUTH_TOKEN

stop() {
    for host in "$@"; do ssh "$host" "bash -lc 'ray stop'" < /dev/null || true; done
    ray stop
}

ray start --head --port=6379 --num-cpus=0 --num-gpus=0
trap 'stop "$@"' EXIT  # only now: where this fails, as beside another cluster, there is nothing of ours to stop
for host in "$@"; do
    start="read -r RAY_AUTH_TOKEN; export RAY_AUTH_TOKEN RAY_AUTH_MODE=token
        ray start --address $ADDRESS --resources $(printf '%q' "$LABEL")"
    # shellcheck disable=SC2029  # expanded here, as meant
    ssh "$host" "bash -lc $(printf '%q' "$start")" <<< "$RAY_AUTH_TOKEN"
done
autotune search --grid "$GRID" --engine ray --address "$ADDRESS" --place "$PLACE"
