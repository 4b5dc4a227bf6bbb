#!/usr/bin/env bash
# Sets up an environment in the checkout: tools/environment.sh train|test|newest|snakemake
#   train   .venv with what training and the demo data need; no torch
#   test    that, the checks, the docs, the bridge, and CREDIT, the PyTorch reference of the tests
#   newest  .cache/newest with the newest of everything, whatever constraints.txt says: what training,
#           the demo data and the tests need; no torch
#   snakemake  .cache/snakemake with Snakemake alone, whose packages exclude some of the tests'
# Only Python 3.11 (newest: 3.12) or later with venv is needed; PYTHON names one, in PATH or
# among the versions that pyenv has. What is there already is kept. An installation that was
# killed half-way leaves a mark, and the next run then builds the environment anew.
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
newest) VENV=.cache/newest MINIMUM=12 CANDIDATES='python3.13 python3.12 python3 python' ;;
snakemake) VENV=.cache/snakemake MINIMUM=11 CANDIDATES='python3.12 python3.11 python3 python' ;;
*) VENV=.venv MINIMUM=11 CANDIDATES='python3 python3.13 python3.12 python3.11 python' ;;
esac
MARK=$VENV/.installing
TRAINING='credit_jax.train, credit_jax.predict, credit_jax.extensions.demo.dynamics'
TRAINING+=', matplotlib.backends.backend_agg, matplotlib.figure, tensorboardX'

find_python() {
    local name candidate pyenv=${PYENV_ROOT:-$HOME/.pyenv}/versions
    local test="import sys, venv, ensurepip; sys.exit(sys.version_info < (3, $MINIMUM))"
    for name in ${PYTHON:-$CANDIDATES}; do
        for candidate in "$name" "$pyenv"/*/bin/"$name"; do
            if "$candidate" -c "$test" 2>/dev/null; then
                echo "$candidate"
                return
            fi
        done
    done
    echo "No Python 3.$MINIMUM or later with venv was found; tried:" \
        "${PYTHON:-$CANDIDATES}, in PATH and in $pyenv." >&2
    echo "Install one, or name it: make PYTHON=/path/to/python3.$MINIMUM ..." >&2
    return 1
}

# .venv stays what it is; the newest environment follows the interpreter.
make_venv() {
    local python version='import sys; print(sys.version)'
    if [ ! -e "$MARK" ] && "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
        if [ "$VENV" = .venv ]; then
            return
        fi
        python=$(find_python)
        if [ "$("$python" -c "$version")" = "$("$VENV/bin/python" -c "$version")" ]; then
            return
        fi
    fi
    if [ -e "$MARK" ]; then
        echo "An earlier installation was interrupted: building $VENV anew."
    fi
    python=$(find_python)
    "$python" -m venv --clear "$VENV"
}

# A failure that pip itself reports was rolled back by pip, so the mark goes; after a kill
# it stays. pip compiles no modules: few of them are ever imported (see first_imports).
install() {
    local status=0
    touch "$MARK"
    PIP_DISABLE_PIP_VERSION_CHECK=1 "$VENV/bin/python" -m pip install -qq --no-compile \
        "$@" || status=$?
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

TESTED=(--constraint constraints.txt)
NEWEST=(--upgrade --upgrade-strategy eager)
trap 'exit 130' INT TERM HUP
echo "Setting up $VENV (${1:-}); the first time this takes a few minutes."
make_venv
case ${1:-} in
train)
    install "${TESTED[@]}" --editable '.[demo]'
    first_imports "$TRAINING"
    ;;
test)
    install "${TESTED[@]}" --editable '.[demo,lint,docs,bridge,test]'
    install "${TESTED[@]}" --requirement tests/reference/requirements.txt
    install "${TESTED[@]}" --no-deps --requirement tests/reference/requirements-credit.txt
    first_imports "$TRAINING, credit_torch_bridge.__main__, torch, pytest"
    ;;
newest)
    install "${NEWEST[@]}" --editable '.[demo,docs,test]'
    first_imports "$TRAINING, pytest"
    "$VENV/bin/python" -m pip list --format=freeze | grep -Ei '^(jax|jaxlib|numpy|pandas)=='
    ;;
snakemake)
    install 'snakemake>=9'
    ;;
*)
    echo "usage: tools/environment.sh train|test|newest|snakemake" >&2
    exit 2
    ;;
esac
