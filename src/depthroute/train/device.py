"""Where a run computes: device, precision, threads, determinism."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from depthroute.config import Config
from depthroute.errors import ConfigError, RunError

CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


def choose(config: Config) -> torch.device:
    """The device of a run. ConfigError if this machine lacks it or its precision."""
    available = torch.cuda.is_available()
    if config.device == "cuda" and not available:
        raise ConfigError("device: cuda is not available here (or torch is a CPU build); use device: cpu or auto")
    device = torch.device("cuda" if available and config.device != "cpu" else "cpu")
    if config.precision == "bf16" and not computes_bf16(device):
        raise ConfigError(f"precision: this {device.type} device has no bf16 arithmetic; use precision: fp32")
    return device


def computes_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def name(device: torch.device) -> str:
    return torch.cuda.get_device_name() if device.type == "cuda" else "cpu"


@contextmanager
def numerics(config: Config) -> Iterator[None]:
    """Threads and determinism as the configuration says, and as they were before afterwards."""
    threads = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    if config.deterministic and CUBLAS not in os.environ:
        if torch.cuda.is_initialized():
            raise RunError(f"{CUBLAS}: set it to :4096:8 before CUDA starts, or train with deterministic: false")
        os.environ[CUBLAS] = ":4096:8"
    try:
        torch.set_num_threads(config.threads or threads)
        torch.use_deterministic_algorithms(config.deterministic)
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)
