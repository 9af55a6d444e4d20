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

# PostgreSQL's own, from its src/tools/valgrind.supp: padding in a file that a process writes as it starts.
cat > "$copy/known" <<'KNOWN'
{
   padding_relcache
   Memcheck:Param
   write(buf)
   ...
   fun:RelationCacheInitializePhase3
}
KNOWN

bin="$("$PG_CONFIG" --bindir)"
mkdir -m 777 "$copy/logs"
mv "$bin/postgres" "$bin/postgres.real"
cat > "$bin/postgres" <<WRAPPER
#!/bin/sh
exec valgrind -v --trace-children=yes --num-callers=40 --undef-value-errors=yes \\
    --suppressions=$copy/known --log-file=$copy/logs/%p.log $bin/postgres.real "\$@"
WRAPPER
chmod 755 "$bin/postgres"

step "Running"
GROWTH=0 QUERIES="${QUERIES:-20}" SESSIONS="${SESSIONS:-2}" \
    cargo run --quiet -p parallel_replicas_tests --bin chaos -- soak

step "Errors with the library on their stack"
processes="$(find "$copy/logs" -name '*.log' | wc -l)"
# Primary and standby load the library once; all other processes are their children.
watched="$(grep -l 'Reading syms from .*/parallel_replicas\.so' "$copy"/logs/*.log | wc -l)"
[ "$watched" -ge 2 ] || die "the library was loaded under valgrind by $watched servers"
# Each error is a paragraph, and so is a crash; debug information gives our frames the crates' names.
found="$(sed -n 's/^==[0-9]*== *//p' "$copy"/logs/*.log | awk -v RS= '/parallel_replicas/')"
[ -z "$found" ] || { printf '%s\n' "$found" >&2; die "valgrind found errors"; }
echo "none in $processes processes"
