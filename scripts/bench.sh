#!/usr/bin/env bash
# Runs one benchmark on the installed extension; see tests/src/bin/bench. The table goes to the
# screen, the figures as JSON to target/bench/NAME.json.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"

step "Building the benchmark"
cargo build -p parallel_replicas_tests --bin bench
mkdir -p target/bench
exec cargo run --quiet -p parallel_replicas_tests --bin bench -- "$1" "target/bench/$1.json"
