"""Where a run computes: device, precision, threads, determinism."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from depthroute.config import Config
from depthroute.errors import ConfigError, RunError, lacks_memory

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


def processor() -> str:
    """The model of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def check_memory(config: Config, vocab: int, device: torch.device) -> None:
    """ConfigError if even the least that training needs is more than the device has.

    The least is three fp32 numbers for a weight of the layers and the embedding (itself, its gradient, its momentum)
    and two for a logit (itself, its gradient). Activations come on top, and another moment where AdamW trains.
    """
    shape = config.model
    heads = (2 * shape.heads + 2 * shape.kv_heads) * shape.head_width
    weights = shape.layers * shape.width * (heads + 3 * shape.hidden) + vocab * shape.width
    logits = config.batch // config.accumulation * config.length * vocab
    on_gpu = device.type == "cuda"
    has = torch.cuda.mem_get_info()[1] if on_gpu else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for needed, what in ((12 * weights, "the model's size"), (8 * logits, "batch or length, or raise accumulation")):
        if needed > has:
            raise ConfigError(
                f"this needs {needed / 2**30:,.0f} GiB of memory at the least, and {device.type} has "
                f"{has / 2**30:,.0f}; lower {what}"
            )


@contextmanager
def enough_memory(run: Path) -> Iterator[None]:
    """RunError of one line where torch gets no memory for what the run wants."""
    try:
        yield
    except RuntimeError as error:
        if not lacks_memory(error):
            raise
        raise RunError(f"{run}: there is not enough memory; lower batch or length, or raise accumulation") from error


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
