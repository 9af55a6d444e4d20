#!/usr/bin/env bash
# Runs the simulator of work-sharing, 100000 random schedules and all promises, and prints its table.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"

export SIM_SCHEDULES="${SIM_SCHEDULES:-100000}"
echo '| what | bar | measured |'
echo '|---|---|---|'
for suite in simulator cost; do
    cargo test --quiet -p parallel_replicas_core --release --test "$suite" -- \
        --nocapture --test-threads=1 | sed -n 's/^\.*| /| /p'
done
scripts/bench-core.sh request | grep '^| '
