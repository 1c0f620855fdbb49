"""Builds the workspace's tests, runs them, and says what took how long.

    python3 tests/run.py --profile test-release --report FILE [--script NAME DIRECTORY COMMAND]...

Programs and scripts that wait for servers run beside others. What must have the process to itself
and watches its memory runs last, alone. A failure does not stop the rest; every failing test is
named with the command that runs just that one. It needs nothing but cargo and Python.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

SLOWEST = 20
# Peers of the benchmarks are no part of what is tested.
SELECTION = ["--workspace", "--exclude", "admittance-bench", "--all-features"]
# These start real servers and wait for them, test by test. How many tests of each run at once.
WAITING = {"admittance-postgres": 2, "admittance-redis": 2, "admittance-cli": 2, "admittance-testkit": 2}
LONGEST = "admittance-postgres"
# So many of these programs run at once; what computes fills the gaps they leave, and gives way.
WAITING_AT_ONCE = 2
GIVES_WAY = 19
# These count what the process allocates or how large it grows, or fork it.
ALONE = {f"admittance {target}" for target in ("allocation", "fork", "sketch_memory")}
ALONE.add("admittance-fuzz smoke")


@dataclasses.dataclass
class Program:
    """A test program that cargo has built."""

    package: str
    target: str
    kind: str
    executable: str
    directory: str

    @property
    def name(self) -> str:
        return f"{self.package} {self.target if self.kind == 'test' else '--' + self.kind}"

    def command(self, profile: str, test: str) -> str:
        which = f"--test {self.target}" if self.kind == "test" else f"--{self.kind}"
        if self.kind == "bin":
            which += f" {self.target}"
        return f"cargo test --profile {profile} -p {self.package} --all-features {which} {test} -- --exact"


def build(profile: str) -> list[Program]:
    arguments = ["cargo", "test", "--no-run", "--profile", profile, *SELECTION]
    arguments += ["--message-format", "json-render-diagnostics"]
    built = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode != 0:
        sys.exit("the tests do not compile")
    programs = []
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message.get("profile", {}).get("test"):
            manifest = pathlib.Path(message["manifest_path"])
            package = re.search(r'^name = "(.*)"', manifest.read_text("utf-8"), re.MULTILINE)
            target = message["target"]
            programs.append(
                Program(
                    package=package[1],
                    target=target["name"],
                    kind=target["kind"][0],
                    executable=message["executable"],
                    directory=str(manifest.parent),
                )
            )
    return programs


@dataclasses.dataclass
class Script:
    """A test that cargo does not build, as a line for the shell."""

    name: str
    directory: str
    line: str


@dataclasses.dataclass
class Ended:
    """What a command said, what it ended with, and what it took with all that it started."""

    stdout: str
    returncode: int
    seconds: float
    of_processors: float


@dataclasses.dataclass
class Outcome:
    """How a program or script went."""

    name: str
    ended: Ended
    passed: int
    failures: list[str]
    times: list[tuple[float, str]]


def told(command: list[str], gives_way: bool = False, **options: object) -> Ended:
    start = time.monotonic()
    process = subprocess.Popen(
        ["nice", "-n", str(GIVES_WAY), *command] if gives_way else command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        **options,
    )
    stdout = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - start
    return Ended(stdout, process.returncode, seconds, usage.ru_utime + usage.ru_stime)


def run_script(script: Script) -> Outcome:
    ended = told(["bash", "-c", script.line], cwd=script.directory)
    # The last line that counts; a script that counts nothing is one test.
    counts = re.findall(r"\b(\d+) passed", ended.stdout)
    passed = int(counts[-1]) if counts else int(ended.returncode == 0)
    failures = []
    if ended.returncode != 0:
        names = re.findall(r"^FAILED (\S+)", ended.stdout, re.MULTILINE) or [""]
        failures = [f"(cd {script.directory} && {script.line}) # {name}" for name in names]
    return Outcome(script.name, ended, passed, failures, [])


def run(program: Program, profile: str) -> Outcome:
    # `--report-time` is behind a flag that a stable compiler's tests want asked for by name.
    environment = os.environ | {"RUSTC_BOOTSTRAP": "1", "CARGO_MANIFEST_DIR": program.directory}
    command = [program.executable, "-Zunstable-options", "--report-time"]
    if program.package in WAITING:
        command += ["--test-threads", str(WAITING[program.package])]
    gives_way = program.package not in WAITING and program.name not in ALONE
    ended = told(command, gives_way, cwd=program.directory, env=environment)
    tests = re.findall(r"^test (\S+).* \.\.\. (\w+)(?: <([\d.]+)s>)?", ended.stdout, re.MULTILINE)
    failures = [program.command(profile, name) for name, state, _ in tests if state == "FAILED"]
    if ended.returncode != 0 and not failures:
        failures = [f"{program.name} (it ended with {ended.returncode}): {program.executable}"]
    times = [(float(took), f"{program.package} {name}") for name, _, took in tests if took]
    passed = sum(state == "ok" for _, state, _ in tests)
    return Outcome(program.name, ended, passed, failures, times)


def document_tests(profile: str) -> Outcome:
    command = ["cargo", "test", "--doc", "--no-fail-fast", "--profile", profile, *SELECTION]
    ended = told(command)
    failed = re.findall(r"^test (.*) \.\.\. FAILED", ended.stdout, re.MULTILINE)
    failures = [f"{' '.join(command)} # {name}" for name in failed]
    if ended.returncode != 0 and not failures:
        failures = [" ".join(command)]
    passed = sum(map(int, re.findall(r"^test result: \w+\. (\d+) passed", ended.stdout, re.MULTILINE)))
    return Outcome("examples in the documentation", ended, passed, failures, [])


class Reporter:
    """Collects outcomes and prints each as it comes."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.lock = threading.Lock()

    def begin(self, name: str) -> None:
        with self.lock:
            print(f"      ...            {name}", flush=True)

    def end(self, outcome: Outcome) -> None:
        with self.lock:
            self.outcomes.append(outcome)
            ended = outcome.ended
            failed = f", {len(outcome.failures)} FAILED" if outcome.failures else ""
            took = f"{ended.seconds:7.1f} s {ended.of_processors:7.1f} s"
            print(f"{took}  {outcome.name}: {outcome.passed} passed{failed}", flush=True)
            if outcome.failures:
                _, found, details = ended.stdout.partition("\nfailures:\n")
                print(details if found else ended.stdout, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", required=True)
    parser.add_argument("--report", required=True, help="where to write the counts, as JSON")
    parser.add_argument("--without-servers", action="store_true", help="a subset, for the inner loop")
    parser.add_argument(
        "--script", nargs=3, action="append", default=[], metavar=("NAME", "DIRECTORY", "COMMAND")
    )
    arguments = parser.parse_args()
    programs = build(arguments.profile)
    if arguments.without_servers:
        programs = [program for program in programs if program.package not in WAITING]
    reporter = Reporter()

    def start(given: Program | Script) -> None:
        reporter.begin(given.name)
        is_script = isinstance(given, Script)
        reporter.end(run_script(given) if is_script else run(given, arguments.profile))

    waiting = [program for name in WAITING for program in programs if program.package == name]
    scripts = [Script(*script) for script in arguments.script]
    rest = [program for program in programs if program.package not in WAITING]
    print("     time  of processors")
    with (
        concurrent.futures.ThreadPoolExecutor(WAITING_AT_ONCE) as beside,
        concurrent.futures.ThreadPoolExecutor(1) as gaps,
    ):
        # The longest first.
        longest = [program for program in waiting if program.package == LONGEST]
        others = [program for program in waiting if program.package != LONGEST]
        ends = [beside.submit(start, given) for given in longest + scripts + others]
        ends += [gaps.submit(start, program) for program in rest if program.name not in ALONE]
        for end in ends:
            end.result()
    for program in programs:
        if program.name in ALONE:
            start(program)
    reporter.begin("examples in the documentation")
    reporter.end(document_tests(arguments.profile))

    times = sorted((took for outcome in reporter.outcomes for took in outcome.times), reverse=True)
    print(f"\nThe {SLOWEST} slowest tests:")
    for seconds, name in times[:SLOWEST]:
        print(f"{seconds:7.1f} s  {name}")
    failures = [failure for outcome in reporter.outcomes for failure in outcome.failures]
    if failures:
        print("\nFailed; each alone:")
        print("\n".join(f"  {failure}" for failure in failures))
    passed = sum(outcome.passed for outcome in reporter.outcomes)
    report = {"passed": passed, "failed": len(failures)}
    pathlib.Path(arguments.report).write_text(json.dumps(report), encoding="utf-8")
    print(f"\n{passed} passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
