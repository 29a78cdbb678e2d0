#!/usr/bin/env bash
# Looks whether this machine has all that Rankwise is built and run with, and says what to do if not:  scripts/doctor.sh
#
# One line a finding: "ok", "note" (it works, but is worth knowing) or "BAD" with what to do in the next line. Nothing is
# installed or changed. Status 1: something is bad.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/words.sh"
takes 0
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.."
bad=0

ok() { printf 'ok    %-10s %s\n' "$1" "$(shown "$2")"; }
note() { printf 'note  %-10s %s\n                 %s\n' "$1" "$(shown "$2")" "$(shown "$3")"; }
bad() { printf 'BAD   %-10s %s\n                 %s\n' "$1" "$(shown "$2")" "$(shown "$3")"; bad=1; }
first_line() { "$@" 2>/dev/null | sed -n 1p; }

if ! folder=$(mktemp -d 2>&1) || [[ $folder == *[\'\"]* ]]; then
  bad TMPDIR "no temporary files can be made, or CMake cannot use them: ${folder#mktemp: }" \
    "Name a folder that you can write to, without quotes in its name: export TMPDIR=/tmp"
  if [[ -d $folder ]]; then rmdir "$folder"; fi
  export TMPDIR=/tmp
  folder=$(mktemp -d)
fi
trap 'rm -rf "$folder"' EXIT

# MPICH's launcher says in its second line which one it is.
mpi_name() { mpirun --version 2>/dev/null | sed -n '1{/HYDRA/!p}; 2s/.*Version: */MPICH /p'; }

check_tools() {
  local tool missing=()
  for tool in cmake ninja git python3 make; do command -v "$tool" >/dev/null || missing+=("$tool"); done
  if ((${#missing[@]})); then
    bad tools "not on the path: ${missing[*]}" "scripts/setup.sh installs them; scripts/setup.sh --how says how to do it by hand."
  else
    ok tools "$(first_line cmake --version), ninja $(ninja --version), $(python3 --version)"
  fi
}

check_compiler() {
  local compiler=${CXX:-c++}
  cat >"$folder/twenty.cpp" <<'CODE'
#include <concepts>
#include <source_location>
#include <span>
template <std::integral T> T first(std::span<T> of) { return of[0]; }
int main() { int zero[1] = {}; return std::source_location::current().line() == 0 ? 1 : first(std::span<int>(zero)); }
CODE
  if ! command -v "$compiler" >/dev/null; then
    bad compiler "$compiler is not on the path" "Install g++ 11 or clang++ 14, or newer; or name yours: export CXX=..."
  elif ! "$compiler" -std=c++20 -fopenmp "$folder/twenty.cpp" -o "$folder/twenty" >"$folder/log" 2>&1; then
    bad compiler "$(first_line "$compiler" --version) cannot compile C++20 with OpenMP: $(sed -n 's/.*error: //p' "$folder/log" | sed -n 1p)" \
      "Use g++ 11 or clang++ 14 (with libomp), or newer: export CXX=..."
  else
    ok compiler "$(first_line "$compiler" --version)"
  fi
}

# Two ranks that send each other a number: compiler, launcher and network of MPI fit.
check_mpi() {
  cat >"$folder/two.c" <<'CODE'
#include <mpi.h>
int main(int argc, char **argv) {
  int rank, ranks, sent, received = -1;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks != 2) return 3;
  sent = rank;
  MPI_Sendrecv(&sent, 1, MPI_INT, 1 - rank, 0, &received, 1, MPI_INT, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  MPI_Finalize();
  return received == 1 - rank ? 0 : 4;
}
CODE
  local status=0 tool
  for tool in mpicc mpirun; do
    if ! command -v $tool >/dev/null; then
      bad MPI "$tool is not on the path" "scripts/setup.sh installs Open MPI; on a cluster load its module, as: module load openmpi"
      return
    fi
  done
  if ! mpicc "$folder/two.c" -o "$folder/two" >"$folder/log" 2>&1; then
    bad MPI "mpicc cannot compile a program: $(grep -v '^ ' "$folder/log" | tail -n 1)" "Is it whole? command -v mpicc: $(command -v mpicc)"
    return
  fi
  source scripts/mpi_environment.sh
  timeout 60 mpirun -np 2 "$folder/two" >"$folder/log" 2>&1 </dev/null || status=$?
  case $status in
    0) ok MPI "$(mpi_name); two ranks have exchanged a message" ;;
    3) bad MPI "mpirun ($(command -v mpirun)) started two jobs of one rank instead of two ranks" \
        "It belongs to another MPI library than mpicc ($(command -v mpicc)). Put the folder of one of them first on the path." ;;
    124) bad MPI "two ranks did not end within 60 s" "Is the network of this machine set up? On one machine: export OMPI_MCA_btl=self,vader" ;;
    *) bad MPI "two ranks ended with status $status: $(grep -v '^[-[:space:]]*$' "$folder/log" | sed -n 1p)" \
        "mpirun -np 2 hostname shows whether it can start any program here." ;;
  esac
}

# CMake is who looks for libraries, and it names all that are missing in one sentence.
check_libraries() {
  command -v cmake >/dev/null && command -v ninja >/dev/null || return 0
  if cmake -G Ninja -S . -B "$folder/build" -DRANKWISE_CUDA=off >"$folder/log" 2>&1; then
    ok libraries "all found: MPI, HDF5, OpenMP, OpenSSL, fmt, nlohmann-json, xxHash, PCRE2, NLopt, Boost, Catch2, a matrix library"
  else
    bad libraries "$(sed -n '/^CMake Error/,/^Call Stack/{/^CMake Error/d;/^Call Stack/d;p}' "$folder/log" | tr -s ' \n' ' ' | sed 's/^ //')" \
      "Without the tests: cmake --preset release -DRANKWISE_TESTS=OFF"
  fi
}

check_machine() {
  local cores available_MB owner shared_MB
  cores=$(getconf _NPROCESSORS_ONLN)
  if read -r available_MB owner < <(python3 scripts/lib/host_memory.py); then
    if ((available_MB < 1000 * cores)); then
      note memory "$available_MB MiB are free in $owner, $cores cores" "A compiler takes up to 1 GB; with less, build with fewer of them: cmake --build build -j 1"
    else
      ok memory "$available_MB MiB are free in $owner, $cores cores"
    fi
  fi
  if [[ -d /dev/shm ]]; then
    shared_MB=$(df -Pm /dev/shm | awk 'END { print $4 }')
    if ((shared_MB < 256)); then
      note /dev/shm "$shared_MB MiB are free; ranks of one machine exchange their messages there" "In a container: docker run --shm-size=1g; else remove what is left there."
    else
      ok /dev/shm "$shared_MB MiB are free"
    fi
  fi
  if ((cores < 4)); then
    note cores "four ranks share $cores cores" "Their times say little about a cluster: --link=20us,1GB/s counts the time of one."
  fi
}

check_gpu() {
  local nvcc=nvcc
  command -v nvcc >/dev/null || nvcc=/usr/local/cuda/bin/nvcc
  if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >"$folder/log" 2>/dev/null; then
    note GPU "none here; lessons run on the processor" "make emulated runs the code for GPUs without one."
  elif ! command -v "$nvcc" >/dev/null; then
    note GPU "$(sed -n 1p "$folder/log"), but no nvcc" "Install the CUDA toolkit, 12.4 or newer, with cuBLAS and NCCL, and build again."
  else
    ok GPU "$(wc -l <"$folder/log") of them; $("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/CUDA \1/p')"
  fi
}

# What a scheduler or another launcher has left in this shell, and what the kernel forbids.
check_surroundings() {
  local name left=()
  for name in OMPI_COMM_WORLD_SIZE PMI_SIZE PMIX_RANK MPI_LOCALNRANKS SLURM_STEP_NUM_TASKS; do
    if [[ -n ${!name:-} ]]; then left+=("$name=${!name}"); fi
  done
  if ((${#left[@]})); then
    bad launcher "this shell belongs to a job of another launcher: ${left[*]}" "Start from a shell of your own, or: unset ${left[*]%%=*}"
  else
    ok launcher "no other launcher has started this shell"
  fi
  if [[ $(mpi_name) == *'(Open MPI) 4'* ]] && (($(uname -n | wc -c) > 57)); then
    bad host "its name has more than 56 letters, with which Open MPI 4 aborts" "Give it a shorter one: sudo hostname NAME, or docker run --hostname NAME"
  fi
  if grep -q unreachable <<<"$( (LC_ALL=C; : </dev/tcp/127.0.0.1/1) 2>&1)"; then
    bad network "the loopback interface is off, without which MPI starts no ranks" "Switch it on: sudo ip link set lo up"
  fi
  if ! id -un >/dev/null 2>&1; then
    note user "number $(id -u) has no name here" "Open MPI 4 needs HOME then; scripts/mpi_environment.sh sets it to /tmp unless it is set."
  fi
  # libgomp binds a rank's threads as if there were no other rank.
  for name in OMP_PROC_BIND OMP_PLACES GOMP_CPU_AFFINITY KMP_AFFINITY; do
    if [[ ${!name:-false} =~ ^(false|FALSE|disabled|none)$ ]]; then continue; fi
    note cores "$name=${!name} binds the threads of each rank to cores as if it were alone; unless the launcher binds ranks, all of them get the same cores" \
      "unset $name, or see docs/clusters.md for how launchers bind."
  done
  if ! grep -q '^Seccomp:[[:space:]]*0' /proc/self/status 2>/dev/null || grep -q '^[^0]' /proc/sys/kernel/yama/ptrace_scope 2>/dev/null; then
    note kernel "ranks may not read each other's memory (seccomp or ptrace_scope)" "Large messages are copied once more; scripts/mpi_environment.sh tells MPI."
  else
    ok kernel "ranks may read each other's memory"
  fi
}

check_surroundings
check_tools
check_compiler
check_mpi
check_libraries
check_machine
check_gpu
if ((bad)); then echo "Something is missing; what to do stands above."; else echo "All is there: scripts/rankwise run 01"; fi
exit "$bad"
