"""Shared by all tests."""

import os
from collections.abc import Iterator

import jaxtyping
import pytest
import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    # Triton looks at it once, when whichever test comes first imports it.
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def as_a_user():
    """Switch off the shape checks that only tests have, to meet the library's own."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """For the kernels: a program has two tokens, and memory that nothing has written is NaN."""
    from depthroute.ops import triton_operators as operators

    if request.param == "cpu" and not operators.INTERPRETED:
        pytest.skip("the kernels are compiled, for the GPU")
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    monkeypatch.setattr(operators, "TOKENS", 2)
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    yield torch.device(request.param)
    torch.use_deterministic_algorithms(False)
