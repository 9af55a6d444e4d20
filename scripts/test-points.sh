#!/usr/bin/env bash
# Tests of failures at exact places: builds the library with its test points, installs it into a copy
# of PostgreSQL, and runs tests/tests/points.rs there.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"

copy_postgresql
trap 'rm -rf "$copy"' EXIT

step "Building with test points"
cargo pgrx install --release --pg-config "$PG_CONFIG" --features test_points
cargo test -p parallel_replicas_tests --test points -- --ignored --test-threads=2
