#!/usr/bin/env bash
# Prepares a machine of Gradescope: what the course needs, the entry point, and everything that is not the student's, built.
set -euo pipefail
cd /autograder/source
scripts/setup.sh
install -m 755 scripts/course/exports/gradescope/run_autograder /autograder/run_autograder
mkdir -p build/empty
scripts/course.py grade build/empty --lessons="$LESSONS" || [ $? -eq 1 ]  # refused, after the course was built
