#!/bin/sh
# A SLURM of one node, as root, from Debian's slurm-wlm and munge, everything it writes in a folder:
#   one_node.sh start FOLDER   prints the SLURM_CONF to use when the node is ready
#   one_node.sh stop FOLDER
set -eu
folder=$2
stop() {
  for name in slurmd slurmctld munged; do
    if [ -f "$folder/$name.pid" ]; then kill "$(cat "$folder/$name.pid")" 2>/dev/null || true; fi
  done
}
if [ "$1" = stop ]; then
  stop
  exit 0
fi
mkdir -p "$folder/state" "$folder/spool" "$folder/munge"
host=$(hostname -s)
chmod 755 "$folder" "$folder/munge"
# A munge of our own: its key, socket and log lie in the folder.
dd if=/dev/urandom of="$folder/munge/key" bs=128 count=1 2>/dev/null
chmod 400 "$folder/munge/key"
chmod 711 "$folder/munge"
munged --force --key-file="$folder/munge/key" --socket="$folder/munge/socket" \
  --pid-file="$folder/munged.pid" --log-file="$folder/munge/log" \
  --seed-file="$folder/munge/seed"
cpus=$(nproc)
cat > "$folder/slurm.conf" <<CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
SlurmctldPort=${SLURM_TEST_PORT:-16817}
SlurmdPort=$((${SLURM_TEST_PORT:-16817} + 1))
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1,bf_interval=1
MinJobAge=60
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cpus State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF="$folder/slurm.conf"
slurmctld -f "$folder/slurm.conf" || { echo "slurmctld did not start" >&2; stop; exit 1; }
slurmd -f "$folder/slurm.conf" -N "$host" || { echo "slurmd did not start" >&2; stop; exit 1; }
for _ in $(seq 100); do
  if sinfo -h -o %T 2>/dev/null | grep -q idle; then
    echo "$folder/slurm.conf"
    exit 0
  fi
  sleep 0.2
done
echo "the node did not come up" >&2
stop
exit 1
