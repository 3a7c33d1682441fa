#!/bin/bash
# Run a scrlm command on several hosts over plain ssh; only OpenSSH is required.
#   run.sh hosts.txt fit /shared/features.zarr --out /shared/run --clusters 200
# The scheduler runs on this machine. Scheduler file and certificates, readable only by you, are in the
# working directory, which all hosts must share. Environment variables:
#   SCRLM_BIN   folder of `dask` on the other hosts (default: as on this machine)
#   SCRLM_HOST  address of this machine, as seen by the other hosts
#   SCRLM_SSH   ssh command
set -u
hosts=$(realpath "$1"); shift
bin=${SCRLM_BIN:-$(dirname "$(command -v dask)")}
ssh=${SCRLM_SSH:-ssh}
log() { echo "run.sh: $*" >&2; }
host=${SCRLM_HOST:-}
if [ -z "$host" ]; then
    host=$(hostname -f)
    case $(getent ahosts "$host") in
        127.* | ::1*)
            log "$host is a loopback address, which other hosts cannot reach; set SCRLM_HOST to an" \
                "address of this machine that they can reach"
            exit 1 ;;
    esac
fi
folder=$(mktemp -d "$PWD/.scrlm-ssh-XXXXXX")  # mode 0700
started=()
trap 'kill "${started[@]}" 2>/dev/null; wait; rm -rf "$folder"' EXIT

"$(dirname "$(realpath "$0")")/../tls/certificates.sh" "$folder" || exit 1
tls=(--tls-ca-file "$folder/ca.pem" --tls-cert "$folder/cert.pem" --tls-key "$folder/key.pem")
(
    umask 077  # for the scheduler file
    exec dask scheduler --scheduler-file "$folder/scheduler.json" --protocol tls --port 0 \
        --host "$host" "${tls[@]}" \
        --dashboard-address "${SCRLM_DASHBOARD:-127.0.0.1:8787}"
) &
scheduler=$!
started+=("$scheduler")
for _ in $(seq 300); do
    [ -s "$folder/scheduler.json" ] && break
    kill -0 "$scheduler" 2>/dev/null || break
    sleep 0.2
done
[ -s "$folder/scheduler.json" ] || { log "the scheduler did not start at $host; see its error above"; exit 1; }

worker=(env OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 BLIS_NUM_THREADS=1
    MALLOC_ARENA_MAX=1 MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=1073741824
    DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE=False
    "$bin/dask" worker --scheduler-file "$folder/scheduler.json" --protocol tls "${tls[@]}"
    --nworkers 1 --preload scrlm_dask.preload --no-dashboard)
while read -r worker_host threads; do
    # Quote arguments for the remote shell. With -tt the worker ends when the connection is closed.
    # shellcheck disable=SC2086
    $ssh -tt "$worker_host" "$(printf '%q ' "${worker[@]}" ${threads:+--nthreads "$threads"} --host "$worker_host")" \
        </dev/null >&2 &
    started+=($!)
done < <(sed 's/#.*//; /^[[:space:]]*$/d' "$hosts")

scrlm "$@" --scheduler-file "$folder/scheduler.json" --require-tls "${tls[@]}"
