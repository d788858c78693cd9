#!/bin/bash
# ThreadSanitizer over the unit tests and the server under load, by hand: test_tsan.sh [GTEST_FILTER] (default: all). SECONDS_OF_LOAD: 120 unless told.
# Reports, if any, are in build/tsan/reports. Our own products, which are built with it, take the place of oneDNN's, which are not.
set -eu
cd "$(dirname "$0")/.."
build=build/tsan
# Compilers take up to a gigabyte each.
cmake --preset tsan --log-level=WARNING -DUNPACK_UNITY=ON -DUNPACK_DISCOVER_TESTS=OFF
cmake --build $build -j "${JOBS:-$(nproc)}" --target unpack_cli unit_tests
rm -rf $build/reports
mkdir -p $build/reports
export UNPACK_ONEDNN=off TSAN_OPTIONS="suppressions=$PWD/tests/faults/tsan.supp log_path=$PWD/$build/reports/race exitcode=66"
status=0
UNPACK=$PWD/$build/unpack tools/soak.py --seconds "${SECONDS_OF_LOAD:-120}" --no-bound || status=1
RC_PARAMS=seed=20261115 $build/tests/unit_tests --gtest_brief=1 --gtest_filter="${1:-*}" || status=1
found=$(find $build/reports -type f | wc -l)
echo "tsan: $found processes with reports"
[ "$found" = 0 ] && exit $status
grep -h -m 1 -A 12 'WARNING: ThreadSanitizer' $build/reports/* | head -40
exit 1
