"""Deadlocked jobs: the watchdog names each cause within the time-out and 5 s, with status 86, and no process is left."""

import concurrent.futures
import math
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from program_case import ALL, mixed_job

HANG = os.environ["HANG"]  # tests/programs/hang.cpp, built
RANKS = 4
SLOWNESS = float(os.environ.get("RANKWISE_SLOWNESS", "1"))  # of this machine; time limits are for an idle one
TIMEOUT_S = min(math.ceil(2 * SLOWNESS), 10)  # less than the 20 s for which a rank of the program does something else
WITHIN_S = TIMEOUT_S + 5 * SLOWNESS
START_S = 6 * SLOWNESS  # what starting 4 processes may take
LIMIT_S = 60 * SLOWNESS

HERE = r"tests/programs/hang\.cpp:\d+"
SUM = rf"all-reduce \(ring\) of 1,024 f32 \({HERE}\)"
BUCKET = r"all-reduce \(ring\) of 1,024 f32 for \"bucket %d\" \(" + HERE + r"\)"
# Each step makes 3 buckets, 2 sums and a broadcast; the fourth step goes wrong.
FIRST, SUM_1, SUM_2, BROADCAST = 19, 22, 23, 24

# For each case: what the first line says.
CASES = {
    "skip": rf"in collective {FIRST + 1} of world, rank 2 calls {BUCKET % 2}, but ranks 0, 1 and 3 call {BUCKET % 1}: "
            r"rank 2 skipped a call, or made its calls in another order\.",
    "swap": rf"in collective {FIRST} of world, rank 1 calls {BUCKET % 1}, but ranks 0, 2 and 3 call {BUCKET % 0}: "
            r"rank 1 skipped a call, or made its calls in another order\.",
    "count": rf"in collective {SUM_1} of world, rank 1 calls all-reduce \(ring\) of 512 f32 \({HERE}\), "
             rf"but ranks 0, 2 and 3 call {SUM}: the counts differ\.",
    "type": rf"in collective {SUM_2} of world, rank 3 calls all-reduce \(ring\) of 1,024 i32 \({HERE}\), "
            rf"but ranks 0, 1 and 2 call {SUM}: the types differ\.",
    "group": rf"rank 1 calls broadcast \(ring\) of 1,024 f32 with root 0 \({HERE}\) of pair, but .*"
             rf" broadcast \(ring\) of 1,024 f32 with root 0 \({HERE}\) of world: the groups differ, .*",
    "handle": rf"rank 1 has not waited for a sum beside the rest \({HERE}\), which it started [\d.]+ s ago\.",
    "early": rf"rank 2 has not called collective \d+ of \w+, .*\({HERE}\), in which ranks 0, 1 and 3 wait: rank 2, "
             r"which has ended: it left early, or skipped a call\.",
    "receive": rf"rank 1 waits for a message that rank 3 does not send, 4,096 bytes from rank 3 "
               rf"for \"rows of step 3\" \({HERE}\): .*",
    "slow": r"rank 3 has not called collective \d+ of \w+, .* in which ranks 0, 1 and 2 wait: rank 3, which is in no "
            rf"collective; its last was .*; it is at a long computation \({HERE}\)\.",
    "refusing": r"rank 0 is in MPI_\w+, called by .*, and rank 1 is checking its options and files\.",
    "loops": r"no rank finishes a kernel, a block of a file or a message any more\.",
    "turn": r"rank 0 is in MPI_Barrier, called by rankwise::in_turn.*, and rank 1 has its turn\.",
    "sends": r"rank 0 is in MPI_Send of 16,777,216 bytes to rank 1, called by .*, and rank 1 is in MPI_Send of "
             r"16,777,216 bytes to rank 0, called by .*",
    "absent": r"rank 0 has not called collective \d+ of \w+, .*, in which ranks 2 and 3 wait: rank 0, which is in MPI_Send "
              r"of 16,777,216 bytes to rank 1, called by .*",
    "stopped": r"rank 0 has not called collective \d+ of \w+, .*, in which ranks 1, 2 and 3 wait: rank 0, which does "
               r"not answer\.",
}


class Job:
    """One run of the program, under a name that no other process has."""

    def __init__(self, folder, case, *options, apart=None):
        """`apart`: further options of rank 0 alone."""
        self.program = os.path.join(folder, f"hang-{case}-{os.getpid()}")
        shutil.copy(HANG, self.program)
        environment = dict(os.environ, OMPI_MCA_odls_base_sigkill_timeout="0")
        program = [self.program, f"--case={case}", f"--timeout={TIMEOUT_S}", *options]
        command = ["mpirun", "-np", str(RANKS), *program]
        if apart is not None:
            first = [option for option in program if option.split("=")[0] not in [a.split("=")[0] for a in apart]]
            command = mixed_job(RANKS, [*first, *apart], program)
        began = time.monotonic()
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment)
        except subprocess.TimeoutExpired:
            subprocess.run(["pkill", "-KILL", "-f", self.program], check=False)
            raise
        self.seconds = time.monotonic() - began
        self.status, self.out, self.err = done.returncode, done.stdout, done.stderr
        # mpirun may be back a moment before the system has cleared away the last rank.
        end = time.monotonic() + START_S
        while (left_behind := self.processes()) and time.monotonic() < end:
            time.sleep(0.05)
        self.left_behind = left_behind

    def processes(self):
        return subprocess.run(["pgrep", "-f", self.program], capture_output=True, text=True).stdout.split()

    def __str__(self):
        return f"status {self.status} after {self.seconds:.1f} s\n{self.out}\n{self.err}"


def processes(folder):
    """Processes whose command begins with a program in this folder."""
    found = subprocess.run(["pgrep", "-f", f"^{folder}/"], capture_output=True, text=True).stdout
    return [int(process) for process in found.split()]


def state(process):
    """One letter: T for one that is stopped; empty for one that has ended."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


class Watchdog(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def assert_ended(self, job, status, within_s):
        self.assertEqual(job.status, status, str(job))
        self.assertLess(job.seconds, within_s + START_S, str(job))
        self.assertEqual(job.left_behind, [], str(job))

    def test_what_hangs_is_named(self):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            jobs = dict(zip(CASES, pool.map(lambda case: Job(self.folder, case), CASES)))
        for case, job in jobs.items():
            with self.subTest(case=case):
                self.assert_ended(job, 86, WITHIN_S)
                said = re.findall(r"^watchdog: .*$", job.err, re.MULTILINE)
                self.assertEqual(len(said), 1, str(job))
                self.assertRegex(said[0], "^watchdog: " + CASES[case] + "$")
                for rank in range(RANKS):
                    self.assertEqual(len(re.findall(rf"^  rank {rank} ", job.err, re.MULTILINE)), 1, str(job))

    def test_what_fails_at_once_is_not_left_to_the_watchdog(self):
        thrown = Job(self.folder, "throw")
        self.assert_ended(thrown, 1, 5)
        self.assertRegex(thrown.err, rf"(?m)^rank 1 of 4: {HERE}: thrown on purpose")
        for case in ("killed", "left"):
            with self.subTest(case=case):
                job = Job(self.folder, case)
                self.assertNotEqual(job.status, 0, str(job))
                self.assert_ended(job, job.status, 5)
                self.assertRegex(job.err, "rank 2|PMIX ERROR|mpirun", str(job))

    def test_what_ends_well_ends_well(self):
        job = Job(self.folder, "nothing")
        self.assert_ended(job, 0, 0)
        self.assertEqual(job.err, "")

    def test_what_takes_several_time_outs_and_gets_on_ends_well(self):
        for case in ("kernel", "polls"):
            with self.subTest(case=case):
                job = Job(self.folder, case)
                self.assert_ended(job, 0, 3 * TIMEOUT_S)
                self.assertEqual(job.err, "")

    def test_a_rank_that_does_not_take_part_in_the_run_is_named(self):
        job = Job(self.folder, "nothing", apart=["--dry-run"])
        self.assert_ended(job, 86, WITHIN_S)
        self.assertRegex(job.err, r"(?m)^watchdog: rank 1 is in MPI_\w+, called by .*, and rank 0 has ended; it "
                                  r"never called a collective\.$")

    @unittest.skipUnless(ALL, "MPI's start has 30 s")
    def test_a_process_that_never_starts_mpi(self):
        command = mixed_job(2, ["true"], [HANG, "--case=nothing", f"--timeout={TIMEOUT_S}"])
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S + 30, check=False)
        self.assertEqual(done.returncode, 86, done.stdout + done.stderr)
        self.assertIn("rank 1: MPI has not started within 30 s", done.stderr)

    def test_ranks_may_wait_for_different_times(self):
        for last in ("--timeout=0", "--timeout=1000"):
            with self.subTest(last=last):
                job = Job(self.folder, "loops", apart=[last])
                self.assert_ended(job, 86, WITHIN_S)

    def test_messages_that_nobody_received_are_named_at_the_end(self):
        says = {"root": rf"rank 2 sent 5 messages to rank 3 by broadcast of world \({HERE}\), and rank 3 received 4 of them: ",
                "lost": r"rank 2 sent 1 message to rank 3 by MPI calls, and rank 3 received 0 of them: "}
        for case, text in says.items():
            with self.subTest(case=case):
                job = Job(self.folder, case)
                self.assert_ended(job, 1, 0)
                self.assertRegex(job.err, "^" + text)
                self.assertEqual(len(re.findall("^rank", job.err, re.MULTILINE)), 1, str(job))

    def test_a_job_that_was_suspended_for_longer_than_the_time_out_continues(self):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            job = pool.submit(Job, self.folder, "suspended")
            stopped = []
            while len(stopped) < RANKS and not job.done():
                time.sleep(0.05)
                stopped = [process for process in processes(self.folder) if state(process) == "T"]
            time.sleep(2 * TIMEOUT_S)
            for process in processes(self.folder):
                os.kill(process, signal.SIGCONT)
            job = job.result()
        self.assertEqual(len(stopped), RANKS, str(job))
        self.assertEqual(job.status, 0, str(job))
        self.assertNotIn("watchdog", job.err)

    def test_other_algorithms(self):
        for algorithm in ("tree", "halving", "shared", "library"):
            with self.subTest(algorithm=algorithm):
                job = Job(self.folder, "early", f"--collectives={algorithm}")
                self.assert_ended(job, 86, WITHIN_S)
                self.assertRegex(job.err, r"(?m)^watchdog: rank 2 has not called collective \d+ of \w+, ")


if __name__ == "__main__":
    unittest.main(verbosity=2)
