#!/bin/sh
# clang-tidy over the C++ files that changed since a commit (default: the last one), or over the
# files named. Usage: check_tidy.sh BUILD_DIR [FILE...]
set -eu
cd "$(dirname "$0")/.."
build=$1
shift
if [ $# -eq 0 ]; then
  base=${UNPACK_TIDY_BASE:-HEAD~1}
  git rev-parse -q --verify "$base^{commit}" >/dev/null || base=$(git hash-object -t tree /dev/null)
  limit=${UNPACK_TIDY_LIMIT:-12}
  # shellcheck disable=SC2046  # our file names have no blanks
  set -- $(git diff --name-only --diff-filter=d "$base" -- 'src/*.cc' 'cli/*.cc' | head -n "$limit")
fi
if [ $# -eq 0 ]; then
  echo "clang-tidy: nothing changed"
  exit 0
fi
echo "clang-tidy: $*"
printf '%s\n' "$@" | xargs -P "$(nproc)" -n 1 clang-tidy --quiet -p "$build"
echo "clang-tidy: ok"
