#!/bin/bash
# Start Slurm on this host, without systemd: munged, slurmctld and N slurmd, all on loopback.
#   slurm-up.sh FOLDER [nodes=2] [cpus per node=2]
# The user munge must be able to enter FOLDER. Requires root and Debian's slurmctld, slurmd,
# slurm-client and munge. Stop it with slurm-down.sh FOLDER.
set -euo pipefail
D=$1 N=${2:-2} CPUS=${3:-2} HOST=$(hostname -s)
mkdir -p "$D/state" "$D/log" "$D/munge"
chmod 755 "$D"

# munged rejects folders that other users can write to, and keys that other users can read
chown -R munge:munge "$D/munge"
[ -s "$D/munge/key" ] || { dd if=/dev/urandom of="$D/munge/key" bs=128 count=1 status=none; }
chown munge:munge "$D/munge/key"; chmod 400 "$D/munge/key"; chmod 755 "$D/munge"
setpriv --reuid munge --regid munge --clear-groups munged --socket "$D/munge/socket" \
    --key-file "$D/munge/key" --pid-file "$D/munge/pid" --log-file "$D/munge/log" \
    --seed-file "$D/munge/seed" --force

free() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
cat > "$D/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$HOST(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$D/munge/socket
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPort=$(free)
SlurmctldParameters=preempt_send_user_signal
StateSaveLocation=$D/state
SlurmctldPidFile=$D/slurmctld.pid
SlurmctldLogFile=$D/log/slurmctld.log
SlurmdSpoolDir=$D/spool/%n
SlurmdPidFile=$D/slurmd-%n.pid
SlurmdLogFile=$D/log/slurmd-%n.log
SlurmdParameters=config_overrides
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$D/log/jobcomp.txt
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=1000
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,batch_sched_delay=0,sched_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
KillWait=5
MinJobAge=600
CONF
for i in $(seq "$N"); do
    mkdir -p "$D/spool/n$i"
    echo "NodeName=n$i NodeHostname=$HOST NodeAddr=127.0.0.1 Port=$(free) CPUs=$CPUS RealMemory=8000 State=UNKNOWN"
done >> "$D/slurm.conf"
cat >> "$D/slurm.conf" <<CONF
PartitionName=main Nodes=n[1-$N] Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=10
PartitionName=high Nodes=n[1-$N] Default=NO MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
CONF
export SLURM_CONF=$D/slurm.conf
slurmctld -f "$SLURM_CONF"
for i in $(seq "$N"); do slurmd -f "$SLURM_CONF" -N "n$i"; done
for _ in $(seq 300); do
    [ "$(sinfo -h -p main -t idle -o %D 2>/dev/null)" = "$N" ] && exit 0
    sleep 0.1
done
echo "nodes did not come up" >&2
sinfo -N -l >&2
tail -n 20 "$D"/log/*.log "$D/munge/log" >&2
exit 1
