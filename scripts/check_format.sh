#!/bin/sh
# Fails where clang-format would change a tracked C++ file; `check_format.sh --fix` changes it.
set -eu
cd "$(dirname "$0")/.."
mode="--dry-run -Werror"
[ "${1:-}" = --fix ] && mode="-i"
# shellcheck disable=SC2086  # two options
git ls-files -z '*.cc' '*.h' '*.cu' | xargs -0 -r clang-format $mode
echo "clang-format: ok"
