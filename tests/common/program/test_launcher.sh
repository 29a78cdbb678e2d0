#!/usr/bin/env bash
# N processes that are not one job end with one message; a single process runs as a job of one rank.
#
#   tests/common/program/test_launcher.sh FAIL             (tests/programs/fail.cpp, built)
#
# The variables of launchers are set by hand. Where MPICH's launcher is installed beside Open MPI, it is tried too.
set -uo pipefail
fail=$1
output=$(mktemp -d)
trap 'rm -r "$output"' EXIT
wrong=0

complain() {
  echo "FAILED: $ran: $1"
  sed 's/^/    out: /' "$output/out"
  sed 's/^/    err: /' "$output/err"
  wrong=1
}

# run VARIABLE=VALUE... [COMMAND...]: leaves the status in $status, the streams in $output. @PID in a value stands for the
# process's own number.
run() {
  ran="$*"
  # shellcheck disable=SC2016  # the inner shell expands it
  timeout 60 bash -c 'exec env "${@//@PID/$$}"' run "$@" >"$output/out" 2>"$output/err"
  status=$?
}

# refused SAYS_SO VARIABLE: status 2, no run, and the message if this process is the one that speaks.
refused() {
  [ "$status" = 2 ] || complain "status $status instead of 2"
  grep -q runs "$output/out" && complain "it ran"
  [ "$(grep -c "^error: 4 processes were started ($2), but each of them forms a job of one rank" "$output/err")" = "$1" ] ||
    complain "not $1 messages"
  [ "$(grep -c "If each process is meant to be a separate run: env -u $2 PROGRAM" "$output/err")" = "$1" ] ||
    complain "not $1 remedies"
}

runs() {
  [ "$status" = 0 ] || complain "status $status instead of 0"
  grep -q '^rank 0 runs$' "$output/out" || complain "it did not run"
}

# ---- Processes that a launcher of another library started ---------------------------------------------------------------

own=(OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_RANK) other=(PMI_SIZE PMI_RANK)
if ldd "$fail" | grep -q libmpich; then
  own=(PMI_SIZE PMI_RANK) other=(OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_RANK)
fi

run "${other[0]}=4" "${other[1]}=1" "$fail"
refused 1 "${other[0]}"
run "${other[0]}=4" "${other[1]}=1" "$fail" --help
refused 1 "${other[0]}"
run "${other[0]}=4" "${other[1]}=3" "$fail"
refused 0 "${other[0]}"
run MPI_LOCALNRANKS=4 MPI_LOCALRANKID=1 "$fail"
refused 1 MPI_LOCALNRANKS
run SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=1 "$fail"
refused 1 SLURM_STEP_NUM_TASKS
run SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 SLURM_TASK_PID=@PID "$fail"
refused 0 SLURM_STEP_NUM_TASKS

# ---- One rank that is meant ---------------------------------------------------------------------------------------------

run "$fail"
runs
run "${other[0]}=1" "${other[1]}=0" "$fail"
runs
run "${other[0]}=4x" "$fail"
runs
# A batch script's own process, whatever is allocated; and a shell inside of a step.
run SLURM_NTASKS=4 SLURM_NPROCS=4 SLURM_PROCID=0 SLURM_TASK_PID=@PID "$fail"
runs
run SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 SLURM_TASK_PID=@PID "$fail"
runs
run SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 SLURM_TASK_PID=1 "$fail"
runs
# Its own launcher with one process, whose daemon another launcher started.
run "${own[0]}=1" "${own[1]}=0" "${other[0]}=4" SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=1 "$fail"
runs

# ---- The launcher itself ------------------------------------------------------------------------------------------------

if [ "${own[0]}" = OMPI_COMM_WORLD_SIZE ] && command -v mpirun.mpich >/dev/null; then
  run mpirun.mpich -np 4 "$fail"
  refused 1 PMI_SIZE
  run mpirun.mpich -np 1 "$fail"
  runs
else
  echo "skipped: no launcher of another MPI library is here"
fi

[ "$wrong" = 0 ] && echo "lonely ranks are refused"
exit "$wrong"
