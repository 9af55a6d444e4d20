#!/usr/bin/env bash
# Random queries with replicas and without; see tests/src/bin/fuzz.rs for SEED, QUERIES,
# ROUND and SQLSMITH.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"

if [ -z "${ROUND:-}" ] && [ "${SQLSMITH:-}" != 0 ] && ! command -v sqlsmith > /dev/null; then
    step "Installing sqlsmith"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends sqlsmith
fi

step "Building the generator"
cargo build -p parallel_replicas_tests --bin fuzz
exec cargo run --quiet -p parallel_replicas_tests --bin fuzz
