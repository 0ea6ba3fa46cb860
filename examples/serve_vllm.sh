#!/bin/sh
# Serve a model with vLLM, whose attention our kernels compute (docs/vllm.md).
#
#     examples/serve_vllm.sh [MODEL] [further options of vllm serve]
#
# It needs `pip install . vllm==0.33.0`, in a clone, and a GPU. The mean context is a hint for picking kernels.
set -eu
usage="usage: $0 [MODEL] [further options of vllm serve]"
case ${1:-} in
    -h | --help) echo "$usage"; exit ;;
    -*) echo "$usage" >&2; exit 2 ;;
esac
if ! command -v vllm >/dev/null; then
    echo "vllm is not installed: pip install vllm==0.33.0" >&2
    exit 1
fi
model=${1:-Qwen/Qwen3-8B}
[ $# -eq 0 ] || shift
exec vllm serve "$model" --attention-backend CUSTOM --max-model-len 16384 \
    --additional-config '{"autotune_mean_context": 2000}' "$@"
