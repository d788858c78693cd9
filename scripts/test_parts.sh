#!/bin/sh
# test_parts.sh JOBS PROGRAM [ARGUMENT...]: a GoogleTest program, cut into JOBS parts that run side
# by side. A process a test would spend most of its time on starting. The last words of every part
# are printed, more of one that failed.
set -u
jobs=$1
shift
export RC_PARAMS="${RC_PARAMS:-seed=20261115}"
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
part=0
while [ "$part" -lt "$jobs" ]; do
  (
    GTEST_TOTAL_SHARDS=$jobs GTEST_SHARD_INDEX=$part "$@" --gtest_brief=1 >"$logs/$part" 2>&1
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
