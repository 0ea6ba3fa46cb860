#!/bin/sh
# Serve a model with SGLang, whose attention our kernels compute (docs/sglang.md).
#
#     examples/serve_sglang.sh [MODEL] [further options of sglang.launch_server]
#
# It needs `pip install attention-autotune sglang==0.5.23` and a GPU.
set -eu
model=${1:-Qwen/Qwen3-8B}
[ $# -eq 0 ] || shift
exec python -m sglang.launch_server --model-path "$model" --attention-backend autotune --page-size 16 "$@"
