#!/usr/bin/env bash
# check_tree.sh: a sound tree passes; each broken rule is found, in the file and line where it is broken.
set -euo pipefail
check_tree=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)/scripts/check/check_tree.sh
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cd "$tree"

# plant: writes a small tree in which every rule is kept.
plant() {
  rm -rf -- *
  mkdir -p common/base common/memory common/messages common/cuda gpt2 data lessons/01_one
  printf '#pragma once\n/// @file\n/// Not about attention.\n' >common/base/sum.hpp
  printf '#include "common/cuda/devices.hpp"\n' >common/messages/group.cpp
  printf '#pragma once\n/// @file\n#include "common/base/sum.hpp"\n' >data/corpus.hpp
  printf '#pragma once\n/// @file\n#include "data/corpus.hpp"\n/// No rank, no MPI.\n' >gpt2/model.hpp
  printf '# One\n' >lessons/01_one/README.md
  {
    printf '// Lesson 01: one\n'
    printf '// %s: x\n' 'Builds on' 'New idea' Memory Traffic Paper 'Sample runs' Expect
    printf '#include "data/corpus.hpp"\nint main() {}  // exact\n'
  } >lessons/01_one/01_one.cpp
}

# finds TEXT: the check must fail, with this text.
finds() {
  local status=0 output
  output=$("$check_tree" "$tree") || status=$?
  if ((status != 1)) || ! grep -qF -- "$1" <<<"$output"; then
    echo "not found: $1; status $status:"
    echo "$output"
    exit 1
  fi
  plant
}

plant
printf '#include "lessons/01_one/x.hpp"\n#include "lessons/parallel/zero/x.hpp"\n' >>lessons/01_one/01_one.cpp
"$check_tree" "$tree" && plant
echo '#include "gpt2/model.hpp"' >>common/base/sum.hpp; finds 'common/base/sum.hpp:4:'
echo '#include "gpt2/model.hpp"' >>data/corpus.hpp; finds 'data/corpus.hpp:4:'
echo 'auto x = std::views::iota(1);' >>gpt2/model.hpp; finds 'gpt2/model.hpp:5:'
echo '#include "lessons/01_one/x.hpp"' >>gpt2/model.hpp; finds 'gpt2/model.hpp:5:'
echo '#include "common/memory/tensor.hpp"' >>common/base/sum.hpp; finds 'common/base includes nothing above it'
echo '#include "common/collectives/ring.hpp"' >>common/messages/group.cpp; finds 'common/messages includes nothing above it'
echo '#include "common/cuda/cuda.hpp"' >>common/messages/group.cpp; finds 'common/messages/group.cpp:2: GPUs are reached'
echo '#include "common/collectives/ring.hpp"' >common/cuda/nccl.cpp; finds 'GPUs know no collectives'
echo '#include "lessons/01_one/01_one.cpp"' >gpt2/model.cpp; finds 'a source file is not included'
mkdir lessons/frame && echo '#include "lessons/01_one/x.hpp"' >lessons/frame/run.cpp; finds 'lessons/frame/run.cpp:1:'
mkdir lessons/frame && echo '#include "lessons/parallel/zero/x.hpp"' >lessons/frame/run.cpp; finds 'lessons/frame/run.cpp:1:'
mkdir -p lessons/parallel/zero && echo '#include "lessons/01_one/x.hpp"' >lessons/parallel/zero/x.cpp; finds 'lessons/parallel includes no lesson'
echo '#include "lessons/02_two/x.hpp"' >>lessons/01_one/01_one.cpp; finds 'lessons/01_one/01_one.cpp:11: a lesson includes no lesson'
echo '#include "sum.hpp"' >common/base/sum.cpp; finds 'written from the root'
echo 'int rank = 0;' >gpt2/model.cpp; finds 'gpt2/model.cpp:1:'
echo 'MPI_Barrier(MPI_COMM_WORLD);' >data/loader.cpp; finds 'data/loader.cpp:1:'
echo '#include "common/program/session.hpp"' >gpt2/model.cpp; finds 'gpt2/model.cpp:1:'
echo 'struct Attention;' >common/base/sum.cpp; finds 'common/base/sum.cpp:1:'
echo 'text += json.dump(2);' >data/loader.cpp; finds 'data/loader.cpp:1: JSON is written by json_text()'
for call in 'std::fputs(text, stderr);' 'fmt::print("{}", text);' 'std::cout << text;' 'printf("%s", text);'; do
  echo "$call" >>lessons/01_one/01_one.cpp; finds 'lessons/01_one/01_one.cpp:11: texts are printed by print_text()'
done
echo 'draw_text(stdout, name);' >gpt2/model.cpp; finds 'gpt2/model.cpp:1: only what draws'
echo 'if (arithmetic == Arithmetic::exact) {}' >>lessons/01_one/01_one.cpp; finds 'lessons/01_one/01_one.cpp:11:'
for call in 'MPI_Send(a);' 'MPI_Irecv(a);' 'MPI_Sendrecv(a);' 'MPI_Issend(a);'; do
  echo "$call" >>lessons/01_one/01_one.cpp; finds 'only lesson 00 sends messages by MPI itself'
done
mkdir lessons/00_mpi && cp lessons/01_one/README.md lessons/00_mpi
sed 's/Lesson 01/Lesson 00/' lessons/01_one/01_one.cpp >lessons/00_mpi/00_mpi.cpp && echo 'MPI_Send(a);' >>lessons/00_mpi/00_mpi.cpp
"$check_tree" "$tree" && plant
mkdir -p lessons/parallel/zero && echo 'Tensor attention;' >lessons/parallel/zero/fsdp_units.cpp; finds 'sharding does not know the model'
mkdir -p scripts/check && touch scripts/check/words.sh scripts/setup.sh scripts/rankwise && "$check_tree" "$tree" && touch scripts/words.sh
finds 'scripts/words.sh: on top of scripts/ stands what users type'
sed -i 1d common/base/sum.hpp; finds 'common/base/sum.hpp: has no #pragma once'
sed -i /@file/d common/base/sum.hpp; finds 'common/base/sum.hpp: has no comment'
rm lessons/01_one/README.md; finds 'has no README.md'
sed -i 1d lessons/01_one/01_one.cpp; finds 'does not begin with'
sed -i '/Traffic/d' lessons/01_one/01_one.cpp; finds "'// Traffic:'"
mv lessons/01_one/01_one.cpp lessons/01_one/main.cpp; finds 'has no program'
