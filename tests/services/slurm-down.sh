#!/bin/bash
# Stop the daemons that slurm-up.sh FOLDER started, by their pid files only.
D=$1
export SLURM_CONF=$D/slurm.conf
if [ -s "$D/slurmctld.pid" ]; then
    scancel --state=PENDING,RUNNING -u "$(id -un)" 2>/dev/null
    for _ in $(seq 80); do [ -z "$(squeue -h 2>/dev/null)" ] && break; sleep 0.1; done
fi
pids=$(cat "$D"/slurmd-*.pid "$D/slurmctld.pid" "$D/munge/pid" 2>/dev/null)
for pid in $pids; do kill "$pid" 2>/dev/null; done
for _ in $(seq 50); do
    alive=
    for pid in $pids; do kill -0 "$pid" 2>/dev/null && alive=1; done
    [ -z "$alive" ] && break
    sleep 0.1
done
exit 0
