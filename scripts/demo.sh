#!/usr/bin/env bash
# Runs the demo on the installed extension; see tests/src/bin/demo.rs for SCALE and KEEP.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"

step "Building the demo"
cargo build -p parallel_replicas_tests --bin demo
exec cargo run --quiet -p parallel_replicas_tests --bin demo
