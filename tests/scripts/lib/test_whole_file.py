"""scripts/lib/whole_file.py: a file has its old content or its new one, and keeps its owner and permissions. Scripts write through it."""

import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts/lib"))
from whole_file import write_whole  # noqa: E402

WRITES = re.compile(r"\.write_text\(|\.write_bytes\(|open\(.*[\"'][wxa]\+?b?\+?[\"']")
# They write files in a folder that is the run's own, which nobody keeps; bench_tables adds lines to a file.
IN_OWN_FOLDER = ("scripts/site/", *(f"scripts/course/{name}.py" for name in (
    "workshop", "exercise_tree", "runner", "sandbox_walls", "judge", "similarity", "grade_all",
    "questions", "prebuilt")),
    *(f"scripts/bench/{name}.py" for name in ("bench", "bench_tables", "bench_peers")),
    *(f"scripts/pytorch/{name}.py" for name in ("compare_with_pytorch", "golden_states", "torch_speed", "torch_training")),
    "scripts/museum/", "scripts/plot/plot_offload.py", "scripts/lib/whole_file.py")
ANOTHER_USER = 12345


class WholeFile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.file = self.folder / "page.html"
        write_whole(self.file, "old")

    def assert_refused(self, path, says):
        with self.assertRaises(OSError) as caught:
            write_whole(path, "new")
        self.assertIn(says, str(caught.exception))
        self.assertIn(str(path), str(caught.exception))
        self.assertEqual(self.file.read_text(encoding="utf-8"), "old")
        self.assertEqual([name for name in os.listdir(self.folder) if name.endswith(".tmp")], [])

    def test_a_process_that_ends_at_a_call_leaves_the_old_file_or_the_new_one(self):
        for call, left in (("fsync", "old"), ("replace", "old"), ("close", "new")):
            with self.subTest(call=call):
                write_whole(self.file, "old")
                child = os.fork()
                if child == 0:
                    try:
                        with mock.patch(f"os.{call}", lambda *_: os._exit(9)):
                            write_whole(self.file, "new")
                    finally:
                        os._exit(0)
                self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 9)
                self.assertEqual(self.file.read_text(encoding="utf-8"), left)

    def test_a_full_disk_leaves_the_old_file(self):
        with mock.patch("os.fsync", side_effect=OSError(28, "No space left on device")):
            self.assert_refused(self.file, "No space left on device")
        if os.path.exists("/dev/full"):
            self.assert_refused(pathlib.Path("/dev/full"), "No space left on device")

    def test_a_file_that_the_shell_has_opened_is_written_to_and_nothing_is_said_in_it(self):
        with self.file.open("ab") as file:
            done = subprocess.run([sys.executable, "-c", r"import whole_file; whole_file.write_whole('/dev/fd/1', '+\ud800'); print('said')"],
                                  cwd=ROOT / "scripts/lib", stdout=file, stderr=subprocess.PIPE, check=True)
        self.assertEqual((self.file.read_text(encoding="utf-8"), done.stderr), ("old+?", b"said\n"))

    def test_a_pipe_waits_for_its_reader_though_not_for_ever(self):
        os.mkfifo(pipe := self.folder / "pipe")
        with mock.patch("whole_file.PATIENCE_S", 0.1):
            self.assert_refused(pipe, "no program has opened this pipe to read for a minute")
        with subprocess.Popen(["sh", "-c", 'sleep 0.3; exec cat "$0"', pipe], stdout=subprocess.PIPE) as reader:
            write_whole(pipe, b"x" * 100_000)
            self.assertEqual(len(reader.communicate()[0]), 100_000)

    def test_permissions_are_kept_and_respected(self):
        self.file.chmod(0o640)
        write_whole(self.file, b"old")
        self.assertEqual(self.file.stat().st_mode & 0o7777, 0o640)
        self.file.chmod(0o440)
        self.assert_refused(self.file, "write-protected")

    @unittest.skipUnless(sys.platform == "linux", "no other system has these functions")
    def test_the_access_list_is_kept(self):
        """Without it the file's group would have the rights that were the list's mask."""
        rights = [(1, 6, -1), (2, 6, ANOTHER_USER), (4, 0, -1), (16, 6, -1), (32, 0, -1)]  # owner, user, group, mask, others
        before = {"user.note": b"kept",
                  "system.posix_acl_access": struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *right) for right in rights)}
        try:
            for name, value in before.items():
                os.setxattr(self.file, name, value)
        except OSError as error:
            self.skipTest(f"not in this file system: {error}")
        write_whole(self.file, "new")
        self.assertEqual({name: os.getxattr(self.file, name) for name in before}, before)

    def test_a_link_leads_to_the_file_that_is_replaced(self):
        link = self.folder / "link"
        link.symlink_to("page.html")
        write_whole(link, "new")
        self.assertEqual((link.is_symlink(), self.file.read_text(encoding="utf-8")), (True, "new"))
        write_whole(link, "old")
        for name, target in (("a", "b"), ("b", "a")):
            (self.folder / name).symlink_to(target)
        self.assert_refused(self.folder / "a", "symbolic links")

    @unittest.skipIf(os.geteuid(), "only root can make links of another user")
    def test_a_link_of_another_user_is_not_followed_where_everybody_may_make_one(self):
        shared = self.folder / "shared"
        shared.mkdir()
        for name, target in (("link", self.file), ("folder", self.folder)):
            (shared / name).symlink_to(target)
            os.lchown(shared / name, ANOTHER_USER, ANOTHER_USER)
        write_whole(shared / "link", "old")  # the folder is root's alone
        shared.chmod(0o1777)
        self.assert_refused(shared / "link", "is a link of another user")
        self.assert_refused(shared / "folder/page.html", "is a link of another user")

    def test_scripts_write_nothing_else(self):
        others = [path for path in (file.relative_to(ROOT).as_posix() for file in (ROOT / "scripts").rglob("*.py"))
                  if not path.startswith(IN_OWN_FOLDER) and WRITES.search((ROOT / path).read_text(encoding="utf-8"))]
        self.assertEqual(others, [], "use write_whole(), or name them here if nobody keeps what they write")


if __name__ == "__main__":
    unittest.main(verbosity=2)
