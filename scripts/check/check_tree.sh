#!/usr/bin/env bash
# Checks the plan of the house:  scripts/check/check_tree.sh [FOLDER]
#
#   - includes point one way: a lesson -> lessons/parallel -> lessons/frame -> gpt2 -> data -> common; inside common
#     collectives -> messages -> program -> files -> memory -> base
#   - no source file is included
#   - code for GPUs is reached through common/cuda/devices.hpp, except by the kernels for GPUs
#   - lessons send messages through a transport, except lesson 00, which is about MPI itself
#   - gpt2 and data know neither MPI nor ranks, but for the programs of theirs; common and data know no transformer; lessons
#     do not know how exact sums are made
#   - GPUs are a choice at run time: no #if asks for CUDA in gpt2 or lessons, no triple chevrons
#   - what shards a model names no piece of it, so that it shards any model
#   - each lesson has a README, and its program begins with the header that readers expect
#   - each header file is included once and documented as a file
#   - no range views, which the clang of Debian 12 does not compile
#   - on top of scripts/ stand the programs that users type, in folders what checks, measures, draws or is shared
#   - JSON is written by json_text(), and texts are printed by print_text(); draw_text() is for those that draw
#
# Comments may speak of everything; only code is looked at. Ends with status 1 and one line a finding.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../lib/words.sh"
takes 1
CDPATH='' cd "${1:-$(dirname "${BASH_SOURCE[0]}")/../..}"
shopt -s globstar nullglob

findings=0
finding() { echo "$1"; findings=$((findings + 1)); }

# The lines of files as FILE:NUMBER:LINE, without comments; and without the texts between quotation marks too.
code() { grep -Hn '' "$@" | sed 's://.*::'; }
names() { code "$@" | sed 's:"[^"]*":"":g'; }
# And the code of a lesson's files without what they include of its own folder.
of_others() { code "$@" | grep -v "#include \"$folder"; }

# forbid code|names PATTERN WHY FILE...: reports each line in which the extended regular expression occurs.
forbid() {
  local what=$1 pattern=$2 why=$3 file number
  shift 3
  (($#)) || return 0
  while IFS=: read -r file number _; do
    finding "$file:$number: $why: $(sed -n "${number}s/^ *//p" "$file")"
  done < <("$what" "$@" | grep -iE "^[^:]*:[0-9]+:.*($pattern)" || true)
}

common=(common/**/*.{[ch]pp,cu})
gpt2=(gpt2/**/*.{[ch]pp,cu})
data=(data/**/*.[ch]pp)
lessons=(lessons/**/*.[ch]pp)
not_for_gpus=() on_one_rank=()
for file in "${common[@]}" "${gpt2[@]}" "${data[@]}" "${lessons[@]}"; do
  [[ $file == */cuda/* ]] || not_for_gpus+=("$file")
done
for file in "${gpt2[@]}" "${data[@]}"; do
  [[ $file == data/prepare.cpp || $file == gpt2/programs/* ]] || on_one_rank+=("$file")
done

include='#include "'
forbid code "$include(gpt2|data|lessons|tests)/" "common includes only common" "${common[@]}"
forbid code "$include(gpt2|lessons|tests)/" "data includes only data and common" "${data[@]}"
forbid code "$include(lessons|tests)/" "gpt2 includes only gpt2, data and common" "${gpt2[@]}"
higher=(memory files program messages collectives)
for room in base "${higher[@]}"; do
  if [[ $room == "${higher[0]:-}" ]]; then higher=("${higher[@]:1}"); fi
  if ((${#higher[@]})); then
    forbid code "${include}common/($(IFS='|' && echo "${higher[*]}"))/" "common/$room includes nothing above it" \
      common/"$room"/**/*.[ch]pp
  fi
done
forbid code "${include}common/collectives/" "GPUs know no collectives" common/cuda/*
forbid code "${include}(common|gpt2/kernels)/cuda/([^d]|d[^e]|de[^v])" "GPUs are reached through common/cuda/devices.hpp" \
  "${not_for_gpus[@]}"
forbid code "${include}tests/" "lessons include no tests" "${lessons[@]}"
forbid code "${include}lessons/([0-9]|parallel)" "the frame includes no lesson, and nothing of lessons/parallel" lessons/frame/**/*.[ch]pp
forbid code "${include}lessons/[0-9]" "lessons/parallel includes no lesson" lessons/parallel/**/*.[ch]pp
for folder in lessons/[0-9][0-9]_*/; do
  forbid of_others "${include}lessons/[0-9]" "a lesson includes no lesson" "$folder"*.[ch]pp
done
forbid code "$include.*\.cpp\"" "a source file is not included" "${common[@]}" "${gpt2[@]}" "${data[@]}" "${lessons[@]}"
forbid code '#include "[^/"]*"' "includes are written from the root" "${common[@]}" "${gpt2[@]}" "${data[@]}" "${lessons[@]}"

forbid code "${include}common/(messages|collectives|program/session)" "gpt2 and data know neither MPI nor ranks" \
  "${on_one_rank[@]}"
forbid names '\b(mpi|nccl)(\b|_)|[^.]\branks?(\b|_)' "gpt2 and data know neither MPI nor ranks" "${on_one_rank[@]}"
forbid names '\b(attention|transformer|gpt2)' "common knows no transformer" "${common[@]}"
forbid names '<<<|\b(__CUDACC__|__CUDA_ARCH__)\b' "kernels are launched by launch(), and one source serves all compilers" "${common[@]}" "${gpt2[@]}"
no_json=() no_printing=() no_drawing=()
for file in "${common[@]}" "${gpt2[@]}" "${data[@]}" "${lessons[@]}"; do
  [[ $file == common/base/json.cpp ]] || no_json+=("$file")
  [[ $file == common/base/text.cpp ]] || no_printing+=("$file")
  [[ $file =~ ^common/(base/text|program/(report|progress_bar|session)|messages/watchdog/watchdog)\.[ch]pp$ ]] || no_drawing+=("$file")
done
forbid names '(\.|->)dump\(' "JSON is written by json_text(), which takes any bytes" "${no_json[@]}"
forbid names '\b(f?puts|fwrite|v?f?printf|fmt::print|std::(cout|cerr|clog))\b' "texts are printed by print_text(), which shows control characters" \
  "${no_printing[@]}"
forbid names '\bdraw_text\(' "only what draws on the terminal sends control characters to it" "${no_drawing[@]}"
forbid code '#\s*if.*(CUDA|NCCL)' "the device is a choice at run time" "${lessons[@]}" "${gpt2[@]}"
forbid names '\bviews::|\branges::(equal_range|subrange)\b' "clang 14, which is Debian 12's, compiles no views" "${common[@]}" "${gpt2[@]}" "${data[@]}" "${lessons[@]}"
forbid code 'exact' "lessons do not know how sums are made exact" lessons/{[0-9]*,parallel}/**/*.[ch]pp

by_transport=()
for file in "${lessons[@]}"; do [[ $file == lessons/00_mpi/* ]] || by_transport+=("$file"); done
forbid names '\bMPI_I?[bsr]?(send|m?recv)\w*' "only lesson 00 sends messages by MPI itself; others use a Transport" "${by_transport[@]}"

sharding=(lessons/parallel/zero/{buckets,bucket_shards,sharded_adamw,sharded_norm,step_plan,bucket_gradients,shard_sums}.[ch]pp
  lessons/parallel/zero/{fsdp_units,sharded_parameters}.[ch]pp)
pieces='(token|position)_?embedding|\bembedding|attention|\bhead|\bmlp|gelu|logits|\bbert|\bgpt2\b|(branch|model)_?tensors|activations\b'
forbid names "$pieces" "sharding does not know the model" "${sharding[@]}"

for file in scripts/*; do
  [[ -d $file || $file =~ /(rankwise|(setup|build|test|ladder|docs|doctor|fetch_data|mpi_environment)\.sh|course\.py)$ ]] ||
    finding "$file: on top of scripts/ stands what users type; the rest has a folder"
done

for file in {common,gpt2,data,lessons,tests}/**/*.hpp; do
  grep -q '^#pragma once' "$file" || finding "$file: has no #pragma once"
  grep -q '@file' "$file" || finding "$file: has no comment that says what the file is for (@file)"
done

for folder in lessons/[0-9][0-9]_*/; do
  name=$(basename "$folder")
  number=${name%%_*}
  [[ -e $folder/README.md ]] || finding "$folder: has no README.md"
  program=$folder$name.cpp
  [[ -e $program ]] || { finding "$folder: has no program $name.cpp"; continue; }
  [[ $(head -n 1 "$program") == "// Lesson $number: "* ]] || finding "$program:1: does not begin with '// Lesson $number: '"
  for field in 'Builds on' 'New idea' Memory Traffic Paper 'Sample runs' Expect; do
    grep -q "^// $field: " "$program" || finding "$program: its header has no line '// $field:'"
  done
done

if ((findings)); then
  echo "$findings findings."
  exit 1
fi
echo "The tree is as it should be."
