"""Compile the kernels for Hopper with no device at hand, and report what the code takes: `python tests/hopper.py`.

Prints JSON, one entry a kernel and case: registers a thread, bytes spilled, warps, barriers that order global memory,
and whether anything is loaded in vectors of 16 bytes or computed in fp64. It must run without TRITON_INTERPRET.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from depthroute.ops import triton_kernels as kernels
from depthroute.ops import triton_merge_kernels as merging
from depthroute.ops.triton_operators import ADDRESSES, ALIGNMENT, COLUMN_TILE, ROW_TILE, TOKENS, tiles

TARGET = GPUTarget("cuda", 90, 32)
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
# Width, rank, queries, whether keys are separate (with a prior), whether the mixture is normed.
CASES = [
    (1024, 1024, 1, False, False),
    (1024, 64, 2, False, False),
    (1024, 32, 2, True, False),
    (1000, 1000, 3, False, True),
    (1024, 1024, 8, False, False),
    (2048, 2048, 8, False, False),
    (2048, 2048, 16, False, False),
    (2048, 64, 16, True, False),
    (4096, 4096, 2, False, False),
    (4096, 4096, 3, False, False),
    (4096, 4096, 8, False, True),
    (4096, 4096, 8, True, True),
    (7168, 7168, 1, False, False),
    (7168, 7168, 2, False, True),
    (8192, 8192, 2, False, False),
    (8192, 8192, 16, False, False),
    (8192, 64, 16, True, True),
]
TYPES = {"bf16": tl.bfloat16, "fp32": tl.float32}


def compiled(kernel: Any, pointers: dict[str, str], integers: tuple[str, ...], constants: dict[str, Any], warps: int):
    names = kernel.arg_names
    signature = {name: pointers.get(name, "i32" if name in integers else "constexpr") for name in names}
    fixed = {name: constants.get(name) for name in names if signature[name] == "constexpr"}
    attributes = {(number,): [["tt.divisibility", 16]] for number, name in enumerate(names) if name in pointers}
    source = ASTSource(fn=kernel, signature=signature, constexprs=fixed, attrs=attributes)
    return triton.compile(source, target=TARGET, options={"num_warps": warps})


def usage(binary: bytes) -> tuple[int, int]:
    """Registers a thread, and bytes of local memory, which is where registers are spilled to."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        said = subprocess.run(
            [CUOBJDUMP, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    words = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", said))
    return int(words["REG"]), int(words["STACK"]) + int(words["LOCAL"])


def report(name: str, dtype: str, build: Any, warps: int) -> dict[str, Any]:
    registers, spilled = usage(build.asm["cubin"])
    code = build.asm["ptx"]
    return {
        "kernel": name,
        "dtype": dtype,
        "warps": warps,
        "registers": registers,
        "spilled": spilled,
        "barriers": len(re.findall(r"ttg\.barrier all|gpu\.barrier", build.asm["ttgir"])),
        "vectors": bool(re.search(r"ld\.global\.v4\.b32", code)),
        "fp64": ".f64" in code,
    }


def read_kernels(dtype: str, width: int, rank: int, queries: int, own: bool, normed: bool) -> list[dict[str, Any]]:
    size = tiles(width, rank, queries, own)
    table, full = "*i64", "*fp32"
    shared = {
        "WIDTH": width,
        "RANK": rank,
        "QUERIES": queries,
        "OWN_KEYS": own,
        "PRIOR": own,
        "DTYPE": TYPES[dtype],
        "INSIDE": tl.float32,
        "ALIGNMENT": ALIGNMENT,
        "TOKENS": TOKENS,
        "WIDTH_TILE": size.width,
        "KEY_TILE": size.keys,
        "QUERY_TILE": size.queries,
    }
    pointers = {"values": table, "keys": table, "folded": full, "mixed": f"*{dtype}"}
    pointers |= dict.fromkeys(("lse", "scores", "scales", "norms"), full)
    pointers |= {"prior": full} if own else {}
    forward = compiled(
        kernels.attend_kernel,
        pointers,
        ("tokens", "sources"),
        shared | {"EPS": 1e-6, "NORM_EPS": 1e-6 if normed else None},
        size.warps,
    )
    pointers |= {"value_grads": table, "key_grads": table, "mixed_grad": f"*{dtype}"}
    sums = ["value_sums", *(["key_sums"] if own else [])] if queries > size.queries else []
    pointers |= dict.fromkeys(("lse_grad", "query_sums", *sums, *(["logit_grads"] if own else [])), full)
    backward = compiled(
        kernels.attend_backward_kernel,
        pointers,
        ("tokens", "sources"),
        shared | {"LSE_GRAD": True, "NORMED": normed, "GRAD_ALIGNMENT": ALIGNMENT},
        size.warps,
    )
    case = {"width": width, "rank": rank, "queries": queries, "own_keys": own, "normed": normed}
    case |= {"groups": -(-queries // size.queries)}
    return [
        case | report("attend", dtype, forward, size.warps),
        case | report("attend backward", dtype, backward, size.warps),
    ]


def merge_kernels(dtype: str, width: int) -> list[dict[str, Any]]:
    size = tiles(width, width, 1, own_keys=False)
    grads = ("mixed_grad", "first_grad", "second_grad")
    scalars = ("first_lse", "second_lse", "lse", "lse_grad", "first_lse_grad", "second_lse_grad")
    pointers = dict.fromkeys(("first", "second", "mixed", *grads), f"*{dtype}") | dict.fromkeys(scalars, "*fp32")
    constants = {"WIDTH": width, "INSIDE": tl.float32, "TOKENS": TOKENS, "WIDTH_TILE": size.width}
    found = []
    for name, kernel in (("merge", merging.merge_kernel), ("merge backward", merging.merge_backward_kernel)):
        some = {key: value for key, value in pointers.items() if key in kernel.arg_names}
        found.append(report(name, dtype, compiled(kernel, some, ("rows",), constants, size.warps), size.warps))
    second = compiled(
        kernels.sum_kernel,
        {"parts": "*fp32", "whole": "*fp32"},
        ("rows", "columns"),
        {"ROW_TILE": ROW_TILE, "COLUMN_TILE": COLUMN_TILE},
        4,
    )
    return [{"width": width} | entry for entry in (*found, report("sum", "fp32", second, 4))]


def addresses_kernel() -> dict[str, Any]:
    """With as many sources as one launch can note."""
    signature = {"table": "*i64", "tensors": ("*bf16",) * ADDRESSES, "strides": ("i32",) * ADDRESSES}
    source = ASTSource(fn=kernels.note_addresses, signature=signature, constexprs={})
    build = triton.compile(source, target=TARGET, options={"num_warps": 4})
    return report("note addresses", "bf16", build, 4) | {"stores": build.asm["ptx"].count("st.global")}


def main() -> None:
    """Every case in both types, or those that the arguments name by type, width and queries, such as `bf16:8192:2`.

    `addresses` names the kernel that notes where sources lie.
    """
    asked = sys.argv[1:]
    found: list[dict[str, Any]] = []
    for dtype in TYPES:
        for case in CASES:
            if not asked or f"{dtype}:{case[0]}:{case[2]}" in asked:
                found += read_kernels(dtype, *case)
        found += [] if asked else merge_kernels(dtype, 1000) + merge_kernels(dtype, 8192)
    if not asked or "addresses" in asked:
        found.append(addresses_kernel())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
