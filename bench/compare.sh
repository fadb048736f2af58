#!/bin/bash
# postern beside other proxies that intercept TLS and inject a credential: one run, interleaved rounds, medians.
#
#   bench/compare.sh DIR [-only a,b] [-json out.json]
#
# DIR is the harness: its run.sh reads a plan of contestants and workloads, starts an upstream that answers only where its credential
# arrived, and drives every contestant through an explicit CONNECT proxy. This script adds postern's row to the harness's own plan.
# postern's listeners live inside a sandbox's namespace, so for this a program of its own serves the same gateway on a port of the host.
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: bench/compare.sh DIR [-only a,b] [-json out.json]" >&2; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
harness=$(cd "$1" && pwd)
shift

BENCH_WORK=${BENCH_WORK:-$(mktemp -d /tmp/postern-bench.XXXXXX)}
export BENCH_WORK
mkdir -p "$BENCH_WORK"
chmod 755 "$BENCH_WORK"
(cd "$root" && CGO_ENABLED=0 go build -trimpath -o "$BENCH_WORK/contestant" ./bench/contestant)
(cd "$harness" && go build -o "$BENCH_WORK/proxybench" .)
[ -f "$BENCH_WORK/upstream.crt" ] || "$BENCH_WORK/proxybench" ca -dir "$BENCH_WORK"

# The credential is the harness's, read from its source: it is nobody's, but this repository holds none at all.
token=$(sed -n 's/^const realToken = "Bearer \(.*\)"$/\1/p' "$harness/upstream.go")
[ -n "$token" ] || { echo "bench: $harness/upstream.go has no realToken" >&2; exit 1; }

# run.sh gives its work directory to another user, and postern reads no credential that is not its own: so this stands elsewhere.
conf=$(mktemp -d /tmp/postern-bench-conf.XXXXXX)
trap 'rm -rf "$conf"' EXIT
(umask 077 && printf '%s\n' "$token" > "$conf/token")
cp "$BENCH_WORK/upstream-ca.crt" "$conf/"
sed "s#{conf}#$conf#g" "$root/bench/postern.yaml" > "$conf/postern.yaml"
sed "s#{conf}#$conf#g" "$root/bench/contestant.json" > "$conf/contestant.json"
(cd "$root/tools" && go run ./addplan "$harness/plan.json" "$conf/contestant.json") > "$conf/plan.json"
PLAN=$conf/plan.json "$harness/run.sh" "$@"
