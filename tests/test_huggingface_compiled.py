"""torch.compile sees the whole model behind Hugging Face's interface, and what it makes of it is the model.

Each runs in a process of its own: in that of the tests every function is wrapped by checks that the compiler cannot see
through.
"""

import subprocess
import sys
from pathlib import Path

COMPILED = """
import networks
import torch
from torch.testing import assert_close
from transformers import StaticCache

from depthroute.interop.huggingface import CACHE, DepthRouteForCausalLM

model = DepthRouteForCausalLM.of(networks.moved(networks.attnres({"blocks": 2}, routes="qk_v"), layers=2)).eval()
compiled, tokens = torch.compile(model, fullgraph=True, backend="aot_eager"), networks.tokens()
with torch.no_grad():
    whole = model(tokens, use_cache=False).logits
    assert_close(compiled(tokens, use_cache=False).logits, whole, rtol=0, atol=1e-12)
    kept = StaticCache(config=model.config, max_cache_len=9)
    model(tokens[:, :3], **{CACHE: kept})
    for place in (3, 4):
        step = compiled(tokens[:, place : place + 1], cache_position=torch.tensor([place]), **{CACHE: kept})
        assert_close(step.logits[:, 0], whole[:, place], rtol=0, atol=1e-12)
"""


def test_the_model_compiles_whole_with_and_without_a_static_cache():
    done = subprocess.run([sys.executable, "-c", COMPILED], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


BY_INDUCTOR = """
import networks
import torch
from torch.testing import assert_close

from depthroute import config
from depthroute.interop.huggingface import DepthRouteForCausalLM

for preset, layers in (("attnres-block", 1), ("rd", 2)):
    shape = {"vocab": 11, "width": 8, "layers": layers, "heads": 2, "hidden": 12}
    planned = config.from_dict({"model": {**shape, "residual": {"preset": preset, "blocks": 2}}}).model
    model = DepthRouteForCausalLM.of(networks.moved(planned.residual.model_dump(), layers=layers)).train()
    tokens, found = networks.tokens(), []
    for one in (model, torch.compile(model, fullgraph=True, backend="inductor")):
        answer = one(tokens, labels=tokens)
        found.append([answer.logits, answer.loss, *torch.autograd.grad(answer.loss, [*model.parameters()])])
    (logits, *others), (expected, *eager) = reversed(found)
    assert_close(logits, expected, rtol=0, atol=1e-12)
    assert_close(others, eager, rtol=0, atol=1e-7)  # their loss is computed in fp32, and so are its gradients
"""


def test_compiled_by_inductor_a_block_preset_and_a_decoupled_one_give_eager_logits_and_gradients():
    done = subprocess.run(
        [sys.executable, "-c", BY_INDUCTOR], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
