"""The kernels as code for a GPU that is not here: nothing spilled, sources read in vectors, no fp64 by accident."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed (extra kernels)")
SCRIPT = Path(__file__).with_name("hopper.py")
CASES = ["bf16:1000:3", "bf16:7168:1", "bf16:8192:2", "fp32:1024:1", "addresses"]


@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler is built for Linux")
def test_compiled_for_hopper_no_kernel_spills_a_register_or_computes_in_fp64():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, SCRIPT, *CASES], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    *found, addresses = json.loads(done.stdout)
    assert (addresses["stores"], addresses["spilled"]) == (2 * 64, 0)
    assert len(found) == 2 * (len(CASES) - 1)
    for kernel in found:
        assert kernel["spilled"] == 0, kernel
        assert kernel["vectors"], kernel
        assert not kernel["fp64"], kernel
        # A multiprocessor has 65,536 registers, and a program must fit.
        assert 0 < kernel["registers"] * 32 * kernel["warps"] <= 65_536, kernel
