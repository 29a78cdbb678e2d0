#!/usr/bin/env bash
# The image for Gradescope as far as it can be built without Docker: its setup script in an empty Debian 12, and then a right
# submission, in a sandbox and without one. It takes root, debootstrap and Debian's mirror; status 77 where they are not there.
set -euo pipefail
project=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
if (($(id -u) != 0)) || ! command -v debootstrap >/dev/null; then exit 77; fi
machine=$(mktemp -d /var/tmp/gradescope.XXXXXX)
cleanup() {
  umount -R -l "$machine" || true
  rm -rf --one-file-system "$machine"
}
trap cleanup EXIT
mount --bind "$machine" "$machine"  # bubblewrap wants a root folder that is mounted
mount --make-private "$machine"
debootstrap --variant=minbase --include=ca-certificates,git bookworm "$machine" >/dev/null || exit 77
mount -t proc proc "$machine/proc"
mount --rbind /dev "$machine/dev"
mount --make-rslave "$machine/dev"
cp -L /etc/resolv.conf "$machine/etc/resolv.conf"
mkdir "$machine/autograder" "$machine/autograder/submission" "$machine/autograder/results"
git clone --quiet "$project" "$machine/autograder/source"
(cd "$project" && git grep -l 'BEGIN EXERCISE 00' -- lessons | xargs cp --parents -t "$machine/autograder/submission")
echo '{"users": [{"email": "ada@example.org"}]}' >"$machine/autograder/submission_metadata.json"

inside() {
  chroot "$machine" /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LESSONS=00 GRADING="${grading-}" "$@"
}
inside bash /autograder/source/scripts/course/exports/gradescope/setup.sh
for grading in '' --no-sandbox; do
  rm -f "$machine/autograder/results/results.json"
  inside /autograder/run_autograder
  python3 - "$machine/autograder/results/results.json" <<'CODE'
import json, sys
written = [test for test in json.load(open(sys.argv[1]))["tests"] if test["tags"] == ["implement"]]
assert len(written) == 5 and all(test["score"] == test["max_score"] for test in written), written
CODE
done
