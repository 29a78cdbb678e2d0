"""Lesson 07 on a disk that damages what lies there: one read or write of a block after the other. The run ends with status 1
and one message of rank, file and block; or what was damaged is used by nobody, and digest and checkpoint are those of a whole
disk. It never ends by a signal, never hangs, and never has other bits.

Some calls fail here, in each way and over all phases of a run. RANKWISE_ALL=1 has every call of every run fail in each way, with
files that are kept and with others. The file itself is tried on random damage in C++ (block_file.fuzz).
"""

import collections
import concurrent.futures
import filecmp
import itertools
import os
import re
import unittest

from failing_calls import FailingCase, calls_in, failing

ALL = bool(os.environ.get("RANKWISE_ALL"))
RUNS = [  # ranks, options of a step (one pass; two that are added up; updates beside the backward pass), options of the file
    (1, (), ()),
    (2, (), ("--keep",)),
    (2, ("--micro-batch=1",), ()),
    (1, ("--clip=0",), ()),
]
if ALL:
    RUNS = list(itertools.product((1, 2), ((), ("--micro-batch=1",), ("--clip=0",)), ((), ("--keep",))))
NOTICED = ("flip", "cut", "error")  # whatever is read, but for the probes
SOMETIMES = ("elsewhere", "lost")  # where there should be something else, and it is used
PROBES = 2  # the first reads, each of a file without content: can it be read past the page cache?
FEW = 5  # calls of a run


class DamagedBlocks(FailingCase):
    def run_in(self, folder, run, environment):
        ranks, options, keep = run
        return self.run_failing(ranks, "07_offload", "--steps=2", "--offload=all", f"--tier=disk:{folder}", *options, *keep,
                                f"--report={folder}.json", f"--checkpoint={folder}.h5", environment=environment)

    def undisturbed(self, run, how, rank):
        """A folder after a run without faults, and the number of its calls that could fail."""
        folder = self.new_folder("whole", run, how, rank)
        done = self.run_in(folder, run, failing(folder, how=how, rank=rank, log=folder + ".log"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return folder, len(calls_in(folder + ".log"))

    def fail_at(self, run, how, rank, call, whole):
        ranks, _, keep = run
        folder = self.new_folder(run, how, rank, call)
        done = self.run_in(folder, run, failing(folder, how=how, rank=rank, call=call, once=1))
        probe = how != "lost" and call <= PROBES
        with self.subTest(run=run, how=how, rank=rank, call=call, said=done.stdout + done.stderr):
            self.assertIn(done.returncode, (0,) if probe else (1,) if how in NOTICED else (0, 1))
            said = re.findall(r"^rank \d of \d: .*", done.stderr, re.MULTILINE)
            self.assertEqual(len(said), done.returncode)
            if done.returncode == 0 or os.path.exists(folder + ".h5"):
                self.assertTrue(filecmp.cmp(folder + ".h5", whole + ".h5", shallow=False))
            if done.returncode == 0:
                self.assertEqual(self.digest(folder), self.digest(whole))
            else:
                name = f"{folder}/offload.rank{rank}" if keep else f"the offload file of rank {rank} in {folder}"
                self.assertRegex(said[0], rf"^rank {rank} of {ranks}: .*{re.escape(name)}: block \d+ of \d+ "
                                          r"\(bytes [\d,]+ to [\d,]+\) (is damaged: its checksum is|cannot be read: )")
            self.assertEqual(set(os.listdir(folder)), {f"offload.rank{r}" for r in range(ranks)} if keep else set())
        self.remove(folder)
        return how, done.returncode

    def digest(self, folder):
        return self.report_in(folder + ".json")["digest"]

    def tries(self):
        for number, run in enumerate(RUNS):
            for rank in range(run[0]) if ALL else [number % run[0]]:
                for counted, kinds in (("flip", (*NOTICED, "elsewhere")), ("lost", ("lost",))):
                    whole, calls = self.undisturbed(run, counted, rank)
                    self.assertGreater(calls, 20)
                    few = calls if ALL else FEW
                    for how, i in itertools.product(kinds, range(few)):  # the first call, the last one, and some between
                        yield run, how, rank, 1 + (calls - 1) * i // (few - 1), whole

    def test_one_call_after_the_other(self):
        with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
            found = collections.Counter(pool.map(lambda arguments: self.fail_at(*arguments), self.tries()))
        print(", ".join(f"{how} status {status}: {n}" for (how, status), n in sorted(found.items())))
        for how in (*NOTICED, *SOMETIMES):
            self.assertGreater(found[how, 1], 0, how)

    def test_what_another_run_has_kept_is_not_read(self):
        run = RUNS[1][0], RUNS[1][1], ("--keep",)
        whole, _ = self.undisturbed(run, "flip", 0)
        with open(os.path.join(whole, "offload.rank0"), "rb") as file:
            kept = file.read()
        for number, content in enumerate((b"", kept[:-1], kept[:4096], b"\xff" * len(kept), kept + kept)):
            folder = self.new_folder("before", number)
            for rank in range(2):
                with open(os.path.join(folder, f"offload.rank{rank}"), "wb") as file:
                    file.write(content)
            done = self.run_in(folder, run, {})
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(self.digest(folder), self.digest(whole))
            self.assertTrue(filecmp.cmp(os.path.join(folder, "offload.rank0"), os.path.join(whole, "offload.rank0"),
                                        shallow=False))


if __name__ == "__main__":
    unittest.main(verbosity=2)
