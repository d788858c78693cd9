#!/bin/bash
# ThreadSanitizer over the unit tests and the server under load, by hand: test_tsan.sh
# [GTEST_FILTER] (default: all). SECONDS_OF_LOAD: 120 unless told. Reports, if any, are in
# build/tsan/reports. Our own products, which are built with it, take the place of oneDNN's, which
# are not.
set -eu
cd "$(dirname "$0")/.."
build=build/tsan
# Older versions of the sanitizer do not find their way in the addresses that newer systems give at
# random.
plain=""
setarch -R true 2> /dev/null && plain="setarch -R"
# Compilers take up to a gigabyte each.
cmake --preset tsan --log-level=WARNING -DUNPACK_UNITY=ON -DUNPACK_DISCOVER_TESTS=OFF
cmake --build $build -j "${JOBS:-$(nproc)}" --target unpack_cli unit_tests
rm -rf $build/reports
mkdir -p $build/reports
suppressions=$PWD/tests/faults/tsan.supp
export UNPACK_ONEDNN=off \
  TSAN_OPTIONS="suppressions=$suppressions log_path=$PWD/$build/reports/race exitcode=66"
status=0
UNPACK=$PWD/$build/unpack $plain tools/soak.py --seconds "${SECONDS_OF_LOAD:-120}" --no-bound ||
  status=1
# Some of them start no threads to speak of: several processes at once.
running=""
for ((shard = 0; shard < $(nproc); ++shard)); do
  GTEST_TOTAL_SHARDS=$(nproc) GTEST_SHARD_INDEX=$shard RC_PARAMS=seed=20261115 $plain \
    $build/tests/unit_tests --gtest_brief=1 --gtest_filter="${1:-*}" &
  running="$running $!"
done
for process in $running; do wait "$process" || status=1; done
found=$(find $build/reports -type f | wc -l)
echo "tsan: $found processes with reports"
[ "$found" = 0 ] && exit $status
grep -h -m 1 -A 12 'WARNING: ThreadSanitizer' $build/reports/* | head -40
exit 1
