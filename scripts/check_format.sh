#!/bin/sh
# Fails where clang-format would change a tracked C++ file, and where a line has more than 100
# columns (clang-format leaves long strings and comments as they are); `check_format.sh --fix`
# changes what clang-format can.
set -eu
cd "$(dirname "$0")/.."
mode="--dry-run -Werror"
[ "${1:-}" = --fix ] && mode="-i"
# shellcheck disable=SC2086  # two options
git ls-files -z '*.cc' '*.h' '*.cu' '*.inl' | xargs -0 -r clang-format $mode
if git ls-files -z '*.cc' '*.h' '*.cu' '*.inl' |
  LC_ALL=C.UTF-8 xargs -0 -r grep -nE '^.{101,}' /dev/null; then
  echo "format: more than 100 columns" >&2
  exit 1
fi
echo "clang-format: ok"
