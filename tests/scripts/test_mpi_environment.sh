#!/usr/bin/env bash
# mpi_environment.sh: more ranks than cores start with a plain mpirun, in every shell; a variable that is set is kept.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

for shell in sh bash zsh; do
  command -v "$shell" >/dev/null || continue
  started=$(env -i PATH="$PATH" HOME="${HOME:-/}" "$shell" -c '. ../../scripts/mpi_environment.sh && mpirun -np 6 echo rank' | grep -c rank || true)
  [[ $started == 6 ]] || { echo "$shell: $started of 6 ranks started"; exit 1; }
done

unset OMP_NUM_THREADS
source ../../scripts/mpi_environment.sh
[[ $OMP_NUM_THREADS == 1 ]] || { echo "OMP_NUM_THREADS is $OMP_NUM_THREADS unless set, not 1"; exit 1; }
OMP_NUM_THREADS=3
source ../../scripts/mpi_environment.sh
[[ $OMP_NUM_THREADS == 3 ]] || { echo "OMP_NUM_THREADS=3 became $OMP_NUM_THREADS"; exit 1; }

unset OMPI_MCA_pml
source ../../scripts/mpi_environment.sh
card=$(find /sys/class/infiniband /sys/class/cxi -maxdepth 0 2>/dev/null || true)
[[ -n $card || $OMPI_MCA_pml == ob1 ]] || { echo "without a cluster's network card OMPI_MCA_pml is $OMPI_MCA_pml, not ob1"; exit 1; }
OMPI_MCA_pml=^v
source ../../scripts/mpi_environment.sh
[[ $OMPI_MCA_pml == ^v ]] || { echo "OMPI_MCA_pml=^v became $OMPI_MCA_pml"; exit 1; }
