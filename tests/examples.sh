#!/usr/bin/env bash
# Runs every example of the library, which the tests' build has made: bash tests/examples.sh DIRECTORY
set -euo pipefail
passed=0
for example in crates/engine/examples/*.rs; do
  name=$(basename "$example" .rs)
  said=$("$1/$name" 2>&1) || { printf 'FAILED %s\n%s\n' "$name" "$said"; exit 1; }
  passed=$((passed + 1))
done
echo "$passed passed"
