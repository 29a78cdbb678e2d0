#!/usr/bin/env bash
# Installs what building and running Rankwise needs, if it is not there yet.
#
#   scripts/setup.sh                    what builds and runs
#   scripts/setup.sh --documentation    also what makes the documentation
#   scripts/setup.sh --grading          also what the code of others runs in when it is graded (see SECURITY.md)
#   scripts/setup.sh --how              installs nothing, says what to install by hand
#
# Missing packages are named and then installed with apt-get (Debian, Ubuntu), dnf (Fedora) or pacman (Arch), as root or with
# sudo, or with brew (macOS). Everywhere else, and for users who may not install packages, the script only looks whether the
# tools are on the path (from modules, conda, ...); if one is not, it says what to install and ends with status 2. When
# nothing is missing nothing is done. docs/platforms.md says what was tried where.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/words.sh"
takes 0 --documentation --grading --how

# Who installs, what for, and what the packages are called there.
packages() {
  cat <<'TABLE'
apt-get build          g++ libc6-dev cmake ninja-build make git python3 libdnnl-dev libopenblas-dev libfmt-dev
apt-get build          nlohmann-json3-dev libssl-dev libpcre2-dev libxxhash-dev libhdf5-dev catch2 libboost-context-dev
apt-get build          libboost-dev libnlopt-cxx-dev
apt-get mpi            libopenmpi-dev openmpi-bin
apt-get documentation  doxygen graphviz codespell python3-markdown-it python3-mdit-py-plugins python3-pygments python3-jinja2
apt-get documentation  libjs-katex python3-tomli
apt-get grading        bubblewrap python3-tomli
dnf     build          gcc-c++ cmake ninja-build make git python3 diffutils findutils onednn-devel openblas-devel fmt-devel
dnf     build          json-devel openssl-devel pcre2-devel xxhash-devel hdf5-devel catch-devel boost-devel
dnf     build          NLopt-devel
dnf     mpi            openmpi-devel
dnf     documentation  doxygen graphviz codespell python3-markdown-it-py python3-mdit-py-plugins python3-pygments python3-jinja2
dnf     grading        bubblewrap
pacman  build          gcc cmake ninja make git python diffutils onednn openblas fmt nlohmann-json openssl pcre2 xxhash
pacman  build          hdf5 catch2 boost nlopt
pacman  mpi            openmpi
pacman  documentation  doxygen graphviz codespell python-markdown-it-py python-mdit_py_plugins python-pygments python-jinja
pacman  grading        bubblewrap
brew    build          bash coreutils cmake ninja openblas fmt nlohmann-json openssl@3 pcre2 xxhash hdf5 catch2 boost libomp
brew    build          nlopt
brew    mpi            open-mpi
brew    documentation  doxygen graphviz codespell
conda   build          c-compiler cxx-compiler cmake ninja make git python onednn openblas fmt nlohmann_json openssl pcre2
conda   build          xxhash hdf5 catch2 libboost-devel nlopt
conda   mpi            openmpi
conda   documentation  doxygen graphviz codespell markdown-it-py mdit-py-plugins pygments jinja2
TABLE
}

# names_of MANAGER PART...: the packages for these parts, sorted, one a line.
names_of() {
  packages | awk -v manager="$1" -v parts=" ${*:2} " '
    $1 == manager && index(parts, " " $2 " ") { for (i = 3; i <= NF; ++i) print $i }' | sort -u
}

# Of the names that it reads, sorted, it prints those that are not installed. An HDF5 for an MPI library will do as well.
not_installed() {
  case $manager in
    apt-get) comm -23 - <(dpkg-query -W -f '${Package} ${db:Status-Status}\n' |
      sed -n 's/^libhdf5-\(openmpi\|mpich\)-dev installed$/libhdf5-dev/p; s/ installed$//p' | sort -u) ;;
    dnf) while read -r name; do rpm -q --quiet --whatprovides "$name" || echo "$name"; done ;;
    pacman) xargs pacman -T || true ;;
    brew) comm -23 - <(brew list --formula -1 | sort) ;;
  esac
}

# Says what to install, and how it is called elsewhere.
how_to_install() {
  local all=(build mpi documentation grading)
  named() { names_of "$1" "${all[@]}" | paste -sd ' ' - | fold -s -w 100 | sed 's/^/    /; s/ $//'; echo; }
  echo "Install what Rankwise is built with, in the way of your system, and start again:"
  echo
  echo "Debian, Ubuntu: sudo apt-get install --no-install-recommends"; named apt-get
  echo "Fedora: sudo dnf install, and then: module load mpi/openmpi-x86_64"; named dnf
  echo "Arch: sudo pacman -S"; named pacman
  echo "macOS: brew install, and then: export CMAKE_PREFIX_PATH=\$(brew --prefix openblas):\$(brew --prefix libomp)"; named brew
  echo "conda: conda install -c conda-forge"; named conda
  cat <<'TEXT'
Environment modules: module load gcc cmake ninja openmpi hdf5 onednn openblas openssl python   (the names differ)
    Install PCRE2, xxHash, fmt, nlohmann-json, NLopt, Boost's headers and Catch2 under a folder of yours and name it:
    export CMAKE_PREFIX_PATH=FOLDER

HDF5 may be built without MPI, or for the MPI of the programs. Catch2 may be version 2 or 3; where there is none, build without
tests: cmake --preset release -DRANKWISE_TESTS=OFF

GPUs need the CUDA toolkit, 12.4 or newer, with cuBLAS and NCCL (from NVIDIA, or a module) and nvcc on the path or in
/usr/local/cuda. On a machine with a GPU programs are built for it too; elsewhere scripts/build.sh gpu does. Of Boost the
programs need headers alone; Boost.Context serves only the tests, which emulate a GPU.
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

parts=(build)
for option in "$@"; do
  if [[ $option == --how ]]; then how_to_install; exit 0; fi
  parts+=("${option#--}")
done

# An MPI from outside /usr (a module, one's own build) is somebody's choice, and so is MPICH: neither is mixed with the system's.
case $(command -v mpicc) in
  '' | /usr/bin/* | /bin/* | /usr/lib64/openmpi/bin/*)
    if ! mpicc -show 2>/dev/null | grep -q mpich; then parts+=(mpi); fi ;;
esac

for manager in apt-get dnf pacman brew none; do
  if command -v "$manager" >/dev/null; then break; fi
done
if [[ $manager == none || $(command -v mpicc) == "${CONDA_PREFIX:-no conda}"/* ]]; then look_for_tools; fi
missing=$(names_of "$manager" "${parts[@]}" | not_installed)
if [[ -n $missing ]]; then
  as_root=(env)
  if (($(id -u) != 0)) && [[ $manager != brew ]]; then
    # A question for a password is fine on a terminal and would hang a script.
    if command -v sudo >/dev/null && { [[ -t 0 ]] || sudo -n true 2>/dev/null; }; then as_root=(sudo); else look_for_tools; fi
  fi
  case $manager in
    apt-get) install=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0 install --no-install-recommends) ;;
    dnf) install=(dnf install -y --setopt=install_weak_deps=False) ;;
    pacman) install=(pacman -S --noconfirm --needed) ;;
    brew) install=(brew install) ;;
  esac
  # shellcheck disable=SC2086 # one word a package
  echo "Installing with $manager:" $missing
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  if ! { { [[ $manager != apt-get ]] || "${as_root[@]}" apt-get -q update; } &&
    xargs "${as_root[@]}" "${install[@]}" <<<"$missing"; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "error: $manager could not install them; its last words stand above." >&2
    exit 1
  fi
fi
if ! command -v mpicc >/dev/null; then
  echo "error: MPI is installed, but mpicc is not on the path. On Fedora: module load mpi/openmpi-x86_64" >&2
  exit 2
fi
