#!/bin/sh
# A certificate authority and one certificate for scheduler, workers and clients, by OpenSSL.
#   certificates.sh FOLDER [DAYS]      writes ca.pem, cert.pem and key.pem there, for the owner only
# Whoever has key.pem can join the cluster and run code as you. Dask compares no host names: one
# certificate serves all hosts, and the authority's key is thrown away.
set -eu
folder=$1 days=${2:-30}
command -v openssl >/dev/null || { echo "certificates.sh needs openssl, which is not installed" >&2; exit 1; }
umask 077
mkdir -p "$folder"
chmod 700 "$folder"
made=$(mktemp -d "$folder/.XXXXXX")
trap 'rm -rf "$made"' EXIT
# it talks on stderr even when all is well: heard only where it fails
ssl() { openssl "$@" 2>"$made/said" || { cat "$made/said" >&2; exit 1; }; }
new='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'
# shellcheck disable=SC2086
ssl req -x509 $new -days "$days" -subj /CN=scrlm-authority \
    -addext basicConstraints=critical,CA:TRUE -keyout "$made/ca-key.pem" -out "$made/ca.pem"
# shellcheck disable=SC2086
ssl req $new -subj /CN=scrlm-cluster -keyout "$made/key.pem" -out "$made/request.pem"
ssl x509 -req -in "$made/request.pem" -CA "$made/ca.pem" -CAkey "$made/ca-key.pem" \
    -CAcreateserial -days "$days" -out "$made/cert.pem"
mv "$made/ca.pem" "$made/cert.pem" "$made/key.pem" "$folder"
