#!/bin/sh
# Splits a batch or an experiment over a job array and merges it when all its tasks are done:
#
#   examples/slurm/submit.sh 100 results batch prompts.jsonl --model openai-community/gpt2
#   examples/slurm/submit.sh 16 faithfulness experiment faithfulness \
#     --model EleutherAI/pythia-160m-deduped
#
# The first words are the number of shards and a folder that all nodes share; what follows is an
# unpack command without --out and --shard. SBATCH_OPTIONS goes to sbatch (partition, account, time,
# memory); UNPACK names the program where it is not in PATH. Submitting the same again resumes: what
# is done is not done again.
set -eu

if [ $# -lt 4 ]; then
  echo "usage: $0 SHARDS OUT batch|experiment ..." >&2
  exit 2
fi
shards=$1
out=$2
shift 2
case $1 in
  batch | experiment) ;;
  *) echo "$0: the command to split is batch or experiment, not $1" >&2; exit 2 ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out/logs"

# shellcheck disable=SC2086  # a list of options
array=$(sbatch --parsable ${SBATCH_OPTIONS:-} --array="1-$shards" \
  --output="$out/logs/shard-%a.log" "$here/shard.sbatch" "$out" "$@")
# shellcheck disable=SC2086
merge=$(sbatch --parsable ${SBATCH_OPTIONS:-} --dependency="afterok:${array%%;*}" \
  --kill-on-invalid-dep=yes --output="$out/logs/merge.log" "$here/merge.sbatch" "$out")
echo "array ${array%%;*}, merge ${merge%%;*};" \
  "the result will be in $out/merged, logs are in $out/logs"
