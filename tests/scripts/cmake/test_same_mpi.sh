#!/usr/bin/env bash
# An HDF5 that is built for another MPI library than the programs is refused when configuring; one without MPI is not. A folder in
# which CMake itself fails is refused too.
#
# The check sees stand-ins for libraries; where MPICH is installed beside Open MPI, the whole configuration is tried too.
set -uo pipefail
source_folder=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
wrong=0

# run COMMAND...: leaves the status in $status (0, or 1 for any other), what was said in a file.
run() {
  ran="$*"
  "$@" >"$scratch/said" 2>&1
  status=$(($? != 0))
}

# said STATUS PATTERN: how the command ended, and what one of its lines matches.
said() {
  if [ "$status" != "$1" ] || ! grep -q -- "$2" "$scratch/said"; then
    echo "FAILED: $ran: status $status instead of $1, or nothing matches '$2'"
    sed 's/^/    /' "$scratch/said"
    wrong=1
  fi
}

# check MPI HDF5: the check alone.
cat >"$scratch/check.cmake" <<END
include($source_folder/scripts/cmake/same_mpi.cmake)
rankwise_check_same_mpi("\${MPI}" "\${HDF5}")
message("accepted")
END
check() { run cmake -DMPI="$1" -DHDF5="$2" -P "$scratch/check.cmake"; }

printf 'MPI_Init\0ompi_mpi_comm_world\0' >"$scratch/libmpi.so"
printf 'MPI_Init\0MPIR_Err\0' >"$scratch/libmpich.so"
printf 'H5Fopen\0ompi_mpi_comm_world\0' >"$scratch/libhdf5_openmpi.so"
printf 'H5Fopen\0MPI_Init\0' >"$scratch/libhdf5_mpich.so"
printf 'H5Fopen\0H5FD_MPIO_COLLECTIVE_IO\0' >"$scratch/libhdf5_serial.so"
printf 'ompi_mpi_comm_world\0' >"$scratch/libz.so"  # not HDF5's own
cd "$scratch" || exit 1
check "$scratch/libmpi.so" "$scratch/libhdf5_openmpi.so;$scratch/libz.so;m"
said 0 '^accepted$'
check "$scratch/libmpich.so" "$scratch/libhdf5_mpich.so;$scratch/libz.so"
said 0 '^accepted$'
check "$scratch/libmpi.so" "$scratch/libhdf5_mpich.so;$scratch/libz.so"
said 1 'HDF5: built for another MPI (.*libhdf5_mpich.so)'
check "$scratch/libmpich.so" "$scratch/libhdf5_openmpi.so"
said 1 'HDF5: built for Open MPI (.*libhdf5_openmpi.so)'
for mpi in libmpi libmpich; do
  check "$scratch/$mpi.so" "$scratch/libhdf5_serial.so;$scratch/libz.so"
  said 0 '^accepted$'
done
check "" "$scratch/libhdf5_openmpi.so"
said 0 '^accepted$'
check "$scratch/libmpich.so" ""
said 0 '^accepted$'

# The same where HDF5 is a target that names another one, as its own package does it.
mkdir target
cat >target/CMakeLists.txt <<END
cmake_minimum_required(VERSION 3.22)
project(target LANGUAGES NONE)
include($source_folder/scripts/cmake/same_mpi.cmake)
add_library(hdf5-shared SHARED IMPORTED)
set_target_properties(hdf5-shared PROPERTIES IMPORTED_LOCATION_RELEASE \${HDF5} IMPORTED_CONFIGURATIONS RELEASE)
add_library(hdf5::hdf5 INTERFACE IMPORTED)
target_link_libraries(hdf5::hdf5 INTERFACE hdf5-shared)
rankwise_check_same_mpi($scratch/libmpi.so hdf5::hdf5)
message("accepted")
END
run cmake -S target -B target/build -DHDF5="$scratch/libhdf5_mpich.so"
said 1 'HDF5: built for another MPI (.*libhdf5_mpich.so)'
run cmake -S target -B target/build -DHDF5="$scratch/libhdf5_openmpi.so"
said 0 '^accepted$'

for letter in '[' ']' ';' '"'; do
  mkdir "a${letter}b"
  cp "$source_folder/CMakeLists.txt" "a${letter}b"
  run cmake -S "a${letter}b" -B "a${letter}b/build"
  said 1 'CMake cannot build in a folder'
done

if command -v h5pcc.mpich && command -v mpicc.mpich && command -v h5pcc.openmpi && command -v mpicc.openmpi; then
  configure() {
    rm -rf "$scratch/build"
    run cmake -S "$source_folder" -B "$scratch/build" -DRANKWISE_CUDA=off -DRANKWISE_TESTS=OFF \
      -DMPI_C_COMPILER="mpicc.$1" -DHDF5_C_COMPILER_EXECUTABLE="$(command -v "h5pcc.$2")"
  }
  configure openmpi openmpi
  said 0 'Configuring done'
  configure mpich mpich
  said 0 'Configuring done'
  configure mpich openmpi
  said 1 'HDF5: built for Open MPI'
  configure openmpi mpich
  said 1 'HDF5: built for another MPI'
else
  echo "skipped: MPICH and its HDF5 are not installed beside Open MPI"
fi

[ "$wrong" = 0 ] && echo "programs and HDF5 have one MPI library"
exit "$wrong"
