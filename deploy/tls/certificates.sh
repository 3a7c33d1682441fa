#!/bin/sh
# Create a certificate authority and one certificate for scheduler, workers and clients with OpenSSL.
#   certificates.sh FOLDER [DAYS]      writes ca.pem, cert.pem and key.pem, readable only by the owner
# Anyone who has key.pem can join the cluster and run code with your permissions. Dask does not check
# host names, so one certificate is valid for all hosts. The key of the authority is not kept.
set -eu
folder=$1 days=${2:-30}
command -v openssl >/dev/null || { echo "certificates.sh needs openssl, which is not installed" >&2; exit 1; }
umask 077
mkdir -p "$folder"
chmod 700 "$folder"
made=$(mktemp -d "$folder/.XXXXXX")
trap 'rm -rf "$made"' EXIT
# openssl writes to stderr even if it succeeds; show this output only if it fails.
ssl() { openssl "$@" 2>"$made/stderr" || { cat "$made/stderr" >&2; exit 1; }; }
new='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'
# shellcheck disable=SC2086
ssl req -x509 $new -days "$days" -subj /CN=scrlm-authority \
    -addext basicConstraints=critical,CA:TRUE -keyout "$made/ca-key.pem" -out "$made/ca.pem"
# shellcheck disable=SC2086
ssl req $new -subj /CN=scrlm-cluster -keyout "$made/key.pem" -out "$made/request.pem"
ssl x509 -req -in "$made/request.pem" -CA "$made/ca.pem" -CAkey "$made/ca-key.pem" \
    -CAcreateserial -days "$days" -out "$made/cert.pem"
mv "$made/ca.pem" "$made/cert.pem" "$made/key.pem" "$folder"
