"""Shared by all tests."""

import os

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
