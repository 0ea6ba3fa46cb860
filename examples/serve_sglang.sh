#!/bin/sh
# Serve a model with SGLang, whose attention our kernels compute (docs/sglang.md).
#
#     examples/serve_sglang.sh [MODEL] [further options of sglang.launch_server]
#
# It needs `pip install . sglang==0.5.23`, in a clone, and a GPU.
set -eu
usage="usage: $0 [MODEL] [further options of sglang.launch_server]"
case ${1:-} in
    -h | --help) echo "$usage"; exit ;;
    -*) echo "$usage" >&2; exit 2 ;;
esac
if ! python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("sglang") is None)'; then
    echo "no python, or one without sglang: pip install sglang==0.5.23" >&2
    exit 1
fi
model=${1:-Qwen/Qwen3-8B}
[ $# -eq 0 ] || shift
export AUTOTUNE_SGLANG_MEAN_CONTEXT="${AUTOTUNE_SGLANG_MEAN_CONTEXT:-2000}"  # a hint for picking kernels
exec python -m sglang.launch_server --model-path "$model" --attention-backend autotune --page-size 16 "$@"
