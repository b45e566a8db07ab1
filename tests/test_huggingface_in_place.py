"""Hugging Face's generation reads in place, from places that live as long as its cache."""

import gc
import weakref

import accelerate
import networks
import pytest
import torch
from hugging import NEW, SYSTEMS, generated, wrapped

from depthroute.errors import ArgumentError
from depthroute.interop.huggingface import TheirCache
from depthroute.residuals.attnres.in_place import InPlace


@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}, {"num_beams": 2}], ids=str)
@pytest.mark.parametrize("residual", SYSTEMS.values(), ids=SYSTEMS)
def test_generated_tokens_are_read_in_place_and_the_places_go_with_the_cache(monkeypatch, residual, options):
    model, passes = wrapped(residual), []
    depth = TheirCache.depth

    def noting(cache, residual, embedding):
        passes.append((embedding.shape[1], depth(cache, residual, embedding)))
        return passes[-1][1]

    monkeypatch.setattr(TheirCache, "depth", noting)
    generated(model, networks.tokens(), **options)
    attnres = residual is not networks.ADDITIVE
    assert [isinstance(found, InPlace) for _, found in passes] == [False] + (NEW - 1) * [attnres]
    assert len({id(found) for tokens, found in passes if tokens == 1}) == 1  # the same places for every token
    if attnres:
        places = weakref.ref(passes[-1][1])
        del model  # transformers 4 keeps a static cache there
        passes.clear()
        gc.collect()
        assert places() is None


@pytest.mark.filterwarnings("ignore:You are calling .generate.. with the `input_ids`:UserWarning")  # of transformers 4
@pytest.mark.parametrize("residual", SYSTEMS.values(), ids=SYSTEMS)
def test_weights_that_are_brought_when_they_are_needed_generate_the_same(residual):
    tokens = networks.tokens()
    expected = generated(wrapped(residual), tokens)
    model = wrapped(residual)
    accelerate.cpu_offload(model, execution_device="cpu")
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert torch.equal(generated(model, tokens), expected)


def test_coordinates_that_hold_no_numbers_are_an_error():
    model = wrapped(SYSTEMS["subset, tied"])
    accelerate.cpu_offload(model, execution_device="cpu", offload_buffers=True)
    with pytest.raises(ArgumentError, match=r"coordinates: hold no numbers; .*offload_buffers=False"):
        model(networks.tokens())
