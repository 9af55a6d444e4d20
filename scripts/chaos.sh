#!/usr/bin/env bash
# Queries while replicas break (chaos), or queries that end early (soak), on the installed extension;
# see tests/src/bin/chaos.rs for what the environment may set.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"

step "Building"
cargo build -p parallel_replicas_tests --bin chaos
exec cargo run --quiet -p parallel_replicas_tests --bin chaos -- "$1"
