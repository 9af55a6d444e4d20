#!/usr/bin/env bash
# Builds the extension in release mode and installs it into the PostgreSQL of PG_CONFIG.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"

step "Building and installing the extension for $("$PG_CONFIG" --version)"
arguments=(--release --pg-config "$PG_CONFIG")
if [ "$(id -u)" -ne 0 ]; then
    # Builds as oneself, copies as root.
    arguments+=(--sudo)
fi
cargo pgrx install "${arguments[@]}"
