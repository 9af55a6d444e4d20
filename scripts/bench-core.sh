#!/usr/bin/env bash
# What the rules of work-sharing cost, without PostgreSQL; fails if a request costs more than its bar.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"

exec cargo bench --quiet -p parallel_replicas_core --bench request -- --noplot "$@"
