#!/usr/bin/env bash
# A short `make soak` on servers that run under valgrind, which watches the library's use of the heap.
#
# Debian's PostgreSQL does not tell valgrind about its memory contexts, so what is looked for are
# errors with memory that Rust and libpq allocate, and jumps on uninitialised values. Only errors with
# the library on their stack count: PostgreSQL's own are known (its valgrind.supp has them).
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"

command -v valgrind > /dev/null || die "valgrind is missing: apt-get install valgrind"
copy_postgresql
trap 'rm -rf "$copy"' EXIT

step "Building"
cargo pgrx install --release --pg-config "$PG_CONFIG"
cargo build -p parallel_replicas_tests --bin chaos

bin="$("$PG_CONFIG" --bindir)"
mkdir -m 777 "$copy/logs"
mv "$bin/postgres" "$bin/postgres.real"
cat > "$bin/postgres" <<WRAPPER
#!/bin/sh
exec valgrind --quiet --trace-children=yes --num-callers=40 --undef-value-errors=yes \\
    --log-file=$copy/logs/%p.log $bin/postgres.real "\$@"
WRAPPER
chmod 755 "$bin/postgres"

step "Running"
QUERIES="${QUERIES:-100}" SESSIONS="${SESSIONS:-2}" \
    cargo run --quiet -p parallel_replicas_tests --bin chaos -- soak

step "Errors with the library on their stack"
processes="$(find "$copy/logs" -name '*.log' | wc -l)"
[ "$processes" -gt 0 ] || die "no process ran under valgrind"
# Each error is a paragraph.
found="$(cat "$copy"/logs/*.log | sed 's/^==[0-9]*== *//' | awk -v RS= '/parallel_replicas\.so/')"
[ -z "$found" ] || { printf '%s\n' "$found" >&2; die "valgrind found errors"; }
echo "none in $processes processes"
