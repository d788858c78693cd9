#!/bin/sh
# Fails where clang-format would change a tracked C++ file, and names every line of a tracked text
# file that has more than 100 columns; `check_format.sh --fix` changes what clang-format can.
#
# Columns are characters. Left out are rows of Markdown tables, and lines that no blank allows to be
# broken (an address, a checksum); and files that nobody writes or reads line by line: what programs
# of ours wrote (pictures, notebooks, docs/experiments, the built page, npm's lock file, measured
# times), data with one record a line, expected values, chat templates and a fuzzer's inputs as they
# were found.
set -eu
cd "$(dirname "$0")/.."
mode="--dry-run -Werror"
[ "${1:-}" = --fix ] && mode="-i"
# shellcheck disable=SC2086  # two options
git ls-files -z '*.cc' '*.h' '*.cu' '*.inl' | xargs -0 -r clang-format $mode
wide=$(LC_ALL=C.UTF-8 git grep -nIE '^.{101,}' -- . ':!*.svg' ':!*.ipynb' ':!docs/experiments' \
  ':!web/dist' ':!web/package-lock.json' ':!tools/times' ':!data' ':!tests/golden/*.json' \
  ':!tests/templates' ':!fuzz/corpus' |
  grep -vE -e '^[^:]*\.md:[0-9]+: *\|' -e '^[^:]*:[0-9]+:[[:blank:]]*(([-*>#]|//) )?[^ ]*$' |
  sed -E 's/^([^:]*:[0-9]+):.*/format: \1: more than 100 columns/') || true
if [ -n "$wide" ]; then
  printf '%s\n' "$wide" >&2
  exit 1
fi
echo "format: ok"
