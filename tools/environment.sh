#!/usr/bin/env bash
# Sets up .venv in the checkout: tools/environment.sh train|lint|test
#   train  what training and the demo data need; no torch
#   lint   train, and the tools that judge the code
#   test   lint, the bridge, and CREDIT, the PyTorch reference of the parity tests
# Only Python 3.11 or later with venv is needed; PYTHON names one. What is there already is kept. An
# installation that was killed half-way leaves a mark, and the next run then builds .venv anew.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venv
MARK=$VENV/.installing

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
        if "$candidate" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "No Python 3.11 or later with the venv module was found (tried: ${PYTHON:-python3, python3.11 to python3.13, python})." >&2
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

# A failure that pip itself reports has been rolled back by pip, so the mark goes; after a kill it stays.
install() {
    local status=0
    touch "$MARK"
    PIP_DISABLE_PIP_VERSION_CHECK=1 "$VENV/bin/python" -m pip install -qq --constraint constraints.txt "$@" || status=$?
    if [ "$status" -lt 128 ]; then
        rm -f "$MARK"
    fi
    return "$status"
}

trap 'exit 130' INT TERM HUP
echo "Setting up $VENV (${1:-}); the first time this takes a few minutes."
make_venv
case ${1:-} in
train) install --editable '.[demo]' ;;
lint) install --editable '.[demo,lint]' ;;
test)
    install --editable '.[demo,lint,bridge,test]'
    install --requirement tests/reference/requirements.txt
    install --no-deps --requirement tests/reference/requirements-credit.txt
    ;;
*)
    echo "usage: tools/environment.sh train|lint|test" >&2
    exit 2
    ;;
esac
