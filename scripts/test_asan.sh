#!/bin/sh
# The unit tests of a build with sanitizers, cut into JOBS parts that run side by side: test_asan.sh PROGRAM JOBS.
# A process a test would spend most of its time on starting. Leaks are looked for only when ASAN_OPTIONS asks for it (detect_leaks=1): LeakSanitizer stops
# every thread by ptrace when the program ends, and where a container forbids that, it dies of it now and then.
set -u
program=$1
jobs=${2:-1}
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=0}" UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}" RC_PARAMS="${RC_PARAMS:-seed=20261115}"
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
part=0
while [ "$part" -lt "$jobs" ]; do
  (
    GTEST_TOTAL_SHARDS=$jobs GTEST_SHARD_INDEX=$part "$program" --gtest_brief=1 >"$logs/$part" 2>&1
    echo $? >"$logs/$part.status"
  ) &
  part=$((part + 1))
done
wait
failed=0
part=0
while [ "$part" -lt "$jobs" ]; do
  if [ "$(cat "$logs/$part.status")" = 0 ]; then
    tail -n 3 "$logs/$part"
  else
    tail -n 200 "$logs/$part"
    failed=1
  fi
  part=$((part + 1))
done
exit $failed
