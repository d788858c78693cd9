#!/bin/sh
# Builds the program and its CUDA plugin on a machine with a GPU, and checks and measures them
# there:
#
#     scripts/test_gpu.sh [STEP ...]
#
# Steps, by default all but sanitize: build, tests (the unit tests that use the GPU), golden (CPU
# against GPU over every golden case), bench (one table for every shape), sanitize
# (compute-sanitizer over the stored cases). Each step's output is in build/gpu/STEP.log, and the
# times also in build/gpu/bench-SHAPE.json.
#
#   DEBS=FOLDER    .deb files of libraries that the machine lacks and cannot install; they are
#                  unpacked below build/gpu
#   GOLDEN=FOLDER  golden cases beside those of tests/golden
#   TOL=X          how far they may differ (1e-3, as the unit tests have it)
#   SHAPES="..."   what bench measures, a shape and options of `unpack bench` a line
#   JOBS=N         compilers at once
set -eu
cd "$(dirname "$0")/.."
out=$PWD/build/gpu
build=$out/build
steps=${*:-build tests golden bench}
jobs=${JOBS:-$(nproc)}
mkdir -p "$out"
rm -f "$out"/*failed

if [ -n "${DEBS:-}" ] && [ ! -e "$out/root/done" ]; then
  for file in "$DEBS"/*.deb; do dpkg-deb -x "$file" "$out/root"; done
  # Development packages name libraries that the machine has itself.
  for name in libcrypto.so libssl.so; do
    link=$out/root/usr/lib/x86_64-linux-gnu/$name
    [ -e "$link" ] || ln -sf "/usr/lib/x86_64-linux-gnu/$name.3" "$link"
  done
  touch "$out/root/done"
fi
if [ -e "$out/root/done" ]; then
  libraries=$out/root/usr/lib/x86_64-linux-gnu
  export PKG_CONFIG_SYSROOT_DIR="$out/root" \
    PKG_CONFIG_PATH="$libraries/pkgconfig:$out/root/usr/share/pkgconfig"
  export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  export CMAKE_PREFIX_PATH="$out/root/usr" CPLUS_INCLUDE_PATH="$out/root/usr/include"
fi

# Runs the command of a step, and keeps what it prints.
step() {
  name=$1
  shift
  begin=$(date +%s)
  verdict=ok
  if ! "$@" > "$out/$name.log" 2>&1; then
    verdict=FAILED
    echo "$name" >> "$out/failed"
  fi
  echo "$name: $verdict, $(($(date +%s) - begin)) s ($out/$name.log)"
  tail -n "${lines:-5}" "$out/$name.log" | sed 's/^/    /'
}

do_build() {
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DUNPACK_CUDA=ON -DUNPACK_TESTS=ON \
    -DUNPACK_PYTHON=OFF
  cmake --build "$build" -j "$jobs" --target unpack_cli unpack_cuda unit_tests
  "$build/unpack" --version
}

do_tests() {
  cases='*_cuda*:*/cuda:Cuda.*:ForwardPass.*:CreditOfRandomModels.*:Scores.*:*AtTrueSize*'
  "$build/tests/unit_tests" --gtest_brief=1 --gtest_filter="$cases-*cuda_emulated*"
}

do_golden() {
  set --
  for folder in tests/golden/*/ ${GOLDEN:+"$GOLDEN"/*/}; do
    if [ -e "$folder/expected.json" ] && [ -e "$folder/config.json" ]; then
      set -- "$@" "${folder%/}"
    fi
  done
  TOL=${TOL:-1e-3} python3 tests/tools/compare_devices.py "$build/unpack" cpu cuda "$@"
}

do_sanitize() {
  cases='Cases/Golden.*_cuda:Families/GoldenInterventions.CutsGive*_cuda'
  cases="$cases:Devices/Baselines.GiveTheStored*/cuda-*_cuda_emulated"
  for tool in memcheck racecheck; do
    for shard in $(seq 0 $((jobs - 1))); do
      GTEST_TOTAL_SHARDS=$jobs GTEST_SHARD_INDEX=$shard compute-sanitizer \
        --tool $tool --error-exitcode 1 \
        --kernel-name kernel_substring=unpack "$build/tests/unit_tests" --gtest_brief=1 \
        --gtest_filter="$cases" \
        > "$out/$tool-$shard.log" 2>&1 || touch "$out/$tool-$shard.failed" &
    done
    wait
    tail -qn 1 "$out/$tool"-*.log
  done
  ! ls "$out"/*.failed 2> /dev/null
}

# Those that fit on a GPU of 141 GB.
shapes=${SHAPES:-"gpt2-small --tokens 16 --repeat 21
gemma-2-2b --dtype bf16 --tokens 16,256 --repeat 3
gemma-3-4b --dtype bf16 --tokens 16 --repeat 3
olmo-2-7b --dtype bf16 --tokens 16 --repeat 2
phi-3-mini --dtype bf16 --tokens 16,64 --repeat 3
gpt-oss-20b --dtype bf16 --tokens 16 --repeat 2
qwen3-30b-a3b --dtype bf16 --tokens 16 --repeat 2
mixtral-8x7b --dtype bf16 --tokens 16 --repeat 2"}

for name in $steps; do
  case $name in
    build | tests | golden | sanitize) step "$name" "do_$name" ;;
    bench)
      echo "$shapes" | while read -r shape options; do
        if ! grep -q "\"$shape\"" src/model/known_shapes.cc; then
          echo "bench-$shape: left out, this program knows no such shape"
          continue
        fi
        # shellcheck disable=SC2086 # options are words
        lines=12 step "bench-$shape" "$build/unpack" bench --device cuda --prompts 0 \
          --shape "$shape" $options \
          --json "$out/bench-$shape.json"
      done
      ;;
    *)
      echo "steps are build, tests, golden, bench and sanitize, not $name" >&2
      exit 2
      ;;
  esac
  if [ "$name" = build ] && [ -e "$out/failed" ]; then exit 1; fi
done
if [ -e "$out/failed" ]; then
  echo "failed:" $(cat "$out/failed") >&2
  exit 1
fi
