#!/usr/bin/env python3
"""Times whole training steps beside the best matrix products of this machine's libraries, lesson 01 in several ways, the
lessons that shard or divide a model beside those that do not, and all-reduce by several algorithms beside the MPI library's own.

    scripts/bench/bench.py [--case=NAME]... [--rounds=N] [--write]
    scripts/bench/bench.py --case=ways [--rounds=N] [OPTION OF THE LESSON]...
    scripts/bench/bench.py --case=peers|peer-ranks [--python=PROGRAM] [--rounds=N] [--write]
    scripts/bench/bench.py --case=llm.c --llmc=PROGRAM [--rounds=N] [--write]

What is compared takes turns within one run, so that a machine that grows slower slows all of it; what is shown is the
median of the rounds. "peers" are steps of PyTorch on one rank, "peer-ranks" on two; PROGRAM has to have it. "llm.c" is a step of
its train_gpt2. They are measured only when they are asked for.
A machine that is busy with other things is refused, because its figures say nothing. "below" in a
table says that a floor is not met; the status is 0 all the same.

--write keeps the tables in docs/performance.md, which also says what is measured and how, the pictures beside it, and the ratios
of training steps in scripts/bench/ratios.json, to which scripts/bench/check_ratios.py holds later commits at night. Every
run leaves build/bench/NAME.json and adds its rounds to build/bench/bench.csv and build/bench/collectives.csv.
"""

import contextlib
import datetime
import json
import os
import pathlib
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time

import bench_collectives
import bench_lessons
import bench_peers
import plot_bandwidth
from svg import Refused, option_parser, run_script, write_whole
from bench_tables import (Case, append_csv, bf16_tables, csv_rows, machine_rates_table, memory_table, ratios_of,
                          replace_block, torch_config, training_steps_table, ways_table, where_table, write_page)

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("RANKWISE_BUILD", ROOT / "build"))
PAGE = ROOT / "docs/performance.md"
RATIOS = ROOT / "scripts/bench/ratios.json"
CASES = [
    Case("gpt2-4x64", "gpt2 B=4 T=64", ["--model=gpt2", "--batch=4", "--sequence=64"], rounds=12, floor=0.75,
         speed_up_floor=1.7, pytorch=0.68, llm_c=0.17),
    Case("gpt2-1x1024", "gpt2 B=1 T=1024", ["--model=gpt2", "--batch=1", "--sequence=1024"], rounds=7, floor=0.80,
         speed_up_floor=1.85, pytorch=0.73, llm_c=0.11),
    Case("mini-8x256", "mini B=8 T=256", ["--model=mini", "--batch=8", "--sequence=256"], rounds=12, floor=0.78),
    Case("small-12x64", "4 x 128 B=12 T=64",
         ["--layers=4", "--heads=4", "--channels=128", "--context=64", "--vocabulary=256", "--batch=12",
          "--sequence=64"], rounds=12, floor=0.70, pytorch=0.50),
    Case("small-3x4x64", "the same in 3 passes of 4",
         ["--layers=4", "--heads=4", "--channels=128", "--context=64", "--vocabulary=256", "--batch=12",
          "--micro-batch=4", "--sequence=64"], rounds=12),
]
BF16_CASES = [  # steps in bf16, in turns with steps in f32
    Case("gpt2-1x1024-bf16", "gpt2 B=1 T=1024",
         ["--model=gpt2", "--batch=1", "--sequence=1024", "--precision=bf16", "--beside-f32"], rounds=5),
]
WAYS = {
    "one thread": ["--threads=1"],
    "two threads": ["--threads=2"],
    "recomputation": ["--threads=1", "--recompute=block"],
    "16 passes a step": ["--threads=1", "--micro-batch=1"],
    "dropout 0.1": ["--threads=1", "--dropout=0.1"],
    "exact arithmetic": ["--threads=1", "--arithmetic=exact"],
}
WAYS_ROUNDS = 3
MOST_BUSY = 0.3  # processors that others may keep busy, before a case and while it is measured
TRIES = 3        # seconds of patience before a case


# ---- A machine that is busy --------------------------------------------------------------------------------------------


def busy_seconds():
    """Seconds for which the processors have been busy, all together, by anybody; None where there is no /proc."""
    try:
        line = pathlib.Path("/proc/stat").read_text(encoding="ascii").split("\n")[0]
    except OSError:
        return None
    fields = [int(field) for field in line.split()[1:]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")  # all but idle and waiting for a disk


def own_seconds():
    """Seconds for which this script and the programs that it has run were busy."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


class Watch:
    """Sees how many processors others keep busy, from its making on."""

    def __init__(self):
        self.begin = (time.monotonic(), busy_seconds(), own_seconds())

    def others(self):
        """Processors that others kept busy, on average; the load of the last minute where there is no /proc."""
        elapsed, own = time.monotonic() - self.begin[0], own_seconds() - self.begin[2]
        if self.begin[1] is None:
            return os.getloadavg()[0] - own / elapsed
        return (busy_seconds() - self.begin[1] - own) / elapsed


def refuse_if_busy(others, when):
    """Refuses a machine of which other programs keep too many processors busy."""
    if others > MOST_BUSY:
        raise Refused(f"{others:.1f} processors of this machine are busy with other things {when}.\n"
                      "       Figures would say nothing; wait for it to be idle.")


def wait_for_idle_machine(name):
    """Gives others a few seconds to finish, then refuses."""
    for _ in range(TRIES):
        watch = Watch()
        time.sleep(1)
        others = watch.others()
        if others <= MOST_BUSY:
            return
    refuse_if_busy(others, f"before {name} is measured")


# ---- Measuring ---------------------------------------------------------------------------------------------------------


def run_program(command, environment=None):
    """Runs a program and returns its output. If it fails, this script ends with its status, for it has said why."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True, check=False,
                          env={**os.environ, **(environment or {})})
    if done.returncode != 0:
        sys.exit(done.returncode)
    return done.stdout


def watched(name, measure, *arguments):
    """Returns the result of `measure`, on a machine that was idle before and left alone meanwhile."""
    wait_for_idle_machine(name)
    print(f"# measuring {name}", file=sys.stderr, flush=True)
    watch = Watch()
    result = measure(*arguments)
    refuse_if_busy(watch.others(), f"while {name} was measured")
    return result


def kept(name, text):
    """The document that a program printed; it stays in build/bench, too."""
    path = BUILD / f"bench/{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
    return json.loads(text)


def measure_case(case, rounds):
    """Runs training_step and returns its document."""
    command = [BUILD / "tests/training_step", *case.options, f"--rounds={rounds or case.rounds}"]
    return kept(case.name, run_program(command))


def measure_run(run, rounds):
    """Runs all_reduce and returns its document."""
    return kept(run.name, run_program(run.command(BUILD, rounds), run.environment))


def report_of(command, folder, environment=None):
    """The report of one run of a lesson."""
    report = pathlib.Path(folder) / "report.json"
    run_program([*command, f"--report={report}"], environment)
    return json.loads(report.read_text(encoding="utf-8"))


def measure_way(options, folder):
    """Step time in seconds and TFLOP/s of one run of lesson 01."""
    measured = report_of([BUILD / "lessons/01_single_device", "--steps=6", *options], folder)["time"]
    return measured["step_s"], measured["tflops"]


def measure_ways(rounds, options):
    """All ways, once a round."""
    with tempfile.TemporaryDirectory() as folder:
        return [{way: measure_way([*ways, *options], folder) for way, ways in WAYS.items()}
                for _ in range(rounds or WAYS_ROUNDS)]


@contextlib.contextmanager
def folder_with_tokens():
    """A folder, and in it few tokens, so that validation takes no time."""
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        text, tokens = (pathlib.Path(folder) / name for name in ("text.txt", "text.h5"))
        text.write_text(bench_lessons.TEXT, encoding="utf-8")
        run_program([BUILD / "data/prepare", "--tokenizer=byte", text, tokens])
        yield folder, tokens


def turns_of(commands, rounds):
    """The reports of several runs by their names, once a round; commands(tokens, folder) gives what to start by name."""
    with folder_with_tokens() as (folder, tokens):
        return [{name: report_of(command, folder) for name, command in commands(tokens, folder).items()}
                for _ in range(rounds)]


def measure_turns(name, comparison, rounds):
    """The reports of all ways of a comparison, once a round."""
    turns = turns_of(lambda tokens, _: {way.title: way.command(BUILD, tokens) for way in comparison.ways}, rounds or comparison.rounds)
    return kept(name, json.dumps(turns))


def measure_offload(rounds):
    """The reports of lessons 06 and 07, once a round."""
    turns = turns_of(lambda tokens, folder: bench_lessons.offload_commands(BUILD, tokens, folder), rounds or bench_lessons.OFFLOAD_ROUNDS)
    kept("offload", json.dumps([[[*name, report] for name, report in turn.items()] for turn in turns]))
    return turns


def seconds_to(line, command):
    """Seconds from the launch of a program until it prints a line that matches, and the match."""
    begin = time.monotonic()
    with subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for text in process.stdout:
            if found := re.match(line, text):
                seconds = time.monotonic() - begin
                process.stdout.read()
                return seconds, found
    raise Refused(f"{command[-1]} failed to start.\n       Start it by hand to see why.")


def seconds_to_first_step(command):
    """Seconds from the launch of lesson 01 until its first step begins."""
    seconds, found = seconds_to(bench_lessons.FIRST_STEP, command)
    return seconds - float(found[1]) / 1000


def measure_startup(rounds):
    """Seconds of the start of an empty program and of lesson 01, by launch, once a round."""
    with folder_with_tokens() as (_, tokens):
        turns = [{launch: (seconds_to(bench_lessons.FIRST_LINE, empty)[0], seconds_to_first_step(lesson))
                  for launch, (empty, lesson) in bench_lessons.startup_commands(BUILD, tokens).items()}
                 for _ in range(rounds or bench_lessons.STARTUP_ROUNDS)]
    return kept("start-up", json.dumps(turns))


@contextlib.contextmanager
def torch_steps(python, job):
    """A function that returns the seconds of one of PyTorch's steps each time that it is called."""
    command = [python, ROOT / "scripts/pytorch/torch_speed.py", "step", str(bench_peers.TURN_S), job]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          env=bench_peers.environment()) as process:
        def answer():
            line = process.stdout.readline()
            if not line:
                raise Refused(f"{python} failed to train with PyTorch.")
            return json.loads(line)

        def step():
            process.stdin.write("\n")
            process.stdin.flush()
            return answer()["step_s"]

        if not answer():
            raise Refused(f"{python} has no PyTorch.\n       Name a Python that has: --python=PROGRAM.")
        yield step
        process.stdin.close()


def measure_peer(case, precision, python, rounds):
    """Tokens of a step, and seconds of it by way, here and in PyTorch, once a round."""
    own = bench_peers.own_command(BUILD, case, precision)
    document = json.loads(run_program(own))
    with contextlib.ExitStack() as stack:
        ways = {way: stack.enter_context(torch_steps(python, bench_peers.job(document, precision, way)))
                for way in bench_peers.WAYS}
        turns = [{"own": json.loads(run_program(own))["rounds"][0]["step_s"][-1],
                  **{way: step() for way, step in ways.items()}} for _ in range(rounds or bench_peers.ROUNDS)]
    return document["batch"] * document["sequence"], turns


def measure_peers(python, rounds):
    """All cases but the last, in both precisions."""
    measured = [(case, precision, *measure_peer(case, precision, python, rounds))
                for case in CASES[:-1] for precision in bench_peers.PRECISIONS]
    kept("peers", json.dumps([[case.name, *more] for case, *more in measured]))
    return measured


def measure_llmc(program, rounds):
    """Seconds of a step of the first case in f32, here and by a program of llm.c, once a round."""
    own, turns = bench_peers.own_command(BUILD, CASES[0], "f32"), []
    with tempfile.TemporaryDirectory() as folder:
        bench_peers.prepare_cpu(folder)
        for _ in range(rounds or bench_peers.ROUNDS):
            turns.append({"own": json.loads(run_program(own))["rounds"][0]["step_s"][-1],
                          "llm.c": bench_peers.cpu_step(program, folder, bench_peers.environment())})
            if turns[-1]["llm.c"] is None:
                raise Refused(f"{program} made no {bench_peers.STEPS} steps.\n       Build train_gpt2 of llm.c, and name it.")
    return kept("llm.c", json.dumps(turns))


def measure_peer_ranks(python, rounds):
    """The reports of lessons 03 and 06 and of PyTorch for each model, once a round."""
    measured = {}
    with folder_with_tokens() as (folder, tokens):
        config = pathlib.Path(folder) / "config.json"
        for model in bench_peers.MODELS:
            config.write_text(json.dumps(torch_config(model.sizes)), encoding="utf-8")
            started = bench_peers.rank_commands(BUILD, python, model, tokens, config)
            measured[model.name] = [{way: report_of(command, folder, bench_peers.environment(1))
                                     for way, command in started.items()} for _ in range(rounds or bench_peers.ROUNDS)]
    kept("peer-ranks", json.dumps({name: [{" ".join(way): report for way, report in turn.items()} for turn in turns]
                                   for name, turns in measured.items()}))
    return measured


@contextlib.contextmanager
def busy_processes(count):
    """The given number of processes that compute without end; their time counts as this script's own."""
    processes = [subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure_situation(situation, tokens, folder):
    """Seconds of a step by way and policy, in one situation."""
    with busy_processes(situation.processes):
        return {way: {policy: report_of(bench_lessons.busy_command(way, BUILD, tokens, situation), folder,
                                        bench_lessons.waits(policy))["time"]["step_s"]
                      for policy in [*bench_lessons.OTHER_POLICIES, bench_lessons.POLICY]}
                for way in bench_lessons.BUSY_WAYS}


def measure_busy(rounds):
    """Seconds of a step by situation, way and policy, once a round."""
    with folder_with_tokens() as (folder, tokens):
        turns = [{situation.title: measure_situation(situation, tokens, folder) for situation in bench_lessons.SITUATIONS}
                 for _ in range(rounds or bench_lessons.BUSY_ROUNDS)]
    return kept("busy", json.dumps(turns))


# ---- What is kept ------------------------------------------------------------------------------------------------------


def commit():
    """The commit that is measured; "dirty" when files differ from it. Git itself says why it is unknown."""
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.strip() or "unknown"


def processor_fields():
    """Fields of the processor in Linux's /proc/cpuinfo; empty elsewhere."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def multiplies_bf16(fields):
    """True if the processor has instructions that multiply bf16."""
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(fields.get("flags", "").split())


def processor():
    """Name, widest vectors and bf16 instructions of the processor."""
    fields = processor_fields()
    flags = fields.get("flags", "").split()
    vectors = next((name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags), None)
    bf16 = next((name for flag, name in (("amx_bf16", "AMX"), ("avx512_bf16", "bf16")) if flag in flags), None)
    name = fields.get("model name", platform.processor() or platform.machine())
    return ", ".join(filter(None, (name, vectors, bf16)))


def machine_text(date, **more):
    """Commit, date and machine of the figures."""
    lines = {"commit": commit(), "date": date, "processor": processor(), "cores": str(os.cpu_count()),
             "system": f"{platform.system()} {platform.machine()}", **more}
    return "".join(f"{name:<11}{value}\n" for name, value in lines.items())


# The blocks of the page that have a table alone and the machine of its day: the case, the block, what makes the table, and what measures.
TABLES = [("sharding", "sharding", bench_lessons.SHARDING.table, lambda o: measure_turns("sharding", bench_lessons.SHARDING, o.rounds)),
          ("offload", "offload", bench_lessons.offload_table, lambda o: measure_offload(o.rounds)),
          ("tensor", "tensor parallelism", bench_lessons.TENSOR.table, lambda o: measure_turns("tensor", bench_lessons.TENSOR, o.rounds)),
          ("pipeline", "pipeline parallelism", bench_lessons.PIPELINE.table,
           lambda o: measure_turns("pipeline", bench_lessons.PIPELINE, o.rounds)),
          ("start-up", "start-up", bench_lessons.startup_table, lambda o: measure_startup(o.rounds)),
          ("busy", "busy machines", bench_lessons.busy_table, lambda o: measure_busy(o.rounds)),
          ("peers", "peers", bench_peers.peers_table, lambda o: measure_peers(o.python, o.rounds)),
          ("peer-ranks", "peers on ranks", bench_peers.peer_ranks_table, lambda o: measure_peer_ranks(o.python, o.rounds)),
          ("llm.c", "llm.c", bench_peers.cpu_table, lambda o: measure_llmc(o.llmc, o.rounds))]
PEERS = ["peers", "peer-ranks", "llm.c"]  # measured only when they are asked for
# Cases that have a table for themselves.
ALONE = [[name] for name in [*(case.name for case in BF16_CASES), *(case for case, *_ in TABLES), "collectives"]]
BLOCKS = ["machine", "training steps", "machine rates", "memory", "where the time goes", "machine of bf16", "bf16", "ways of lesson 01",
          *(name for _, block, *_ in TABLES for name in (f"machine of {block}", block)),
          "machine of all-reduce", "all-reduce", "more ranks than cores"]


def blocks_of(measured, in_bf16, collectives, others, date):
    """All tables by the name of their block in the page; those that nothing was measured for are left out. `others`: what was
    measured of other cases, by case."""
    blocks = {}
    if measured:
        first = measured[0][1]
        blocks["machine"] = machine_text(date, compiler=first["compiler"], libraries=", ".join(first["libraries"]))
        blocks["training steps"] = training_steps_table(measured)
        blocks["machine rates"] = machine_rates_table(measured)
        blocks["memory"] = memory_table(measured)
        blocks["where the time goes"] = "\n".join(where_table(*pair) for pair in measured)
    if in_bf16:
        first = in_bf16[0][1]
        blocks["machine of bf16"] = machine_text(date, compiler=first["compiler"], libraries=", ".join(first["libraries"]))
        blocks["bf16"] = bf16_tables(in_bf16, multiplies_bf16(processor_fields()))
    if "ways" in others:
        blocks["ways of lesson 01"] = ways_table(others["ways"])
    if collectives:
        blocks["machine of all-reduce"] = machine_text(date, library=collectives[0][1]["library"])
        blocks.update(bench_collectives.collective_blocks(collectives))
    for case, block, table, _ in TABLES:
        if case in others:
            blocks[f"machine of {block}"], blocks[block] = machine_text(date), table(others[case])
    return blocks


def recorded_ratios():
    """The ratios that --write has recorded, by processor and case."""
    return json.loads(RATIOS.read_text(encoding="utf-8")) if RATIOS.exists() else {}


def record_ratios(measured):
    """Keeps the ratios of the cases for this processor."""
    recorded = recorded_ratios()
    recorded.setdefault(processor(), {}).update({case.name: ratios_of(document) for case, document in measured})
    write_whole(RATIOS, json.dumps(recorded, indent=1, sort_keys=True) + "\n")


def check_page(page):
    """Refuses a page that lacks a mark, before anything is measured."""
    text = page.read_text(encoding="utf-8")
    for name in BLOCKS:
        try:
            replace_block(text, name, "")
        except ValueError as error:
            raise Refused(f"{page.name}: {error}.\n       Give it that line, and a block of ``` below it.") from error


# ---- Command line ------------------------------------------------------------------------------------------------------


def parse(arguments):
    """The options, and those that go on to the lesson."""
    names = [case.name for case in CASES + BF16_CASES] + ["ways", *(case for case, *_ in TABLES if case not in PEERS), "collectives"]
    parser = option_parser(__file__, "Times training steps and all-reduce; docs/performance.md says how.")
    parser.add_argument("--case", action="append", choices=[*names, *PEERS], help="measure only this; may be repeated")
    parser.add_argument("--rounds", type=int, help="turns that each measurement gets (default: 3 to 12)")
    parser.add_argument("--python", default=sys.executable, help="with PyTorch, for --case=peers and --case=peer-ranks")
    parser.add_argument("--llmc", metavar="PROGRAM", help="train_gpt2 of llm.c, for --case=llm.c")
    parser.add_argument("--write", action="store_true", help="keep the tables in docs/performance.md")
    options, for_lesson = parser.parse_known_args(arguments)
    if for_lesson and options.case != ["ways"]:
        raise Refused(f"{for_lesson[0]} is no option of the bench.\n"
                      "       Options of lesson 01 go with --case=ways; the other cases are what they are.")
    if options.rounds is not None and options.rounds < 1:
        raise Refused(f"--rounds={options.rounds} is too small.\n       Use --rounds=1 or more.")
    if "llm.c" in (options.case or []) and not options.llmc:
        raise Refused("--case=llm.c needs a program of llm.c.\n       Name its train_gpt2: --llmc=PROGRAM.")
    if options.write and options.case not in (None, *ALONE):
        raise Refused("--write keeps all tables of one run, and --case leaves some out.\n"
                      f"       Use one of them; only {' and '.join(f'--case={alone}' for [alone] in ALONE)} have tables for "
                      "themselves.")
    options.case = options.case or names
    return options, for_lesson


def main(arguments):
    """Measures, prints, keeps."""
    options, for_lesson = parse(arguments)
    if options.write:
        check_page(PAGE)
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    measured, in_bf16 = ([(case, watched(case.name, measure_case, case, options.rounds))
                          for case in cases if case.name in options.case] for cases in (CASES, BF16_CASES))
    others = {"ways": watched("ways", measure_ways, options.rounds, for_lesson)} if "ways" in options.case else {}
    others |= {case: watched(case, measure, options) for case, _, _, measure in TABLES if case in options.case}
    collectives = [(run, watched(run.name, measure_run, run, options.rounds))
                   for run in bench_collectives.RUNS if "collectives" in options.case]

    blocks = blocks_of(measured, in_bf16, collectives, others, date)
    print("\n".join(blocks.values()), end="")
    rows = [row for pair in measured + in_bf16 for row in csv_rows(*pair, date, commit())]
    append_csv(BUILD / "bench/bench.csv", rows)
    table = BUILD / "bench/collectives.csv"
    append_csv(table, bench_collectives.csv_rows(collectives, date, commit()), bench_collectives.CSV_COLUMNS)
    if options.write:
        write_page(PAGE, blocks)
    if options.write and measured + in_bf16:
        record_ratios(measured + in_bf16)
    if options.write and collectives:
        write_whole(PAGE.with_name("collectives.svg"), plot_bandwidth.draw(plot_bandwidth.read(table)))
    if options.write and "peers" in others:
        write_whole(PAGE.with_name("peers.svg"), bench_peers.picture(others["peers"]))


if __name__ == "__main__":
    run_script(main)
