"""Starts what an example talks to, and stops it: no idea of its own.

The service's binary is `ADMITTANCE_BINARY`, or `admittance` on the path.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def serving(policies: Mapping[str, Any] | str, *flags: str) -> Iterator[str]:
    """A service with these policies, a mapping or the text of a file, on a free port of loopback;
    gives its address."""
    binary = os.environ.get("ADMITTANCE_BINARY") or shutil.which("admittance")
    if binary is None:
        raise SystemExit(
            "no service to start: set ADMITTANCE_BINARY, or put `admittance` on the path "
            "(cargo build --release makes target/release/admittance)"
        )
    # JSON is YAML.
    text = policies if isinstance(policies, str) else json.dumps({"limiters": policies})
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        # A machine that is busy with other things shows nothing here.
        calm = ("--log-denials", "0", "--no-load-shedding")
        command = [binary, "serve", "--config", file.name, "--port", "0", *calm, *flags]
        service = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert service.stdout is not None
            first = service.stdout.readline().split()
            if "listening" not in first:
                raise SystemExit(f"the service did not start: {' '.join(command)}")
            yield first[-1]
        finally:
            _stop(service)


@contextmanager
def redis() -> Iterator[str]:
    """A Redis that keeps nothing, on a free port of loopback; gives its URL."""
    binary = shutil.which("redis-server")
    if binary is None:
        raise SystemExit("no redis-server on the path (apt-get install redis-server)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
        try:
            _answers(server, port)
            yield f"redis://127.0.0.1:{port}"
        finally:
            _stop(server)


def _answers(server: subprocess.Popen[bytes], port: int) -> None:
    for _ in range(1_000):
        if server.poll() is not None:
            break
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                if connection.recv(5) == b"+PONG":
                    return
        except OSError:
            pass
        time.sleep(0.01)
    raise SystemExit(f"redis-server did not start on port {port}")


def _stop(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
