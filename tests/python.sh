#!/usr/bin/env bash
# The Python package as a user gets it: a wheel, installed where nothing else is, its types, its
# tests.
#
#   bash tests/python.sh PROFILE TARGET VENV [PYTEST'S ARGUMENTS]
set -euo pipefail
profile=$1 target=$2 venv=$3
shift 3
wheels=$target/wheels/$profile
python=$target/python/bin/python
pip() { "$1" -m pip install --quiet --disable-pip-version-check "${@:2}"; }

rm -rf "$wheels"
pip "$venv/bin/python" maturin==1.9.6
CARGO=$PWD/python/workspace-cargo "$venv/bin/maturin" build --quiet \
  --manifest-path python/Cargo.toml --profile "$profile" --out "$wheels"
python3 -m venv --clear "$target/python"
pip "$python" "$wheels"/*.whl
# By itself: what it needs must have come with it.
(cd / && "$python" -c 'import admittance; print("admittance", admittance.__version__)')
pip "$python" -r python/tests/requirements.txt
(cd python && "$python" -m mypy --strict admittance tests)
cd python/tests
ADMITTANCE_BINARY=$target/$profile/admittance "$python" -m pytest -rf --durations=5 "$@"
