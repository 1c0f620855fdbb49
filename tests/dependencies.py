"""Licences, bans and sources of everything that is built, by the rules of deny.toml.

`cargo deny` reads the same file and looks into the texts of licences too; `./test --long` runs it.
It would have to be compiled first, which takes longer than all the tests of core.
"""

import json
import re
import subprocess
import sys
import tomllib


def allows(expression: str, allowed: set[str]) -> bool:
    """Whether an SPDX expression can be satisfied with the licences that are allowed."""
    # Before SPDX a slash meant OR.
    words = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))

    def alternatives() -> bool:
        holds = terms()
        while words and words[0] == "OR":
            words.pop(0)
            # Both sides are read, whatever the first says.
            holds = terms() or holds
        return holds

    def terms() -> bool:
        holds = term()
        while words and words[0] == "AND":
            words.pop(0)
            holds = term() and holds
        return holds

    def term() -> bool:
        word = words.pop(0)
        if word == "(":
            holds = alternatives()
            words.pop(0)
            return holds
        if words and words[0] == "WITH":
            word = f"{word} WITH {words[1]}"
            del words[:2]
        return word in allowed

    return alternatives() and not words


def problems(packages: list[dict], rules: dict) -> list[str]:
    allowed = set(rules["licenses"]["allow"])
    banned = {ban["crate"]: ban["reason"] for ban in rules["bans"]["deny"]}
    found = []
    for package in packages:
        name = f"{package['name']} {package['version']}"
        licence = package["license"]
        if licence is None:
            found.append(f"{name}: no licence is stated")
        elif not allows(licence, allowed):
            found.append(f"{name}: {licence} is not allowed by deny.toml")
        if package["name"] in banned:
            found.append(f"{name}: banned, {banned[package['name']]}")
    # Cargo's default registry is the only one, and nothing is configured to replace it: a second
    # source, or one that is no registry, is a line of somebody's manifest.
    sources = {package["source"] for package in packages} - {None}
    for source in sources:
        if len(sources) > 1 or not source.startswith("registry+"):
            found.append(f"from {source}: everything comes from one registry")
    return found


def refutes_mutants(rules: dict) -> bool:
    """What must not pass does not."""
    right = {"name": "a", "version": "1", "license": "MIT OR GPL-3.0", "source": "registry+a"}
    wrong = [
        {"license": "GPL-3.0"},
        {"license": "MIT AND GPL-3.0"},
        {"license": "(MIT OR Zlib) AND GPL-3.0"},
        {"license": "Apache-2.0 WITH Classpath-exception-2.0"},
        {"license": None},
        {"name": "openssl"},
        {"source": "git+https://example.org/a"},
        {"source": "registry+b"},
    ]
    return not problems([right], rules) and all(
        problems([right, right | one], rules) for one in wrong
    )


def main() -> int:
    with open("deny.toml", "rb") as file:
        rules = tomllib.load(file)
    if not refutes_mutants(rules):
        print("this check lets through what it must not")
        return 1
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--all-features"]
    metadata = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    packages = json.loads(metadata)["packages"]
    found = problems(packages, rules)
    print("\n".join(found) if found else f"{len(packages)} packages are as deny.toml says")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
