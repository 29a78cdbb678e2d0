#!/usr/bin/env bash
# Installs what is missing, builds, and runs all tests but the nightly ones. Options go to ctest: scripts/test.sh -R norm
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh --documentation
scripts/setup.sh --grading
scripts/build.sh release
exec ctest --preset release "$@"
