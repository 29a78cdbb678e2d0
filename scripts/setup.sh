#!/usr/bin/env bash
# Installs what building and running Rankwise needs, if it is not there yet.
#
#   scripts/setup.sh                    what builds and runs
#   scripts/setup.sh --documentation    also what makes the documentation
#   scripts/setup.sh --grading          also what the code of others runs in when it is graded (see SECURITY.md)
#   scripts/setup.sh --how              installs nothing, says what to install by hand
#
# On Debian and Ubuntu, as root or with sudo, missing packages are installed. Everywhere else, and for users who may not
# install packages, the script only looks whether the tools are on the path (from modules, Homebrew, ...); if one is
# not, it says what to install and ends with status 2. When nothing is missing nothing is done.
set -euo pipefail

mpi=(libopenmpi-dev openmpi-bin libhdf5-openmpi-dev)
others=(g++ libc6-dev cmake ninja-build make git python3
        libdnnl-dev libopenblas-dev libfmt-dev libcli11-dev nlohmann-json3-dev libssl-dev
        libpcre2-dev libxxhash-dev catch2 libboost-context-dev)
documentation=(doxygen codespell python3-markdown-it python3-mdit-py-plugins python3-pygments python3-jinja2 libjs-katex)
grading=(bubblewrap)

packages=("${others[@]}" "${mpi[@]}")
case ${1:-} in
  --documentation) packages+=("${documentation[@]}") ;;
  --grading) packages+=("${grading[@]}") ;;
esac

# Prints the packages of Debian that are wanted and not installed. An MPI from outside /usr (a module, one's own build)
# is somebody's choice: it is not mixed with Debian's.
missing_packages() {
  local wanted installed
  wanted=$(printf '%s\n' "${packages[@]}" | sort)
  case $(command -v mpicc) in
    '' | /usr/bin/* | /bin/*) ;;
    *) wanted=$(comm -23 <(echo "$wanted") <(printf '%s\n' "${mpi[@]}" | sort)) ;;
  esac
  installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' | sed -n 's/ installed$//p' | sort -u)
  comm -23 <(echo "$wanted") <(echo "$installed")
}

# Says what to install, and how it is called elsewhere.
how_to_install() {
  cat <<TEXT
Install what Rankwise is built with, in the way of your system, and start again:

Debian, Ubuntu       sudo apt-get install --no-install-recommends
                       ${others[*]:0:7}
                       ${others[*]:7}
                       ${mpi[*]}
                       ${documentation[*]} ${grading[*]}

Fedora, RHEL         sudo dnf install gcc-c++ cmake ninja-build make git python3 openmpi-devel hdf5-openmpi-devel
                       onednn-devel openblas-devel fmt-devel cli11-devel json-devel openssl-devel pcre2-devel
                       xxhash-devel catch2-devel boost-devel doxygen
                       python3-markdown-it-py python3-mdit-py-plugins python3-pygments python3-jinja2 bubblewrap
                     module load mpi/openmpi-x86_64

macOS (Homebrew)     brew install cmake ninja open-mpi hdf5-mpi onednn openblas fmt cli11 nlohmann-json openssl pcre2
                       xxhash boost libomp doxygen
                     pip install markdown-it-py mdit-py-plugins pygments jinja2

environment modules  module load gcc cmake ninja openmpi hdf5 onednn openblas openssl python   (the names differ)
                     HDF5 must be built for MPI. Install PCRE2, xxHash, fmt, CLI11, nlohmann-json and Catch2 under a folder
                     of yours and name it: export CMAKE_PREFIX_PATH=FOLDER

GPUs need the CUDA toolkit, 12.4 or newer, with cuBLAS and NCCL (from NVIDIA, or a module) and nvcc on the path or in
/usr/local/cuda. Where they are found programs are built for them too; RANKWISE_CUDA=off leaves them out. Boost.Context serves
only the tests, which emulate a GPU.

Catch2 must be version 2. Where there is none, build without tests: cmake --preset release -DRANKWISE_TESTS=OFF
TEXT
}

# For those who cannot install packages here. Libraries are CMake's to find; it names those that it does not.
look_for_tools() {
  local tool
  for tool in c++ cmake ninja make git python3 mpicc mpirun; do
    if ! command -v "$tool" >/dev/null; then
      echo "error: $tool is not on the path, and this script cannot install it here." >&2
      how_to_install >&2
      exit 2
    fi
  done
  exit 0
}

case ${1:-} in
  '' | --documentation | --grading) ;;
  --how) how_to_install; exit 0 ;;
  *) echo "error: $0 knows --documentation, --grading and --how, not '$1'." >&2; exit 2 ;;
esac

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then look_for_tools; fi
mapfile -t missing < <(missing_packages)
if ((${#missing[@]} == 0)); then exit 0; fi

as_root=()
if (($(id -u) != 0)); then
  # A question for a password is fine on a terminal and would hang a script.
  if command -v sudo >/dev/null && { [[ -t 0 ]] || sudo -n true 2>/dev/null; }; then as_root=(sudo); else look_for_tools; fi
fi

echo "Installing with apt-get: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0)
if ! { "${apt[@]}" update && "${apt[@]}" install --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "error: apt-get could not install them; its last words stand above." >&2
  exit 1
fi
