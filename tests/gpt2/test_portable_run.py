"""Exact arithmetic has the digests of tests/golden_digests.json with other compilers, at all levels of optimisation, with other
instructions, and on other processors, which QEMU emulates. Compilers and emulators that are not installed are left out; Debian's
packages are clang, g++-aarch64-linux-gnu, g++-riscv64-linux-gnu and qemu-user.

What is built is exact_run.cpp with the parts of the project that it needs. Where a digest differs, the first tensor that does is
named, out of the lines that it prints: those of the compiler of this build are what the others are held against.
"""

import concurrent.futures
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
PARTS = ("tests/gpt2/exact_run.cpp", "common/base/*.cpp", "common/memory/*.cpp", "data/corpus.cpp", "data/grammar.cpp",
         "data/loader.cpp", "data/permutation.cpp", "data/tokenizer.cpp", "gpt2/activations.cpp", "gpt2/adamw.cpp", "gpt2/chain.cpp",
         "gpt2/config.cpp", "gpt2/gradient_sum.cpp", "gpt2/model.cpp", "gpt2/parameter_table.cpp", "gpt2/experts/*.cpp",
         "gpt2/bert/*.cpp", "gpt2/record/recorder.cpp", "gpt2/record/condensed.cpp", "gpt2/kernels/reference/*.cpp", "gpt2/kernels/exact/*.cpp")
OWN = os.environ.get("CXX", "g++")
VARIANTS = (  # compiler, flags, emulator
    (OWN, "-O2", None),
    (OWN, "-O0", None),
    (OWN, "-O3 -march=native", None),
    (OWN, "-O3 -march=native -mno-avx512f", None),
    ("clang++", "-O0", None),
    ("clang++", "-O3 -march=native", None),
    ("aarch64-linux-gnu-g++", "-O3", "qemu-aarch64"),
    ("riscv64-linux-gnu-g++", "-O3", "qemu-riscv64"),
)
RUNS = {"": ("0", "f32"), "--dropout=0.1": ("0.1", "f32"), "--precision=bf16": ("0", "bf16")}  # by option of a lesson

with open(os.path.join(SOURCE, "tests/golden_digests.json"), encoding="utf-8") as golden_file:
    GOLDEN = json.load(golden_file)["gpt2"]


def checked(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}\nended with status {done.returncode}:\n{done.stderr}")
    return done.stdout


def folder_of_fmt():
    """Folder of the headers of fmt. They alone are shown to a compiler of another processor, not all of /usr/include."""
    with tempfile.NamedTemporaryFile("w", suffix=".cpp") as file:
        file.write("#include <fmt/format.h>\n")
        file.flush()
        return re.search(r"\S+/fmt(?=/format\.h)", checked([OWN, "-M", file.name])).group()


def build(folder, compiler, flags):
    """The program, built by this compiler."""
    os.symlink(folder_of_fmt(), os.path.join(folder, "fmt"))
    command = [compiler, "-std=c++20", "-ffp-contract=off", "-DFMT_HEADER_ONLY", "-ffunction-sections", "-fdata-sections",
               f"-I{SOURCE}", f"-I{folder}", *flags.split()]
    sources = [path for part in PARTS for path in glob.glob(os.path.join(SOURCE, part))
               if not path.endswith("base/digest.cpp")]  # that needs OpenSSL
    objects = [os.path.join(folder, f"{i}.o") for i in range(len(sources))]
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(lambda pair: checked([*command, "-c", pair[0], "-o", pair[1]]), zip(sources, objects)))
    program = os.path.join(folder, "exact_run")
    checked([compiler, "-static", "-Wl,--gc-sections", *objects, "-o", program])
    return program


def run(program, emulator, option):
    """The digest of five steps, and the lines that name each tensor on the way with its hash."""
    parameters = program + ".f32"
    lines = checked([*([emulator] if emulator else []), program, "5", *RUNS[option], parameters]).splitlines()
    with open(parameters, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest(), lines


class PortableRun(unittest.TestCase):
    def test_one_digest_with_every_compiler_and_on_every_processor(self):
        expected = {}
        for compiler, flags, emulator in VARIANTS:
            with self.subTest(compiler=compiler, flags=flags), tempfile.TemporaryDirectory() as folder:
                missing = [name for name in (compiler, emulator) if name and not shutil.which(name)]
                if missing:
                    self.skipTest(f"{' and '.join(missing)} not installed")
                program = build(folder, compiler, flags)
                for option in RUNS:
                    digest, lines = run(program, emulator, option)
                    for line, wanted in zip(lines, expected.setdefault(option, lines), strict=True):
                        self.assertEqual(line, wanted, "the first tensor that differs")
                    self.assertEqual(digest, GOLDEN[option], option)


if __name__ == "__main__":
    unittest.main(verbosity=2)
