#!/usr/bin/env bash
# Programs under Slurm: the same digest as with mpirun, on one node and on four, by srun and by mpirun inside a job; lesson
# 10's batch file as it is, and how a job that is asked to stop is queued again and resumes.
#
# The cluster is made here: a controller and four nodes on this machine. All of it lives in namespaces of its own, so no
# port, process or file is seen outside, and everything ends with the test. A node has its own hostname and shared memory.
# Ends with status 77 where that is not possible: it needs root, Slurm with PMIx (Debian: slurm-wlm) and Open MPI.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=${RANKWISE_BUILD:-$PWD/build}

skip() { echo "skipped: $1"; exit 77; }
fail() {
  echo "FAILED: $1"
  tail -n 40 "$folder"/out/*.txt "$folder"/log/* 2>/dev/null || true
  exit 1
}
wait_until() { # COMMAND...: a minute, on an idle machine
  local end=$((SECONDS + $(awk -v slowness="${RANKWISE_SLOWNESS:-1}" 'BEGIN { printf "%d", 60 * slowness }')))
  while ((SECONDS < end)); do
    if "$@"; then return 0; fi
    sleep 0.1
  done
  return 1
}

if [[ ${RANKWISE_INSIDE:-} != slurm ]]; then
  for tool in munged slurmctld slurmd srun sbatch scontrol mpirun unshare ip hostname mount; do
    command -v "$tool" >/dev/null || skip "$tool is not here (Debian packages slurm-wlm, munge, openmpi-bin, iproute2)"
  done
  (($(id -u) == 0)) || skip 'the daemons of Slurm need root'
  mpirun --version | grep -q 'Open MPI' || skip "mpirun is not Open MPI's"
  alone=(unshare --mount --uts --ipc --net --pid --fork --kill-child --mount-proc)
  "${alone[@]}" mount -t tmpfs tmpfs /run || skip 'namespaces are not to be had'
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  RANKWISE_INSIDE=slurm "${alone[@]}" "$PWD/tests/scripts/test_slurm.sh" "$folder"
  exit
fi

# ---- The cluster ------------------------------------------------------------------------------------------------------

folder=$1
export SLURM_CONF=$folder/slurm.conf
mkdir "$folder"/{state,munge,log,out} "$folder"/tmp.node{1..4}
chmod 755 "$folder" "$folder/munge"
hostname controller
ip link set lo up
ip link add wire-0 type veth peer name wire-1  # with loopback alone Slurm finds no address, and Open MPI no network
ip address add 192.168.77.1/24 dev wire-0
ip link set wire-0 up
ip link set wire-1 up
{ echo 127.0.0.1 localhost controller node{1..4}; } >"$folder/hosts"
mount --bind "$folder/hosts" /etc/hosts

head -c 1024 /dev/urandom >"$folder/munge/key"
chmod 400 "$folder/munge/key"
cat >"$SLURM_CONF" <<CONF
ClusterName=test
SlurmctldHost=controller(127.0.0.1)
SlurmctldPort=26817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$folder/munge/socket
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
TmpFS=$folder/tmp.%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=node[1-4] NodeHostname=controller NodeAddr=127.0.0.1 Port=[26818-26821] CPUs=4
PartitionName=all Nodes=ALL Default=YES
CONF

ours=()
trap 'kill "${ours[@]}" 2>/dev/null || true' EXIT
munged --foreground --force --key-file="$folder/munge/key" --socket="$folder/munge/socket" --pid-file="$folder/munge/pid" \
  --log-file="$folder/munge/log" --seed-file="$folder/munge/seed" >"$folder/log/munged" 2>&1 &
ours+=($!)
wait_until test -S "$folder/munge/socket"
slurmctld -D -c >"$folder/log/slurmctld" 2>&1 &
ours+=($!)
for node in node{1..4}; do
  unshare --mount --uts --ipc sh -c "hostname $node && mount -t tmpfs tmpfs /dev/shm && exec slurmd -D -c -N $node" \
    >"$folder/log/$node" 2>&1 &
  ours+=($!)
done
all_idle() { [[ $(timeout 5 sinfo --noheader --states=idle --format=%D 2>/dev/null) == 4 ]]; }
wait_until all_idle || fail 'the four nodes do not answer'
types=$(srun --mpi=list 2>&1)
[[ $types == *pmix* ]] || skip 'this Slurm has no PMIx'

# ---- The runs ---------------------------------------------------------------------------------------------------------

unset OMPI_MCA_plm_rsh_agent  # mpirun finds Slurm by itself
ln -s "$PWD/lessons" "$folder/out/lessons"
ln -s "$build" "$folder/out/build"
cd "$folder/out"

digest_of() { sed -n 's/^# digest //p' "$1" | tail -n 1; }
same() { # WHAT FILE WANTED
  local got
  got=$(digest_of "$2")
  [[ -n $got && $got == "$3" ]] || fail "$1: digest '$got' instead of '$3'"
  echo "same digest: $1"
}

exact=(--steps=3 --arithmetic=exact)
mpirun -np 4 build/lessons/03_ddp "${exact[@]}" >mpirun.txt
wanted=$(digest_of mpirun.txt)
srun --mpi=pmix --nodes=1 --ntasks=4 build/lessons/03_ddp "${exact[@]}" >srun.txt
same 'srun, one node' srun.txt "$wanted"
srun --mpi=pmix --nodes=4 --ntasks-per-node=1 build/lessons/03_ddp "${exact[@]}" >srun-4.txt
same 'srun, four nodes' srun-4.txt "$wanted"

# Without a type srun starts four jobs of one rank each, or programs that refuse to: never a wrong result with status 0.
if srun --mpi=none --ntasks=4 build/lessons/03_ddp "${exact[@]}" >none.txt 2>&1; then fail 'srun --mpi=none has status 0'; fi

printf '#!/bin/sh\nexec mpirun build/lessons/03_ddp "$@"\n' >mpirun.sbatch
sbatch --wait --nodes=2 --ntasks-per-node=2 --output=in_job.txt mpirun.sbatch "${exact[@]}" >submitted.txt
same 'mpirun inside a job, two nodes' in_job.txt "$wanted"

batch=lessons/10_3d_parallel/tp4_pp4.sbatch
sbatch --wait --output=four.txt "$batch" "${exact[@]}" >submitted.txt
same 'the batch file, four nodes' four.txt "$wanted"
for stage in 1 2 3 4; do
  placed=$(grep -cE "^# +[0-9]+  node$stage +[^ ]+ +$((stage - 1)) " four.txt || true)
  [[ $placed == 4 ]] || fail "$placed of 4 ranks of stage $((stage - 1)) are on node$stage"
done

# Stopped by the signal that Slurm sends before the time is over, queued again, resumed. Requeued jobs wait two minutes.
small=(--nodes=2 --ntasks=4 --ntasks-per-node=2)
long=(--tp=2 --pp=2 --steps=100 --arithmetic=exact)
mpirun -np 4 build/lessons/10_3d_parallel --config=lessons/10_3d_parallel/tp4_pp4.conf "${long[@]}" >whole.txt
job=$(sbatch --parsable "${small[@]}" --output=again.txt "$batch" "${long[@]}" --checkpoint="$PWD/run.h5")
trains() { grep -qsE '^ +3 ' again.txt; }
about() { scontrol show job "$job" | grep -qE "$1"; }
wait_until trains || fail 'the job does not train'
scancel --signal=USR1 "$job"
wait_until about 'Restarts=1' || fail 'the job was not queued again'
wait_until about 'JobState=PENDING Reason=BeginTime' || fail 'the job does not wait for its second start'
sleep 5  # a node refuses a job that starts again in the second in which it ended
scontrol update "JobId=$job" StartTime=now
wait_until about 'JobState=(COMPLETED|FAILED)' || fail 'the resumed job does not end'
about 'JobState=COMPLETED' || fail 'the resumed job has failed'
grep -q '^# stopped by SIGUSR1 after step' again.txt || fail 'the first half was not stopped'
grep -q '^# --resume *true' again.txt || fail 'the second half did not resume'
same 'stopped and resumed' again.txt "$(digest_of whole.txt)"

status=0
srun --mpi=pmix --nodes=2 --ntasks-per-node=2 build/lessons/00_mpi --show=hang --timeout=3 >hang.txt 2>&1 || status=$?
[[ $status == 86 ]] || fail "a deadlock under srun ends with status $status, not 86"
echo 'a deadlock ends with status 86'
