"""Builds the workspace's tests, runs them, and says what took how long.

    python3 tests/run.py --profile test-release --report FILE

Programs that wait for servers run beside others. What must have the process to itself and watches
its memory runs last, alone. A failure does not stop the rest; every failing test is named
with the command that runs just that one. It needs nothing but cargo and Python.
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
# These start real servers and mostly wait for them: they begin first, and others fill the gaps.
WAITING = ["admittance-postgres", "admittance-redis", "admittance-cli", "admittance-testkit"]
AT_ONCE = 2
# These count what the process allocates or how large it grows, or fork it.
ALONE = {"allocation", "fork", "sketch_memory", "smoke"}


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


@dataclasses.dataclass
class Outcome:
    """What a program said."""

    program: str
    seconds: float
    passed: int
    failures: list[str]
    times: list[tuple[float, str]]
    output: str


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


def run(program: Program, profile: str) -> Outcome:
    # `--report-time` is behind a flag that a stable compiler's tests want asked for by name.
    environment = os.environ | {"RUSTC_BOOTSTRAP": "1", "CARGO_MANIFEST_DIR": program.directory}
    command = [program.executable, "-Zunstable-options", "--report-time"]
    start = time.monotonic()
    ended = subprocess.run(
        command,
        cwd=program.directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    seconds = time.monotonic() - start
    tests = re.findall(r"^test (\S+).* \.\.\. (\w+)(?: <([\d.]+)s>)?", ended.stdout, re.MULTILINE)
    failures = [program.command(profile, name) for name, state, _ in tests if state == "FAILED"]
    if ended.returncode != 0 and not failures:
        failures = [f"{program.name} (it ended with {ended.returncode}): {program.executable}"]
    times = [(float(took), f"{program.package} {name}") for name, _, took in tests if took]
    passed = sum(state == "ok" for _, state, _ in tests)
    return Outcome(program.name, seconds, passed, failures, times, ended.stdout)


def document_tests(profile: str) -> Outcome:
    start = time.monotonic()
    command = ["cargo", "test", "--doc", "--no-fail-fast", "--profile", profile, *SELECTION]
    ended = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    failed = re.findall(r"^test (.*) \.\.\. FAILED", ended.stdout, re.MULTILINE)
    failures = [f"{' '.join(command)} # {name}" for name in failed]
    if ended.returncode != 0 and not failures:
        failures = [" ".join(command)]
    passed = sum(map(int, re.findall(r"^test result: \w+\. (\d+) passed", ended.stdout, re.MULTILINE)))
    seconds = time.monotonic() - start
    return Outcome("examples in the documentation", seconds, passed, failures, [], ended.stdout)


class Reporter:
    """Collects outcomes and prints each as it comes."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.lock = threading.Lock()

    def begin(self, name: str) -> None:
        with self.lock:
            print(f"  ...      {name}", flush=True)

    def end(self, outcome: Outcome) -> None:
        with self.lock:
            self.outcomes.append(outcome)
            failed = f", {len(outcome.failures)} FAILED" if outcome.failures else ""
            print(f"{outcome.seconds:7.1f} s  {outcome.program}: {outcome.passed} passed{failed}", flush=True)
            if outcome.failures:
                _, found, details = outcome.output.partition("\nfailures:\n")
                print(details if found else outcome.output, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", required=True)
    parser.add_argument("--report", required=True, help="where to write the counts, as JSON")
    parser.add_argument("--without-servers", action="store_true", help="a subset, for the inner loop")
    arguments = parser.parse_args()
    programs = build(arguments.profile)
    if arguments.without_servers:
        programs = [program for program in programs if program.package not in WAITING]
    reporter = Reporter()

    def start(program: Program) -> None:
        reporter.begin(program.name)
        reporter.end(run(program, arguments.profile))

    def turn(program: Program) -> int:
        return WAITING.index(program.package) if program.package in WAITING else len(WAITING)

    beside = sorted((program for program in programs if program.target not in ALONE), key=turn)
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(start, beside))
    for program in programs:
        if program.target in ALONE:
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
