#!/bin/sh
# Measures beside llama-server on a machine without a network, by default with CUDA, from what `python -m perf.gpu_pack`
# packed.
#   sh perf/gpu.sh all                 build, make the model, measure: fits in 9 to 10 minutes on 16 cores
#   sh perf/gpu.sh build               the first half: libraries, peer, bindings, model
#   sh perf/gpu.sh measure [OPTIONS]   the second half, any number of times
#   sh perf/gpu.sh graph               after build: check and time the graph engine beside llama_decode; 3 minutes
#   UMA_BACKEND=cpu sh perf/gpu.sh build --model 0.5b-q8_0
#   UMA_BACKEND=cpu sh perf/gpu.sh perf accept --beside 5 ...   any command of `python -m perf`
# Environment: UMA_BACKEND, UMA_GPU_DIR (keeps builds and models between commands), UMA_GPU_PACK (default perf/out/gpu),
# UMA_GPU_OUT (where results go; default $UMA_GPU_DIR/out), PYTHON.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
UMA_GPU_DIR=${UMA_GPU_DIR:-$HOME/uma-gpu}
UMA_GPU_PACK=${UMA_GPU_PACK:-$PWD/perf/out/gpu}
UMA_GPU_OUT=${UMA_GPU_OUT:-$UMA_GPU_DIR/out}
mkdir -p "$UMA_GPU_DIR" "$UMA_GPU_OUT"
if [ ! -e "$UMA_GPU_DIR/site/.ready" ]; then
    "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$UMA_GPU_DIR/site" "$UMA_GPU_PACK"/wheels/*.whl
    touch "$UMA_GPU_DIR/site/.ready"
fi
export UMA_GPU_DIR UMA_GPU_PACK UMA_GPU_OUT
export PYTHONPATH="$UMA_GPU_DIR/site:$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export UMA_BUILD_CACHE="$UMA_GPU_DIR/cache" UMA_SDIST="$UMA_GPU_PACK/llama.cpp.tar.xz" UMA_BACKEND="${UMA_BACKEND:-cuda}"
export UMA_LLAMA_DIR="$UMA_GPU_DIR/llama-$UMA_BACKEND" UMA_PEER_DIR="$UMA_GPU_DIR/llama-$UMA_BACKEND"
case $UMA_BACKEND in cuda) export UMA_CMAKE_ARGS="${UMA_CMAKE_ARGS:--DCMAKE_CUDA_ARCHITECTURES=90}" ;; esac
UMA_PERF_COMMIT=$(cat "$UMA_GPU_PACK/COMMIT" 2>/dev/null || true)
export UMA_PERF_COMMIT
case ${1:-} in
perf) shift; exec "$PYTHON" -m perf "$@" ;;
*) exec "$PYTHON" -m perf.gpu "$@" ;;
esac
