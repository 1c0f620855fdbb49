"""What the examples start, for tests."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from servers import binary

PYTHON = Path(__file__).resolve().parent.parent
EXAMPLES = PYTHON / "examples"

_spec = importlib.util.spec_from_file_location("serving", EXAMPLES / "serving.py")
assert _spec is not None and _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)

# Examples look for it there, or on the path.
os.environ.setdefault("ADMITTANCE_BINARY", binary())
serving = _module.serving
redis = _module.redis
