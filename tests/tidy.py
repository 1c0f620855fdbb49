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


def main() -> int:
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.rs"]
    paths = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split()
    found = [problem for path in paths for problem in problems(path)]
    print("\n".join(found) if found else f"{len(paths)} files are tidy")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
