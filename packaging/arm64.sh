#!/bin/bash
# Cross-build for 64-bit ARM with Debian's compiler, and run the program and the unit tests in qemu:
# arm64.sh [GTEST_FILTER].
. "$(dirname "$0")/common.sh"
scripts/setup.sh arm64
need arm64 cmake ninja pkg-config aarch64-linux-gnu-g++ aarch64-linux-gnu-objdump \
  qemu-aarch64-static mmdebstrap
sysroot=$root/build/arm64-root
if [ ! -e "$sysroot" ]; then
  say "making a folder with the libraries of arm64"
  rm -rf "$sysroot.new"
  mkdir -p "$root/build"
  # shellcheck disable=SC2046  # none is mmdebstrap's own default
  mmdebstrap --quiet --variant=extract --arch=arm64 bookworm "$sysroot.new" $(mirror) \
    --include=libc6-dev,libstdc++-12-dev,libfmt-dev,libpcre2-dev,libutf8proc-dev,nlohmann-json3-dev,libcli11-dev,libcpp-httplib-dev,libgtest-dev,librapidcheck-dev
  mv "$sysroot.new" "$sysroot"
fi
cmake -G Ninja -S . -B build/arm64 --log-level=WARNING \
  -DCMAKE_TOOLCHAIN_FILE=packaging/toolchain-arm64.cmake -DUNPACK_SYSROOT="$sysroot" \
  -DCMAKE_BUILD_TYPE=Release -DUNPACK_TESTS=ON -DUNPACK_UNITY=ON -DUNPACK_DISCOVER_TESTS=OFF \
  -DUNPACK_UNIT_TEST_OPTIONS=-O0
cmake --build build/arm64 -j "$jobs" --target unpack_cli unit_tests
emulate="qemu-aarch64-static -L $sysroot"
$emulate build/arm64/unpack --version | tee build/arm64/version
grep -q '^kernels: neon, own products (neon)$' build/arm64/version ||
  fail "these are not the kernels of NEON"
$emulate build/arm64/unpack doctor
$emulate build/arm64/unpack predict "Mary and John went to the store. John gave a drink to"
# The inner loops are vectors of four lanes: every multiply-add of the products (of floats, packed,
# turned, with halves along their columns and across them) and of the sums over pairs, heads, edges,
# ways and writers is one on v registers.
aarch64-linux-gnu-objdump -dC --no-show-raw-insn build/arm64/unpack | awk '
  /^[0-9a-f]+ <.*>:$/ {
    name = ""
    if (match($0, /multiply_tile<6>|(pair|head|edge|reach|writer)_sums_float/) ||
        match($0, /(packed|turned)_product_float|(along|across)_of<(true|false)>/))
      name = substr($0, RSTART, RLENGTH)
    sub(/<true>/, " of bfloat16", name)
    sub(/<false>/, " of float16", name)
  }
  name != "" && /\tfmla\tv[0-9]+\.4s/ { four[name]++ }
  name != "" && /\tfn?m(add|sub)\ts[0-9]/ { fused[name]++ }
  END {
    for (name in four) {
      loops++
      printf "packaging: %s: %d multiply-adds of four lanes, %d of one\n",
        name, four[name], fused[name]
      bad += fused[name] > 0 || four[name] < 10
    }
    if (loops != 12) printf "packaging: %d of 12 loops were found\n", loops
    exit loops != 12 || bad > 0
  }' || fail "the inner loops are not vectors of four lanes"
# shellcheck disable=SC2086  # two words
LOGS=$root/build/arm64/test_logs scripts/test_parts.sh "$jobs" $emulate \
  build/arm64/tests/unit_tests --gtest_filter="${1:-*}"
