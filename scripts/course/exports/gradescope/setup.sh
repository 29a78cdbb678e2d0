#!/usr/bin/env bash
# Prepares a machine of Gradescope: what the course needs, the entry point, and everything that is not the student's, built.
set -euo pipefail
: "${LESSONS:?set it to the lessons that are graded, as LESSONS=03,06}"
cd /autograder/source
scripts/setup.sh --grading
scripts/build.sh release  # the programs that answers are compared with
install -m 755 scripts/course/exports/gradescope/run_autograder /autograder/run_autograder
mkdir -p build/empty
# Refused, after the course was built. Nothing of a student runs, and where images are built there are no namespaces.
scripts/course.py grade build/empty --lessons="$LESSONS" --no-sandbox || [ $? -eq 1 ]
