#!/usr/bin/env bash
# Runs one of the query queue's benchmarks, or its soak, on the installed extension; see tests/src/bin/queue.
# Figures as JSON go to target/bench/queue-NAME.json.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"

step "Building"
cargo build -p parallel_replicas_tests --bin queue
mkdir -p target/bench
exec cargo run --quiet -p parallel_replicas_tests --bin queue -- "$1" "target/bench/queue-$1.json"
