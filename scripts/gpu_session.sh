#!/bin/sh
# All that is checked and measured on a GPU, in one go and within a time:
#
#     scripts/gpu_session.sh [SECONDS [STEP ...]]
#
# Default: 3600 seconds and all steps, in this order: build (scripts/test_gpu.sh build), tests
# (backend tests), golden (CPU against GPU through the command line), true (true sizes against the
# CPU, and products in parts against single precision), sanitize (compute-sanitizer over stored
# cases and longer prompts), bench (the table of docs/gpu.md, short prompts first), batch (prompts
# side by side), streamed (two layers there, the others uploaded), layers (a prompt layer by layer
# beside the whole of it) and long (8,192 tokens, layer by layer). A step is stopped when the time
# is over, and those behind it are left out. Outputs are in build/gpu/session, the table at the end
# also in build/gpu/session/table.md; exit 1 where a check failed.
#
#   DEBS, GOLDEN, JOBS   as scripts/test_gpu.sh has them
#   LIMIT=SECONDS        the most that one command may take (600)
set -u
cd "$(dirname "$0")/.."
seconds=${1:-3600}
[ $# -gt 0 ] && shift
steps=${*:-build tests golden true sanitize bench batch streamed layers long}
out=$PWD/build/gpu/session
build=$PWD/build/gpu/build
jobs=${JOBS:-$(nproc)}
end=$(($(date +%s) + seconds))
mkdir -p "$out"
: > "$out/rows"
if [ -e build/gpu/root/done ]; then # libraries that scripts/test_gpu.sh unpacked
  libraries=$PWD/build/gpu/root/usr/lib/x86_64-linux-gnu
  export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi

# run NAME COMMAND...: one command with what is left of the time; a row of the table.
run() {
  name=$1
  shift
  left=$((end - $(date +%s)))
  limit=${LIMIT:-600}
  [ "$left" -lt "$limit" ] && limit=$left
  if [ "$limit" -lt 5 ]; then
    printf '%s|left out: no time||\n' "$name" >> "$out/rows"
    return 0
  fi
  begin=$(date +%s)
  timeout "$limit" "$@" > "$out/$name.log" 2>&1
  status=$?
  case $status in
    0) verdict=ok ;;
    124) verdict="stopped after $limit s" ;;
    *) verdict=FAILED ;;
  esac
  printf '%s|%s|%s|%s\n' "$name" "$verdict" "$(($(date +%s) - begin))" "$*" >> "$out/rows"
  echo "$name: $verdict, $(($(date +%s) - begin)) s"
  return $status
}

bench() { # NAME OPTIONS...
  name=$1
  shift
  rm -f "$out/$name.json"
  run "$name" "$build/unpack" bench --device cuda --json "$out/$name.json" "$@"
}

unit() { # NAME FILTER
  run "$1" "$build/tests/unit_tests" --gtest_brief=1 --gtest_filter="$2"
}

sanitize() { # TOOL
  tool=$1
  cases='Cases/Golden.*_cuda:Families/GoldenInterventions.CutsGive*_cuda:Cuda.TakesLonger*'
  cases="$cases:ByLayerTest.*:*PairSums*-*_cuda_emulated"
  for shard in $(seq 0 $((jobs - 1))); do
    echo "GTEST_TOTAL_SHARDS=$jobs GTEST_SHARD_INDEX=$shard" \
      "compute-sanitizer --tool $tool --error-exitcode 1 --kernel-name kernel_substring=unpack" \
      "'$build/tests/unit_tests' --gtest_brief=1 --gtest_filter='$cases'"
  done > "$out/sanitize-$tool.sh"
  run "sanitize-$tool" xargs -d '\n' -P "$jobs" -I{} sh -c '{}' < "$out/sanitize-$tool.sh"
}

llama="--prompts 0 --shape llama-3.1-8b --dtype bf16"
# shellcheck disable=SC2086 # options are words
for step in $steps; do
  case $step in
    build) run build scripts/test_gpu.sh build || break ;;
    tests)
      filter='*_cuda*:*/cuda:Cuda.*:ByLayerTest.*:ForwardPass.*:CreditOfRandomModels.*:Scores.*'
      filter="$filter:SplitProducts*:*ReadDirection*:*PairSums*:Streaming.*-*cuda_emulated*:*AtTrueSize*"
      unit tests "$filter"
      ;;
    golden) run golden scripts/test_gpu.sh golden ;;
    true) unit true-sizes '*AtTrueSize*' ;;
    sanitize)
      sanitize memcheck
      sanitize racecheck
      ;;
    bench)
      bench gpt2-16 --prompts 0 --shape gpt2-small --tokens 16 --repeat 15
      bench gpt2-16-best --prompts 0 --shape gpt2-small --tokens 16 --repeat 11 --preset best
      bench gpt2-1024 --prompts 0 --shape gpt2-small --tokens 1024 --repeat 5
      bench pythia-1.4b-32 --prompts 0 --shape pythia-1.4b --tokens 32 --repeat 3
      bench pythia-6.9b-16 --prompts 0 --shape pythia-6.9b --dtype f16 --tokens 16 --repeat 3
      bench llama-16 $llama --tokens 16 --repeat 1
      bench llama-16-best $llama --tokens 16 --repeat 1 --preset best
      bench llama-256 $llama --tokens 256 --repeat 1
      bench llama-1024 $llama --tokens 1024 --repeat 1
      ;;
    batch) bench batch --prompts 96 --shape gpt2-small --tokens 16 ;;
    streamed)
      bench streamed $llama --tokens 16 --repeat 2 --keep-layers 2
      bench streamed-best $llama --tokens 16 --repeat 2 --keep-layers 2 --preset best
      bench streamed-pythia --prompts 0 --shape pythia-1.4b --tokens 32 --repeat 3 --keep-layers 2
      ;;
    layers)
      export UNPACK_CUDA_BY_LAYER=1
      unit golden-by-layer 'Cases/Golden.*_cuda-*Closes*:*AboveAThreshold*'
      bench gpt2-1024-by-layer --prompts 0 --shape gpt2-small --tokens 1024 --repeat 1
      bench llama-1024-by-layer $llama --tokens 1024 --memory
      unset UNPACK_CUDA_BY_LAYER
      ;;
    long)
      bench llama-2048 $llama --tokens 2048 --memory
      bench llama-8192 $llama --tokens 8192 --repeat 1
      ;;
    *)
      echo "no step is called $step" >&2
      exit 2
      ;;
  esac
done

python3 - "$out" <<'PY' | tee "$out/table.md"
import json, os, sys
out = sys.argv[1]
print(
    "| | | seconds | one-shot trace | prepare | operations | peak on the GPU"
    " | counted, weights included | command |"
)
print("|---|---|---:|---:|---:|---:|---:|---:|---|")
for line in open(os.path.join(out, "rows")):
    name, verdict, taken, command = line.rstrip("\n").split("|", 3)
    path = os.path.join(out, name + ".json")
    cells = ["", "", "", "", ""]
    if os.path.exists(path):
        with open(path) as file:
            result = json.load(file)
        length = result["lengths"][-1]
        rows = {row["name"].strip(): row for row in length["rows"]}
        if "one-shot trace" in rows:
            cells[0] = f"{rows['one-shot trace']['seconds']:.4g} s"
        for row in rows.values():
            if "throughput" in row.get("note", ""):
                cells[0] += "; " + row["note"]
        if "streamed" in length:
            s = length["streamed"]
            cells[0] += f"; streamed {s['seconds']:.4g} s, {s['uploaded_gbytes']:.3g} GB up"
            cells[0] += f", alone {s['upload_seconds']:.3g} s"
        if "prepare" in rows:
            cells[1] = f"{rows['prepare']['seconds']:.4g} s"
        if "one-shot trace" in rows:
            cells[2] = f"{rows['one-shot trace'].get('gflop', 0) / 1e3:.4g} TFLOP"
        peak, counted = length.get("device_peak_mib"), length.get("device_counted_mib")
        weights = result.get("device_weights_mib", 0)
        if peak and counted:
            all_of_it = counted + weights
            cells[3] = f"{peak:,.0f} MiB"
            cells[4] = f"{all_of_it:,.0f} MiB, {100 * (all_of_it / peak - 1):+.1f}%"
    words = [os.path.basename(w) if w.startswith("/") else w for w in command.split()]
    shown = "`" + " ".join(words) + "`" if command else ""
    print(f"| {name} | {verdict} | {taken} | " + " | ".join(cells) + f" | {shown} |")
PY
if grep -q '|FAILED|' "$out/rows"; then exit 1; fi
