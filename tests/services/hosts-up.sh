#!/bin/bash
# Create two hosts in network namespaces, connected by a veth pair: hosts-up.sh NAME [SUBNET=10.77.3]
# NAME-1 is SUBNET.1 and NAME-2 is SUBNET.2. Remove them with `ip netns del`. Requires root and iproute2.
set -euo pipefail
NAME=$1 NET=${2:-10.77.3}
ip netns add "$NAME-1"
ip netns add "$NAME-2"
ip link add eth0 netns "$NAME-1" type veth peer name eth0 netns "$NAME-2"
for i in 1 2; do
    ip -n "$NAME-$i" addr add "$NET.$i/24" dev eth0
    ip -n "$NAME-$i" link set eth0 up
    ip -n "$NAME-$i" link set lo up
done
