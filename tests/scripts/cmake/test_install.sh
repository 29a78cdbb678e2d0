#!/usr/bin/env bash
# What is installed works without the repository: a lesson runs, and the example of docs/install.md builds beside it and has the
# digest of the lesson that it began as.
#
#   test_install.sh BUILD
set -euo pipefail
build=$1
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
there=$scratch/there

fail() { echo "FAILED: $1"; exit 1; }
# digest COMMAND...: that of a short run in exact arithmetic.
digest() {
  "$@" --steps=2 --layers=1 --arithmetic=exact --report="$scratch/report.json" >"$scratch/said" 2>&1 || { cat "$scratch/said"; fail "$*"; }
  python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["digest"])' "$scratch/report.json"
}

cmake -S . -B "$scratch/without_tests" -DRANKWISE_TESTS=OFF -DRANKWISE_CUDA=off >"$scratch/said" 2>&1 ||
  { tail "$scratch/said"; fail "without tests nothing can be configured"; }
cmake --install "$build" --prefix "$there" >"$scratch/installed"
expected=$(digest mpirun -np 2 "$build/lessons/03_ddp")
[[ $(digest mpirun -np 2 "$there/bin/rankwise-03_ddp") == "$expected" ]] || fail "the installed lesson has another digest"
[[ -f $there/share/rankwise/lessons/01_single_device/shakespeare.conf ]] || fail "no configurations are installed"
[[ -f $there/share/doc/rankwise/lessons/03_ddp/README.md ]] || fail "no pages are installed"

mkdir "$scratch/my_lesson"
sed 's/\*name = "03_ddp"/*name = "my_lesson"/' lessons/03_ddp/03_ddp.cpp >"$scratch/my_lesson/my_lesson.cpp"
# shellcheck disable=SC2016  # a pattern
sed -n '/^```cmake$/,/^```$/{//!p}' docs/install.md >"$scratch/my_lesson/CMakeLists.txt"
cp tests/programs/training_loop.cpp "$scratch/my_lesson"
printf 'add_executable(loop training_loop.cpp)\ntarget_link_libraries(loop PRIVATE Rankwise::gpt2)\n' >>"$scratch/my_lesson/CMakeLists.txt"
if ! { cmake -S "$scratch/my_lesson" -B "$scratch/mine" -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$there" \
         -DCMAKE_EXPORT_COMPILE_COMMANDS=ON && cmake --build "$scratch/mine"; } >"$scratch/said" 2>&1; then
  tail -n 40 "$scratch/said"
  fail "the example does not build"
fi
! grep -F -e "-I$PWD" "$scratch/mine/compile_commands.json" || fail "the example includes headers of the repository"
[[ $(digest mpirun -np 2 "$scratch/mine/my_lesson") == "$expected" ]] || fail "a lesson of one's own has another digest"
[[ $(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["lesson"])' "$scratch/report.json") == my_lesson ]] ||
  fail "the report does not name it"
"$scratch/mine/loop" 1 >/dev/null || fail "a program without the frame does not run"

sed 's/Rankwise 0\.1/Rankwise 0.2/' "$scratch/my_lesson/CMakeLists.txt" >"$scratch/other" && mv "$scratch/other" "$scratch/my_lesson/CMakeLists.txt"
! cmake -S "$scratch/my_lesson" -B "$scratch/mine" -DCMAKE_PREFIX_PATH="$there" >"$scratch/said" 2>&1 || fail "another version is accepted"
grep -q 'version: 0\.1' "$scratch/said" || fail "the refusal of another version does not name the one that is there"
echo "Installed, and built beside it."
