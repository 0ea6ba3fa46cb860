#!/bin/sh
# Serve a model with vLLM, whose attention our kernels compute (docs/vllm.md).
#
#     examples/serve_vllm.sh [MODEL] [further options of vllm serve]
#
# It needs `pip install attention-autotune vllm==0.33.0` and a GPU. The mean context is a hint for picking kernels.
set -eu
model=${1:-Qwen/Qwen3-8B}
[ $# -eq 0 ] || shift
exec vllm serve "$model" --attention-backend CUSTOM --max-model-len 16384 \
    --additional-config '{"autotune_mean_context": 2000}' "$@"
