"""Peak memory of a trace in full mode at 24 layers: `python benchmarks/probe_memory.py [TOKENS] [WIDTH]`."""

import resource
import sys
import time

import torch

from depthroute.model.transformer import ModelConfig, Transformer
from depthroute.probe import Tracer

BATCH, LENGTH = 4, 512


def main() -> None:
    tokens, width = (int(word) for word in [*sys.argv[1:], "100000", "64"][:2])
    residual = {"name": "attnres", "sources": "full", "routes": "qk_v"}
    shape = {"vocab": 256, "width": width, "layers": 24, "heads": 2, "hidden": 2 * width, "residual": residual}
    model = Transformer(ModelConfig.parse(shape)).initialise(0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for read in model.residual.parameters():
            read += 0.3 * torch.randn(read.shape, generator=generator)
    batches = -(-tokens // (BATCH * LENGTH))
    start = time.perf_counter()
    with Tracer(model, BATCH * batches) as tracer:
        for batch in range(batches):
            documents = (torch.arange(BATCH) + batch * BATCH).unsqueeze(1).expand(BATCH, LENGTH)
            tracer.add(torch.randint(256, (BATCH, LENGTH), generator=generator), documents)
        found = tracer.finish()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"{found.summary['tokens']:,} tokens, 24 layers, full, width {width}: {len(found.table('weights')):,} rows of "
        f"weights in {time.perf_counter() - start:.0f} s; peak {peak / 2**30:.2f} GiB with torch itself"
    )


if __name__ == "__main__":
    main()
