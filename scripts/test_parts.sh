#!/bin/sh
# test_parts.sh JOBS PROGRAM [ARGUMENT...]: a GoogleTest program, cut into JOBS parts that run side
# by side. A process a test would spend most of its time on starting. Says of every part, and of all
# together, how many tests passed, were skipped and failed, and of a part that failed what its
# failed tests said; all they said stays in the folder LOGS (build/test_logs unless told).
set -u
jobs=$1
shift
export RC_PARAMS="${RC_PARAMS:-seed=20261115}"
logs=${LOGS:-$(dirname "$0")/../build/test_logs}
rm -rf "$logs"
mkdir -p "$logs"
part=0
while [ "$part" -lt "$jobs" ]; do
  (
    GTEST_TOTAL_SHARDS=$jobs GTEST_SHARD_INDEX=$part "$@" >"$logs/part$part.log" 2>&1
    echo $? >"$logs/part$part.status"
  ) &
  part=$((part + 1))
done
wait
failed=0
part=0
: >"$logs/counts"
while [ "$part" -lt "$jobs" ]; do
  log=$logs/part$part.log
  status=$(cat "$logs/part$part.status")
  # A program that was ended has no last words: what it had begun is counted by its lines.
  awk -v status="$status" -v part="$part" '
    /^\[ RUN      \] / { begun++; in_test = 1; text = "" }
    in_test { text = text $0 "\n" }
    /^\[       OK \] / { passed++; in_test = 0 }
    /^\[  SKIPPED \] [^ ]+ \(/ { skipped++; in_test = 0 }
    /^\[  FAILED  \] [^ ]+.* \([0-9]+ ms\)$/ { failed++; in_test = 0; said = said text }
    END {
      if (in_test) { said = said text; ended = 1 }
      if (status != 0) printf "%s", said > "/dev/stderr"
      printf "%d %d %d %d\n", passed, skipped, failed, ended
    }' "$log" >"$logs/count"
  read -r passed skipped bad ended <"$logs/count"
  cat "$logs/count" >>"$logs/counts"
  echo "part $part: $passed passed, $skipped skipped, $bad failed, exit status $status"
  if [ "$status" != 0 ]; then
    failed=1
    [ "$bad" != 0 ] || tail -n 200 "$log"
    [ "$ended" = 0 ] || echo "part $part was ended in a test; the tests behind it did not run"
  fi
  part=$((part + 1))
done
awk '{ passed += $1; skipped += $2; failed += $3 }
  END { printf "tests: %d passed, %d skipped, %d failed\n", passed, skipped, failed }' \
  "$logs/counts"
rm -f "$logs/count" "$logs/counts"
exit $failed
