# shellcheck shell=sh
# What MPI needs on laptops and in containers. Once a shell:
#
#   source scripts/mpi_environment.sh
#
# After it a plain `mpirun -np 4 build/lessons/...` works, as root and with more ranks than cores too. A variable that is set
# already is kept. RANKWISE_MPI says which MPI library the mpirun on the path belongs to: openmpi, mpich (and what is derived
# from it), intel, or unknown.

case "$(mpirun --version 2>/dev/null)" in
  *'Open MPI'*) RANKWISE_MPI=openmpi ;;
  *'Intel(R) MPI'*) RANKWISE_MPI=intel ;;
  *HYDRA*) RANKWISE_MPI=mpich ;;
  *) RANKWISE_MPI=unknown ;;
esac
export RANKWISE_MPI

# A user without a name (docker run -u 12345) has no home but the one in HOME, and without it Open MPI 4 crashes.
if [ -z "${HOME:-}" ] && ! id -un >/dev/null 2>&1; then export HOME=/tmp; fi

if [ "$RANKWISE_MPI" = openmpi ]; then
  # Open MPI 4 reads OMPI_MCA_*; in Open MPI 5 the launcher reads PRTE_MCA_*.

  # Root may start jobs: a container often has no other user.
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1

  # More ranks than cores are welcome.
  export OMPI_MCA_rmaps_base_oversubscribe="${OMPI_MCA_rmaps_base_oversubscribe:-1}"
  export PRTE_MCA_rmaps_default_mapping_policy="${PRTE_MCA_rmaps_default_mapping_policy:-:oversubscribe}"

  # Ranks are not tied to cores: two that share one, or two jobs side by side, would otherwise sit on the same core.
  export OMPI_MCA_hwloc_base_binding_policy="${OMPI_MCA_hwloc_base_binding_policy:-none}"
  export PRTE_MCA_hwloc_default_binding_policy="${PRTE_MCA_hwloc_default_binding_policy:-none}"

  # On one machine a rank may read a message straight from another's memory, if the kernel lets it: neither a filter of
  # system calls (containers have one) nor Yama (which guards processes from each other) stands in between. Where that is
  # not sure, messages go through shared memory: one more copy, the same bytes.
  if ! grep -q '^Seccomp:[[:space:]]*0' /proc/self/status 2>/dev/null ||
      grep -q '^[^0]' /proc/sys/kernel/yama/ptrace_scope 2>/dev/null; then
    export OMPI_MCA_btl_vader_single_copy_mechanism="${OMPI_MCA_btl_vader_single_copy_mechanism:-none}"
    export OMPI_MCA_smsc="${OMPI_MCA_smsc:-^cma}"
  fi

  # Without ssh (an empty container) Open MPI would refuse to start even ranks on this machine.
  if ! command -v ssh >/dev/null 2>&1; then
    export OMPI_MCA_plm_rsh_agent="${OMPI_MCA_plm_rsh_agent:-false}"
    export PRTE_MCA_plm_ssh_agent="${PRTE_MCA_plm_ssh_agent:-false}"
  fi

  # Open MPI 5 asks the kernel for routes between ranks, and prints an error when both are on one machine. It can compare their
  # addresses instead.
  export OMPI_MCA_reachable="${OMPI_MCA_reachable:-weighted}"

  # Without a network card of a cluster messages go by ob1, that is through shared memory or TCP. To look for such cards all
  # the same, with UCX and libfabric, would take a fifth of a second at each start.
  if [ ! -e /sys/class/infiniband ] && [ ! -e /sys/class/cxi ]; then
    export OMPI_MCA_pml="${OMPI_MCA_pml:-ob1}" OMPI_MCA_osc="${OMPI_MCA_osc:-^ucx}"
  fi
fi

# Intel's launcher ties ranks to cores too. MPICH's does not, and both start more ranks than cores, as any user.
if [ "$RANKWISE_MPI" = intel ]; then export I_MPI_PIN="${I_MPI_PIN:-off}"; fi

# Looking for cores, Open MPI also asks ten X displays for graphics cards. Where "localhost" has no entry in /etc/hosts,
# each question is one for the name server and may take five seconds. Nothing here needs the answer.
export HWLOC_COMPONENTS="${HWLOC_COMPONENTS:--gl}"

# The long name of macOS's temporary folder does not fit into the name of a socket.
if [ "$(uname -s)" = Darwin ]; then export TMPDIR=/tmp; fi

# One thread a rank, unless asked.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
