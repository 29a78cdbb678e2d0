#!/usr/bin/env bash
# mpi_environment.sh: more ranks than cores start with a plain mpirun, in every shell; it knows the library, and keeps what is set.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")"

folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
for shell in sh bash zsh; do
  command -v "$shell" >/dev/null || continue
  started=$(env -i PATH="$PATH" HOME="${HOME:-/}" "$shell" -c '. ../../scripts/mpi_environment.sh && mpirun -np 6 echo rank' | grep -c rank || true)
  [[ $started == 6 ]] || { echo "$shell: $started of 6 ranks started"; exit 1; }
done

# Nor does it need that the user has a name and a home.
if [[ $(id -u) == 0 ]] && command -v setpriv >/dev/null; then
  chown 12345 "$folder"
  here=$(<../../scripts/mpi_environment.sh)  # that user may not be let into this folder
  started=$(cd /; setpriv --reuid=12345 --regid=12345 --clear-groups env -i PATH="$PATH" TMPDIR="$folder" bash -c "$here
    mpirun -np 2 echo rank" | grep -c rank || true)
  [[ $started == 2 ]] || { echo "without a name and HOME $started of 2 ranks started"; exit 1; }
fi

unset OMP_NUM_THREADS
source ../../scripts/mpi_environment.sh
[[ $OMP_NUM_THREADS == 1 ]] || { echo "OMP_NUM_THREADS is $OMP_NUM_THREADS unless set, not 1"; exit 1; }
OMP_NUM_THREADS=3
source ../../scripts/mpi_environment.sh
[[ $OMP_NUM_THREADS == 3 ]] || { echo "OMP_NUM_THREADS=3 became $OMP_NUM_THREADS"; exit 1; }

# set_for TEXT NAMES: what the variables whose names match NAMES are set to where `mpirun --version` prints TEXT.
set_for() {
  printf '#!/bin/sh\necho "%s"\n' "$1" >"$folder/mpirun"
  chmod +x "$folder/mpirun"
  env -i PATH="$folder:$PATH" OMPI_MCA_smsc=mine bash -c 'source ../../scripts/mpi_environment.sh; env' | grep -E "^($2)=" | sort | paste -sd' ' -
}
expect() { [[ $1 == "$2" ]] || { echo "$3: $1, not $2"; exit 1; }; }
names='RANKWISE_MPI|OMPI_ALLOW_RUN_AS_ROOT|OMPI_MCA_smsc|I_MPI_.*'
expect "$(set_for 'mpirun (Open MPI) 5.0.7' "$names")" 'OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_MCA_smsc=mine RANKWISE_MPI=openmpi' 'Open MPI'
expect "$(set_for 'HYDRA build details:' "$names")" 'OMPI_MCA_smsc=mine RANKWISE_MPI=mpich' MPICH
expect "$(set_for 'Intel(R) MPI Library for Linux* OS' "$names")" 'I_MPI_PIN=off OMPI_MCA_smsc=mine RANKWISE_MPI=intel' Intel
expect "$(set_for 'something new' "$names")" 'OMPI_MCA_smsc=mine RANKWISE_MPI=unknown' 'another launcher'

if [[ $RANKWISE_MPI == openmpi ]]; then
  card=$(find /sys/class/infiniband /sys/class/cxi -maxdepth 0 2>/dev/null || true)
  # shellcheck disable=SC2016  # the inner shell expands it
  chosen=$(env -u OMPI_MCA_pml bash -c 'source ../../scripts/mpi_environment.sh; echo "${OMPI_MCA_pml:-}"')
  [[ -n $card || $chosen == ob1 ]] || { echo "without a cluster's network card OMPI_MCA_pml is $chosen, not ob1"; exit 1; }
fi
