#!/usr/bin/env bash
# One node, as the first process of its own pid, mount, network and uts namespaces: when it is killed, all of the node is gone at once.
# usage: node.sh FOLDER NAME ADDRESS GATEWAY BINARIES KUBECONFIG PROXY_KUBECONFIG POD_RANGE   (routes to the other nodes' pods: FOLDER/routes)
set -euo pipefail
folder=$1 name=$2 address=$3 gateway=$4 binaries=$5 kubeconfig=$6 proxy_kubeconfig=$7 pods=$8

hostname "$name"
ip link set lo up
for _ in $(seq 200); do [ -e /proc/sys/net/ipv4/conf/eth0 ] && break; sleep 0.05; done
ip addr add "$address/24" dev eth0
ip link set eth0 up
ip route add default via "$gateway"
while read -r range via; do ip route add "$range" via "$via"; done < "$folder/routes"
echo 1 > /proc/sys/net/ipv4/ip_forward

# The node's own /run, /var/lib and /var/log; what must survive a power cut is in its folder, which it sees as /run/node.
mount -t tmpfs tmpfs /run
mkdir /run/node
mount --bind "$folder" /run/node
cp "$kubeconfig" /run/kubelet.kubeconfig
cp "$proxy_kubeconfig" /run/proxy.kubeconfig
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs tmpfs /var/log
mkdir -p /run/node/{kubelet,containerd,pods} /run/containerd /run/netns /var/lib/kubelet /var/log/pods
mount --bind /run/node/kubelet /var/lib/kubelet
mount --make-rshared /var/lib/kubelet
mount --bind /run/node/pods /var/log/pods
# Kubelet and runc take a mixed machine (version 1 hierarchies and an empty version 2 one) for a pure version 2 one while they see the latter.
if [ -d /sys/fs/cgroup/unified ]; then umount /sys/fs/cgroup/unified; fi

# Kubelet insists on these settings and would write them to the whole machine's kernel: let it find them as it wants them.
mkdir /run/sysctl
while read -r setting value; do
  [ -e "/proc/sys/$setting" ] || continue
  file=/run/sysctl/${setting//\//.}
  echo "$value" > "$file"
  mount --bind "$file" "/proc/sys/$setting"
done <<SETTINGS
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
SETTINGS

containerd --config /run/node/containerd.toml >> /run/node/containerd.log 2>&1 &
for _ in $(seq 300); do [ -S /run/containerd/containerd.sock ] && break; sleep 0.1; done
"$binaries/kube-proxy" --kubeconfig=/run/proxy.kubeconfig --hostname-override="$name" --cluster-cidr="$pods" --proxy-mode=iptables \
  --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0 >> /run/node/kube-proxy.log 2>&1 &
"$binaries/kubelet" --config=/run/node/kubelet.json --kubeconfig=/run/kubelet.kubeconfig --hostname-override="$name" --node-ip="$address" \
  >> /run/node/kubelet.log 2>&1 &
# As pid 1 this shell also reaps the node's orphans. A node without one of its three is no node.
wait -n
echo "a process of $name ended by itself: the node goes down" >&2
