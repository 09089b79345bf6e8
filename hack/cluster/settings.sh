# settings.sh - where this cluster's files are; sourced by every script beside it.
#
#   LING_CACHE        what is slow to make and may be kept: compiled tools, image store (default: ~/.cache/ling)
#   LING_CLUSTER_DIR  the state of the one cluster of this machine (default: $LING_CACHE/cluster)
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
REPO=$(cd "$HERE/../.." && pwd)
CACHE=${LING_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ling}
STATE=${LING_CLUSTER_DIR:-$CACHE/cluster}
SEED=$CACHE/images/containerd   # a containerd root that holds every image; nodes start from hard links to it

die() { echo "$(basename "$0"): $*" >&2; exit 2; }
[ "$(id -u)" = 0 ] || die "must run as root: nodes are namespaces, mounts and cgroups of this machine"
case $STATE/ in /var/*|/run/*|/sys/*|/proc/*|/dev/*)
  die "LING_CLUSTER_DIR is $STATE, but a node has a /var and a /run of its own: name a folder elsewhere";; esac

# a compiled tool lives in a folder named after what it was compiled from, so another pin is another folder
tool() { echo "$CACHE/tools/$1-$(cat "$HERE/tools/$1/go.mod" "$HERE/tools/$1/go.sum" | sha256sum | cut -c1-16)"; }
CNI_BIN=$(tool containerd)/cni
PATH=$(tool kubernetes):$(tool containerd):$(tool etcd):$(tool helm):$PATH
export PATH

# addresses: the API server's host, this host, node I, its pods
CP_IP=10.87.0.1 HOST_IP=10.87.0.254
node_ip() { echo "10.87.0.1$1"; }
node_pods() { echo "10.244.$1"; }

render() { # FILE KEY=VALUE...: FILE with every @KEY@ replaced
  local file=$1 expressions=(); shift
  for pair in "$@"; do expressions+=(-e "s#@${pair%%=*}@#${pair#*=}#g"); done
  sed "${expressions[@]}" "$HERE/config/$file"
}
wait_for() { # SECONDS COMMAND...: until it succeeds
  local end=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || { echo "timed out: $*" >&2; return 1; }
    sleep 0.1
  done
}
