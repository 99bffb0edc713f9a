#!/bin/sh
# Builds the native trainer with address and undefined-behaviour checks in a scratch folder and runs its tests there.
# Usage: PYTHON=path/to/python feddag/native/sanitize.sh [pytest arguments]
set -eu
python=$(command -v "${PYTHON:-python}")
case $python in /*) ;; *) python=$PWD/$python ;; esac
cd "$(dirname "$0")/../.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp -r feddag tests setup.py pyproject.toml README.md LICENSE "$scratch"
rm -f "$scratch"/feddag/native/*.so
cd "$scratch"
FEDDAG_SANITIZE=address,undefined "$python" setup.py -q build_ext --inplace
ls feddag/native/_portable*.so > /dev/null  # nothing built, nothing tested: that is a failure
# Python itself is not instrumented, so the checkers (and the library whose exceptions they watch) are loaded first;
# what the interpreter never frees is not a leak of ours.
preload=""
for library in libasan.so libubsan.so libstdc++.so; do preload="$preload $(g++ -print-file-name=$library)"; done
LD_PRELOAD=$preload ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
    "$python" -m pytest tests/native "$@"
