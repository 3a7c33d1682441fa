#!/bin/bash
# Start an sshd on loopback, with its keys and settings in a folder: sshd-up.sh FOLDER PORT
# Writes FOLDER/config for `ssh -F`, and FOLDER/sshd.pid. Requires root and Debian's openssh-server.
set -euo pipefail
D=$1 PORT=$2
mkdir -p "$D" /run/sshd
chmod 700 "$D"
ssh-keygen -q -t ed25519 -N "" -f "$D/host_key"
ssh-keygen -q -t ed25519 -N "" -f "$D/key"
cp "$D/key.pub" "$D/authorized_keys"
echo "[127.0.0.1]:$PORT $(cat "$D/host_key.pub")" > "$D/known_hosts"
cat > "$D/sshd_config" <<CONF
ListenAddress 127.0.0.1:$PORT
HostKey $D/host_key
PidFile $D/sshd.pid
AuthorizedKeysFile $D/authorized_keys
PasswordAuthentication no
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
CONF
cat > "$D/config" <<CONF
Host 127.0.0.1
    Port $PORT
    IdentityFile $D/key
    IdentitiesOnly yes
    UserKnownHostsFile $D/known_hosts
    StrictHostKeyChecking yes
CONF
/usr/sbin/sshd -f "$D/sshd_config" -E "$D/log"
for _ in $(seq 100); do [ -s "$D/sshd.pid" ] && exit 0; sleep 0.1; done
cat "$D/log" >&2
exit 1
