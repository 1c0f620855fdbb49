"""Style that the compiler does not check. A rule is here or it is not a rule."""

import pathlib
import re
import subprocess
import sys

COLUMNS_MAX = 100
LINES_MAX = 600
# Each with the measured need and the argument written down beside it.
UNSAFE_ALLOWED = {
    "crates/engine/src/slots/native.rs",  # sixteen-byte atomics
    "crates/engine/src/gate/owned.rs",  # a value that a mark in a word guards
    "crates/engine/src/two_tier/machine.rs",  # the clock since boot, and a handler for forks
    "crates/engine/tests/fork.rs",  # it forks
    "crates/engine/tests/allocation.rs",  # an allocator that counts
    "crates/engine/tests/sketch_memory.rs",  # an allocator that counts
    "bench/src/contenders.rs",  # the kernel's coarse clock, for a peer
}


def problems(path: str):
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    if len(lines) > LINES_MAX:
        yield f"{path}: {len(lines)} lines; split it, the most is {LINES_MAX}"
    for number, line in enumerate(lines, start=1):
        if len(line) > COLUMNS_MAX:
            yield f"{path}:{number}: {len(line)} columns; the most is {COLUMNS_MAX}"
        if re.search(r"\b(TODO|FIXME|XXX)\b", line):
            yield f"{path}:{number}: finish it or file an issue"
        if re.search(r"\bunsafe (\{|impl|fn|extern)", line) and path not in UNSAFE_ALLOWED:
            yield f"{path}:{number}: unsafe code belongs in crates/engine/src/slots/native.rs"


# Test programs beside `tests/it`, which are linked one by one, each with the reason why.
ALONE = {
    "crates/engine/tests/allocation.rs": "its allocator counts",
    "crates/engine/tests/sketch_memory.rs": "its allocator counts",
    "crates/engine/tests/fork.rs": "it forks",
    "crates/proto/tests/contract.rs": "the only one of its crate",
    "fuzz/tests/smoke.rs": "it checks its own peak memory",
}


def unreachable(paths: list[str]):
    """A file of tests that no program includes would never run."""
    for path in paths:
        if re.search(r"(^|/)tests/[^/]+\.rs$", path) and "/src/" not in path and path not in ALONE:
            yield f"{path}: make it a module of tests/it, or say in tests/tidy.py why it is alone"
        elif "/tests/it/" in path and not path.endswith("/tests/it/main.rs"):
            file = pathlib.Path(path)
            is_top = file.parent.name == "it" and file.parent.parent.name == "tests"
            parent = file.parent / "main.rs" if is_top else file.parent.with_suffix(".rs")
            text = parent.read_text("utf-8") if parent.exists() else ""
            if not re.search(rf"^\s*(pub(\(\w+\))? )?mod {file.stem};$", text, re.MULTILINE):
                yield f"{path}: {parent} does not include it, so its tests never run"


def main() -> int:
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.rs"]
    paths = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split()
    paths = [path for path in paths if pathlib.Path(path).exists()]
    found = [problem for path in paths for problem in problems(path)]
    found += unreachable(paths)
    print("\n".join(found) if found else f"{len(paths)} files are tidy")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
