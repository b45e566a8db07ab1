"""Compiles native.cpp, with its headers, for this very processor, once, and loads it.

The library is kept in `$XDG_CACHE_HOME/depthroute` (or `~/.cache/depthroute`) under a digest of the source, the
compiler and the processor, so that neither another version nor another machine finds it.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from depthroute.errors import ArgumentError

# The one to be compiled, and what it includes.
SOURCES = tuple(Path(__file__).with_name(name) for name in ("native.cpp", "rows.h", "halves.h"))
# Nobody looks at the exception flags of floating-point numbers; kept right, they keep fp16 out of vector registers.
FLAGS = ("-O3", "-march=native", "-fno-trapping-math", "-fopenmp", "-std=c++17", "-shared", "-fPIC")


def compiler() -> str | None:
    """The C++ compiler: `$CXX`, else g++; None if there is none."""
    return shutil.which(os.environ.get("CXX") or "g++")


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled kernels. ArgumentError if there is no compiler, or it refuses the source."""
    found = compiler()
    if found is None:
        wanted = os.environ.get("CXX") or "g++"
        raise ArgumentError(f"impl: 'native' needs a C++ compiler, and there is no {wanted}; install it or set CXX")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    source = [path.read_text(encoding="utf-8") for path in SOURCES]
    about = "\n".join([*source, *FLAGS, found, version, processor()])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "depthroute"
    path = cache / f"native-{hashlib.sha256(about.encode()).hexdigest()[:16]}.so"
    if not path.exists():
        build(found, path)
    return ctypes.CDLL(str(path))


def build(found: str, path: Path) -> None:
    """Aside and then renamed: of two processes that build at once, either result is whole."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            out = Path(folder) / path.name
            ended = subprocess.run(
                [found, *FLAGS, str(SOURCES[0]), "-o", str(out)], capture_output=True, text=True, check=False
            )
            if ended.returncode:
                first = (ended.stderr.strip().splitlines() or ["it says nothing"])[0]
                raise ArgumentError(f"impl: 'native' cannot be built: {found}: {first}; choose another impl")
            out.replace(path)
    except OSError as error:
        raise ArgumentError(f"impl: 'native' cannot be built in {path.parent}: {error}; set XDG_CACHE_HOME") from error


def processor() -> str:
    """What code for this processor may depend on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))
