#!/usr/bin/env bash
# Sets up .venv in the checkout: tools/environment.sh train|test
#   train  what training and the demo data need; no torch
#   test   that, the checks, the docs, the bridge, and CREDIT, the PyTorch reference of the tests
# Only Python 3.11 or later with venv is needed; PYTHON names one. What is there already
# is kept. An installation that was killed half-way leaves a mark, and the next run then
# builds .venv anew.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venv
MARK=$VENV/.installing
TRAINING='credit_jax.train, credit_jax.predict, credit_jax.demo.dynamics'
TRAINING+=', matplotlib.backends.backend_agg, matplotlib.figure, tensorboardX'

find_python() {
    local candidates=${PYTHON:-python3 python3.13 python3.12 python3.11 python} candidate
    local test='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'
    for candidate in $candidates; do
        if "$candidate" -c "$test" 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "No Python 3.11 or later with venv was found; tried: $candidates." >&2
    echo "Install one, or name it: make PYTHON=/path/to/python3.11 ..." >&2
    return 1
}

make_venv() {
    if [ ! -e "$MARK" ] && "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
        return
    fi
    if [ -e "$MARK" ]; then
        echo "An earlier installation was interrupted: building $VENV anew."
    fi
    local python
    python=$(find_python)
    "$python" -m venv --clear "$VENV"
}

# A failure that pip itself reports was rolled back by pip, so the mark goes; after a kill
# it stays. pip compiles no modules: few of them are ever imported (see first_imports).
install() {
    local status=0
    touch "$MARK"
    PIP_DISABLE_PIP_VERSION_CHECK=1 "$VENV/bin/python" -m pip install -qq --no-compile \
        --constraint constraints.txt "$@" || status=$?
    if [ "$status" -lt 128 ]; then
        rm -f "$MARK"
    fi
    return "$status"
}

# Compiles the modules that nearly every process imports, also where
# PYTHONDONTWRITEBYTECODE would have each process compile them anew, for 20 seconds.
first_imports() {
    env -u PYTHONDONTWRITEBYTECODE "$VENV/bin/python" -W ignore -c "import $1"
}

trap 'exit 130' INT TERM HUP
echo "Setting up $VENV (${1:-}); the first time this takes a few minutes."
make_venv
case ${1:-} in
train)
    install --editable '.[demo]'
    first_imports "$TRAINING"
    ;;
test)
    install --editable '.[demo,lint,docs,bridge,test]'
    install --requirement tests/reference/requirements.txt
    install --no-deps --requirement tests/reference/requirements-credit.txt
    first_imports "$TRAINING, credit_torch_bridge.__main__, torch, pytest"
    ;;
*)
    echo "usage: tools/environment.sh train|test" >&2
    exit 2
    ;;
esac
