"""The kernels as code for a GPU that is not here: nothing spilled, sources read in vectors, no fp64 by accident."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed (extra kernels)")
SCRIPT = Path(__file__).with_name("hopper.py")
READS = {
    "bf16:1000:3": 1,
    "bf16:7168:1": 1,
    "bf16:8192:2": 1,
    "fp32:1024:1": 1,
    "bf16:2048:16": 2,
    "bf16:4096:8": 2,
    "fp32:8192:16": 2,
}
"""How many cases of hopper.py each stands for. The last three are read in several groups of queries."""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler is built for Linux")
def test_compiled_for_hopper_no_kernel_spills_a_register_or_computes_in_fp64():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, SCRIPT, *READS, "addresses"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *found, addresses = json.loads(done.stdout)
    assert (addresses["stores"], addresses["spilled"]) == (2 * 64, 0)
    assert len(found) == 2 * sum(READS.values())
    for kernel in found:
        assert kernel["spilled"] == 0, kernel
        assert kernel["vectors"], kernel
        assert not kernel["fp64"], kernel
        # Threads see each other's sums: a load may be laid out over them otherwise than the store was.
        assert kernel["barriers"] == (kernel["kernel"] == "attend backward" and kernel["groups"] > 1), kernel
        # A multiprocessor has 65,536 registers, and a program must fit.
        assert 0 < kernel["registers"] * 32 * kernel["warps"] <= 65_536, kernel
