"""The lessons on GPUs: the CPU's results, precision, orders of streams, what is refused, how they fail."""

import itertools
import os
import shutil
import subprocess
import unittest

from gpu_case import ALL, EMULATED, GPUS, LESSONS, GpuCase
from program_case import TIME_LIMIT_S

SEEDS = int(os.environ.get("RANKWISE_SEEDS", "10"))


class Results(GpuCase):
    def test_fast_arithmetic_gives_the_losses_of_the_cpu(self):
        for options in [[], ["--mask=full", "--dropout=0.2"], ["--mask=prefix:5", "--micro-batch=1"],
                        ["--recompute=block", "--micro-batch=2", "--clip=0.1"]]:
            with self.subTest(options=options):
                gpu = self.report_of("01", *self.options(*options))
                cpu = self.report_of("01", *self.options(*options), device="cpu")
                for a, b in zip(gpu["loss"] + gpu["grad_norm"], cpu["loss"] + cpu["grad_norm"]):
                    self.assertLess(abs(a - b), 2e-5 * b)

    def test_the_deviation_from_exact_arithmetic_is_within_bounds(self):
        report = self.report_of("01", *self.options("--steps=4", "--compare=4"))
        self.assertTrue(0 < report["deviation"]["parameters"] <= 1e-5, report["deviation"])
        report = self.report_of("01", *self.options("--compare=2", "--arithmetic=exact", "--dropout=0.1"))
        self.assertEqual(report["deviation"], {"steps": 2, "loss": 0, "parameters": 0})

    def test_text_is_generated(self):
        self.program = LESSONS["01"]
        done = self.run_program(*self.options("--device=cuda", "--sample=10", "--temperature=0"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("sample:", done.stdout)

    def test_checkpoints_go_on_on_the_other_device(self):
        fixed = self.options("--steps=4", "--arithmetic=exact")
        for first, second in [("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")]:
            with self.subTest(first=first, second=second):
                path = os.path.join(self.folder, f"{first}-{second}.h5")
                self.report_of("01", *fixed, f"--checkpoint={path}", "--stop-after=2", device=first)
                resumed = self.report_of("01", *fixed, f"--checkpoint={path}", "--resume", device=second)
                self.assertEqual(resumed["first_step"], 2)
                if second == first:
                    whole = self.report_of("01", *fixed, device=first)
                    self.assertEqual(resumed["digest"], whole["digest"])

    @unittest.skipUnless(EMULATED, "real tools draw the ranges")
    def test_ranges_have_the_names_of_the_trace(self):
        self.environment(EMULATED_CUDA_NVTX=1)
        self.program = LESSONS["01"]
        done = self.run_program(*self.options("--device=cuda"))
        for name in ("training step", "reading tokens", "validation"):
            self.assertIn(name, done.stdout + done.stderr)

    def test_placement_and_memory_are_told(self):
        report = self.report_of("03", *self.options(), ranks=2)
        self.assertEqual([place["gpu"] for place in report["placement"]], [0, 1 % GPUS])
        self.assertGreaterEqual(report["gpu_memory"]["in_use"], report["gpu_memory"]["counted"])


class Precision(GpuCase):
    BF16 = "--precision=bf16"

    def test_bf16_stays_near_the_cpu_and_near_exact_f32(self):
        for options in [[], ["--gradients=bf16", "--dropout=0.1"], ["--mask=full", "--recompute=block", "--micro-batch=2"]]:
            with self.subTest(options=options):
                gpu = self.report_of("01", *self.options("--steps=4", self.BF16, "--compare=4", *options))
                cpu = self.report_of("01", *self.options("--steps=4", self.BF16, *options), device="cpu")
                self.assertTrue(1e-6 < gpu["deviation"]["loss"] <= 1e-2, gpu["deviation"])
                for a, b in zip(gpu["loss"], cpu["loss"]):
                    self.assertLess(abs(a - b), 2e-3 * b)

    def test_tf32_rounds_factors_when_asked(self):
        asked, plain = (self.report_of("01", *self.options("--steps=4", "--compare=4", *o))["deviation"]
                        for o in (["--tf32"], []))
        for name in ("loss", "parameters"):
            self.assertTrue(3 * plain[name] < asked[name] <= 2e-3, (name, plain, asked))

    def test_bytes_a_parameter_are_those_of_the_cpu(self):
        for gradients in ("f32", "bf16"):
            gpu, cpu = (self.report_of("01", *self.options(self.BF16, f"--gradients={gradients}"), device=d)["memory"]
                        for d in ("cuda", "cpu"))
            for category in ("parameters", "gradients", "optimizer", "activations"):
                self.assertEqual(gpu[category], cpu[category])
            for name, bytes_ in gpu.items():
                self.assertEqual(bytes_["current"], bytes_["formula"], name)

    def test_exact_arithmetic_gives_one_digest_in_bf16_too(self):
        fixed = self.options("--arithmetic=exact", self.BF16, "--dropout=0.1")
        expected = self.report_of("01", *fixed)["digest"]
        if EMULATED:
            self.assertEqual(self.report_of("01", *fixed, device="cpu")["digest"], expected)
        for lesson, ranks, *options in [("03", 2, "--micro-batch=1"), ("03", 4, "--strategy=flat"),
                                        ("07", 2, "--micro-batch=1", *self.off("all", "disk")),
                                        ("07", 1, *self.off("parameters", "host"))]:
            for transport in self.transports(ranks):
                with self.subTest(lesson=lesson, ranks=ranks, transport=transport):
                    report = self.report_of(lesson, *fixed, *options, f"--transport={transport}", ranks=ranks)
                    self.assertEqual(report["digest"], expected)

    def test_gradients_travel_in_bf16(self):
        options = self.options("--global-batch=12", self.BF16, "--gradients=bf16")
        single = self.report_of("01", *options)
        for ranks in (2, 3):
            for transport in self.transports(ranks):
                with self.subTest(ranks=ranks, transport=transport):
                    report = self.report_of("03", *options, f"--transport={transport}", ranks=ranks)
                    for a, b in zip(report["loss"], single["loss"]):
                        self.assertLess(abs(a - b), 2e-3 * b)

    def test_a_sample_and_a_checkpoint_in_bf16(self):
        path = os.path.join(self.folder, "run.h5")
        fixed = self.options(self.BF16, "--steps=4")
        whole = self.report_of("01", *fixed)["digest"]
        self.report_of("01", *fixed, f"--checkpoint={path}", "--stop-after=2")
        self.assertEqual(self.report_of("01", *fixed, f"--checkpoint={path}", "--resume", "--sample=5")["digest"], whole)


@unittest.skipUnless(EMULATED, "real streams run in the order that they like")
class Orders(GpuCase):
    def test_the_order_of_streams_changes_nothing(self):
        digests = {"fast": set(), "exact": set()}
        for seed in range(1, SEEDS + 1):
            self.environment(EMULATED_CUDA_SEED=seed)
            arithmetic = "fast" if seed % 2 else "exact"
            transport = "nccl" if seed % 4 < 2 else "mpi"
            options = self.options(f"--arithmetic={arithmetic}", "--collectives=halving", "--bucket=5kB",
                                   "--micro-batch=1", f"--transport={transport}")
            report = self.report_of("03", *options, ranks=2)
            digests[arithmetic].add(report["digest"])
        self.assertEqual([len(found) for found in digests.values()], [1, 1])

    def test_nor_does_that_of_copies_between_tiers(self):
        fixed = self.options("--arithmetic=exact", "--micro-batch=1")
        expected = self.report_of("01", *fixed)["digest"]
        plans = itertools.cycle(itertools.product(("all", "optimizer", "parameters", "gradients"), ("host", "disk")))
        for seed, (what, tier) in zip(range(1, SEEDS + 1), plans):
            with self.subTest(seed=seed, what=what, tier=tier):
                self.environment(EMULATED_CUDA_SEED=seed)
                self.assertEqual(self.report_of("07", *fixed, *self.off(what, tier), ranks=2)["digest"], expected)


class Refusals(GpuCase):
    program = LESSONS["03"]

    def test_a_plan_that_is_larger_than_the_gpu(self):
        self.assert_refused("--device=cuda", "--model=gpt2-xl", "--global-batch=4096", "--vocabulary=256",
                            says=["this run needs", "more than GPU 0", "activations", "--recompute=block"])

    @unittest.skipUnless(EMULATED, "needs a small GPU")
    def test_ranks_that_share_a_gpu_share_its_memory(self):
        self.environment(EMULATED_CUDA_DEVICES=1, EMULATED_CUDA_MEMORY=120_000_000)
        self.assert_refused("--device=cuda", "--global-batch=64", ranks=2,
                            says=["this run needs 82,112,512 bytes a rank", "each of the 2 ranks on it has 60,000,000",
                                  "--micro-batch=32 --recompute=block would fit"])

    def test_a_limit_below_the_plan(self):
        self.assert_refused("--device=cuda", *self.options(), "--memory-limit=1MB", says=["--memory-limit=1,000,000"])

    def test_what_gpus_cannot_do(self):
        self.assert_refused("--device=cuda", *self.options(), "--collectives=shared", ranks=2,
                            says=["--collectives=shared cannot be combined with --device=cuda", "auto"])
        self.assert_refused("--transport=nccl", ranks=2, says=["--transport=nccl needs --device=cuda"])
        self.assert_refused("--device=cuda", "--transport=nccl", "--link=5us,1GB/s", ranks=2,
                            says=["cannot be combined with --transport=nccl", "--transport=mpi"])

    def test_more_ranks_than_gpus_over_nccl(self):
        if EMULATED:
            self.environment(EMULATED_CUDA_DEVICES=1)
        elif GPUS != 1:
            self.skipTest("there are several GPUs")
        self.assert_refused("--device=cuda", "--transport=nccl", ranks=2,
                            says=["2 ranks share the 1 GPU of this machine", "--transport=mpi", "at most 1"])
        done = self.run_program("--device=cuda", *self.options(), ranks=2)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("messages use MPI, through host memory, because ranks share a GPU", done.stdout)

    @unittest.skipUnless(EMULATED, "needs another machine")
    def test_machines_without_a_usable_gpu(self):
        self.environment(EMULATED_CUDA_DEVICES=0)
        self.assert_refused("--device=cuda", says=["--device=cuda, but this machine has no GPU", "--device=cpu"])
        self.environment(EMULATED_CUDA_DRIVER=12020)
        self.assert_refused("--device=cuda", ranks=2,
                            says=["the GPU's driver knows CUDA 12.2", "Install a newer driver"])
        done = self.run_program("--device=cuda", *self.options(), "--dry-run")  # plans need no GPU
        self.assertEqual(done.returncode, 0, done.stderr)


@unittest.skipUnless(EMULATED, "real GPUs do not fail when asked to")
class Failures(GpuCase):
    program = LESSONS["03"]

    def assert_fails(self, fault, *options, says, ranks=2):
        self.environment(EMULATED_CUDA_FAULT=fault)
        done = self.run_program("--device=cuda", *self.options(*options), ranks=ranks)
        self.assertEqual(done.returncode, 1, f"{fault}: {done.stdout}{done.stderr}")
        for text in says:
            self.assertRegex(done.stderr, text)
        self.assertEqual(done.stderr.count("rank 1 of 2:"), 1, done.stderr)

    def test_what_fails_later_ends_all_ranks_with_file_and_line(self):
        where = r"rank 1 of 2: [\w/]+\.(cpp|cu|hpp):\d+: "
        for fault, says in [("cudaMalloc:9:1", "out of device memory: GPU 1 cannot provide"),
                            ("kernel:30:1", "cudaErrorIllegalAddress|cudaErrorLaunchFailure|illegal"),
                            ("cublasLtMatmul:3:1", "cuBLAS failed at multiplying matrices: CUBLAS_STATUS"),
                            ("cudaMemcpyAsync:12:1", "CUDA failed at copying"),
                            ("cudaStreamCreateWithFlags:2:1", "CUDA failed at creating a stream")]:
            with self.subTest(fault=fault):
                self.assert_fails(fault, says=[where, says])
        for fault, says in [("ncclSend:2:1", "NCCL failed at sending a message"),
                            ("ncclCommInitRank:1:1", "NCCL failed at starting"),
                            ("ncclAsync:1:1", "NCCL failed at sending or receiving messages")]:
            with self.subTest(fault=fault):
                self.assert_fails(fault, "--transport=nccl", says=[where, says])

    def test_a_deadlock_over_nccl_is_named(self):
        hang = os.environ["HANG"]
        for case, says in [("early", "it left early, or skipped"),
                           ("receive", "rank 1 waits for a message that rank 3 does not send"),
                           ("slow", "rank 3 has not called collective")]:
            for transport in ("nccl", "mpi") if ALL else ("nccl",):
                with self.subTest(case=case, transport=transport):
                    program = os.path.join(self.folder, f"hang-on-gpus-{case}-{transport}")
                    shutil.copy(hang, program)
                    done = subprocess.run(["mpirun", "-np", "4", program, f"--case={case}", "--timeout=2",
                                           "--device=cuda", f"--transport={transport}"],
                                          capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)
                    self.assertEqual(done.returncode, 86, done.stdout + done.stderr)
                    self.assertIn(says, done.stderr)


if __name__ == "__main__":
    unittest.main()
