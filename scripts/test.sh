#!/usr/bin/env bash
# Everything that must pass, cheapest first. The last line of the output is "N passed, N failed".
#
# Set-up, lint and the build of the extension end the run when they fail, because nothing after
# them would mean anything. A failing test suite does not hide the results of the next one.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"

passed=0
failed=0
output="$(mktemp)"
trap 'rm -f "$output"' EXIT

# Runs a command that prints cargo's "test result:" lines and adds them up. A command that fails
# without a failed test (it did not compile, a test process died), or runs none, counts as one failure.
suite() {
    local title="$1" status=0 good bad
    shift
    step "$title"
    "$@" 2>&1 | tee "$output" || status=$?
    good="$(sum_results passed)"
    bad="$(sum_results failed)"
    if [ "$bad" -eq 0 ] && { [ "$status" -ne 0 ] || [ "$good" -eq 0 ]; }; then
        bad=1
    fi
    passed=$((passed + good))
    failed=$((failed + bad))
}

# Adds up the numbers before the word $1 in the lines "test result: ok. 3 passed; 0 failed; ...".
sum_results() {
    awk -v word="$1" '
        /^test result: / {
            for (i = 2; i <= NF; i++) if ($i ~ "^" word ";?$") sum += $(i - 1)
        }
        END { print sum + 0 }
    ' "$output"
}

scripts/setup.sh tests
scripts/lint.sh
suite "Tests of the core, without PostgreSQL" \
    env SIM_SCHEDULES=100000 cargo test --no-fail-fast -p parallel_replicas_core --release
scripts/install.sh
# Each cluster test runs up to three servers, so no more than two tests at a time.
suite "Tests on real servers" \
    cargo test --no-fail-fast -p parallel_replicas_tests -- --test-threads=2

suite "Tests with test points" scripts/test-points.sh

printf '\n%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
