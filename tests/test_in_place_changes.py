"""Whatever is changed, replaced or wrapped while tokens are generated, the next token is read with it."""

import gc
import weakref

import networks
import pytest
import torch
from networks import attnres

from depthroute.model.cache import KeyValueCache
from depthroute.residuals.attnres.routes import Shared

SUBSET = attnres({"blocks": 4}, {"subset": {"rank": 3, "seed": 5}}, "qk_v", gain=True)


class Scaled(torch.nn.Module):
    def __init__(self, like):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.full_like(like, 1.5))

    def forward(self, x):
        return self.factor * x


class Around(torch.nn.Module):
    def __init__(self, read):
        super().__init__()
        self.read = read

    def forward(self, *given):
        return tuple(2 * one for one in self.read(*given))


def other_coordinates(model):
    model.residual.coordinates = (model.residual.coordinates + 1) % networks.WIDTH


def other_data(model):
    for read in model.residual.reads.values():
        for parameter in read.parameters():
            parameter.data = 2 * parameter.data


def fused_step(model):
    """torch counts no change of a parameter here."""
    for parameter in model.residual.reads.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.AdamW(model.residual.reads.parameters(), 0.5, fused=True).step()


def through_numpy(model):
    for parameter in model.residual.reads.parameters():
        parameter.detach().numpy()[:] *= 2


def strided(model):
    for parameter in model.residual.reads.parameters():
        parameter.data = torch.stack([parameter.data, parameter.data], dim=-1)[:, 0]


def as_buffers(model):
    for read in model.residual.reads.values():
        for name in list(read.learned):
            query = getattr(read, name).detach().clone()
            delattr(read, name)
            read.register_buffer(name, query)


def buffers(model):
    for buffer in model.residual.reads.buffers():
        buffer.mul_(-2)


def as_attributes(model):
    for read in model.residual.reads.values():
        for name in list(read.learned):
            query = getattr(read, name).detach().clone()
            delattr(read, name)
            setattr(read, name, query)


def attributes(model):
    for read in model.residual.reads.values():
        for name in read.learned:
            getattr(read, name).mul_(-2)


class TwiceAsMuch(Shared):
    def forward(self, *given):
        return tuple(2 * one for one in super().forward(*given))


class Newest(torch.nn.Module):
    def forward(self, keys, values, prior, before=None):
        return (values[-1],)


def another_class(model):
    model.residual.reads["3"].__class__ = TwiceAsMuch


def one_of_ones_own(model):
    model.residual.reads["3"] = Newest()


def other_order(model):
    model.residual.reads["3"] = model.residual.reads.pop("3")


def other_eps(model):
    model.residual.reads["3"].eps = 0.5


def other_impl(model):
    read = model.residual.reads["3"]
    read.impl = "native" if read.impl == "reference" else "reference"


def own_feed(model):
    model.residual.reads["3"].feed = lambda mixed: (2 * mixed[0],)


def through_half(model):
    model.bfloat16().double()


def wrapped(model):
    model.residual.reads["3"] = Around(model.residual.reads["3"])


def another_read(model):
    model.residual.reads["3"] = networks.moved(SUBSET, seed=4).residual.reads["3"]


def parametrised(model):
    for read in model.residual.reads.values():
        for name, parameter in list(read.named_parameters(recurse=False)):
            torch.nn.utils.parametrize.register_parametrization(read, name, Scaled(parameter.detach()))


def parametrisation(model):
    with torch.no_grad():
        for read in model.residual.reads.values():
            for parameter in read.parameters():
                parameter.mul_(-1.5)


def doubled(module, given, out):
    return tuple(2 * one for one in out)


def hooked(model):
    model.residual.reads["3"].register_forward_hook(doubled)


def unhooked(model):
    model.residual.reads["3"]._forward_hooks.clear()


def hooked_before(model):
    model.residual.reads["3"].register_forward_pre_hook(lambda module, given: (given[0], given[1][::-1], *given[2:]))


def own_forward(model):
    read = model.residual.reads["3"]
    whole = read.forward
    read.forward = lambda *given: doubled(read, given, whole(*given))


def found(mode, changes, model=None):
    model = networks.moved(SUBSET) if model is None else model
    cache, logits = KeyValueCache(networks.LAYERS, 5), []
    for number, token in enumerate(networks.tokens().split(1, dim=1)):
        with mode():
            logits.append(model(token, cache=cache).detach())
        if number < len(changes):
            changes[number](model)
    return torch.cat(logits, dim=1)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    "changes",
    [
        [other_coordinates],
        [other_data],
        [fused_step],
        [through_numpy],
        [strided, through_numpy],
        [as_buffers, buffers],
        [as_attributes, attributes],
        [another_class],
        [one_of_ones_own],
        [other_order, fused_step],
        [other_eps],
        [other_impl, fused_step],
        [own_feed],
        [through_half],
        [wrapped],
        [another_read],
        [another_read, wrapped],
        [parametrised],
        [parametrised, parametrisation],
        [hooked],
        [hooked, unhooked],
        [hooked_before],
        [own_forward],
    ],
    ids=lambda changes: " then ".join(change.__name__ for change in changes),
)
@pytest.mark.parametrize("impl", ["reference", "native"])
def test_the_next_token_is_read_with_what_has_changed(changes, impl):
    def changed(mode, changes):
        return found(mode, changes, networks.moved(SUBSET, computed={"impl": impl}))

    expected = changed(torch.enable_grad, changes)
    assert not torch.equal(expected, changed(torch.enable_grad, []))
    for mode in (torch.no_grad, torch.inference_mode):
        if mode is torch.no_grad or through_half not in changes:
            assert torch.equal(changed(mode, changes), expected)


def test_data_that_come_to_lie_where_others_lay_are_read():
    places = []

    def others(model):
        for parameter in model.residual.reads.parameters():
            before = parameter.data_ptr()
            parameter.data = 2 * parameter.data
            parameter.data = -parameter.data
            places.append((before, parameter.data_ptr()))

    def read_with(mode):
        model = networks.moved(attnres({"blocks": 4}), width=512, heads=2)
        others(model)
        places.clear()
        return found(mode, [others], model)

    expected = read_with(torch.enable_grad)
    for mode in (torch.no_grad, torch.inference_mode):
        assert torch.equal(read_with(mode), expected)
        assert all(before != after for before, after in places)


class EachAlone(torch.nn.Module):
    def forward(self, x):
        batch, token, width = x.shape
        return torch.nn.functional.rms_norm(x.view(batch * token, width), (width,)).view(batch, token, width)


@pytest.mark.parametrize("hook", ["register_forward_hook", "register_forward_pre_hook", None])
def test_a_norm_that_is_hooked_or_replaced_is_given_each_mixture_as_ever(hook):
    def told(mode):
        model, seen = networks.moved(SUBSET), []
        layer = model.layers[1]
        if hook is None:
            layer.input_layernorm = EachAlone()
        else:
            getattr(layer.input_layernorm, hook)(lambda module, given, *out: seen.append(given[0].detach()))
        return [found(mode, [], model), *seen]

    expected = told(torch.enable_grad)
    assert len(expected) == 1 + (0 if hook is None else 2 * networks.tokens().shape[1])
    for mode in (torch.no_grad, torch.inference_mode):
        for one, other in zip(told(mode), expected, strict=True):
            assert torch.equal(one, other)


def test_mixtures_of_one_read_are_normed_at_once(monkeypatch):
    model, shapes, whole = networks.moved(SUBSET), [], torch.nn.RMSNorm.forward
    norms = [norm for layer in model.layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
    monkeypatch.setattr(
        torch.nn.RMSNorm,
        "forward",
        lambda self, x: (shapes.append(tuple(x.shape)) if self in norms else None, whole(self, x))[1],
    )
    with torch.no_grad():
        model(networks.tokens()[:, :1], cache=KeyValueCache(networks.LAYERS, 1))
    batch, one = len(networks.tokens()), (1, networks.WIDTH)
    later = [(2, batch, *one), (1, batch, *one)] * (networks.LAYERS - 1)
    assert shapes == [(batch, *one), (1, batch, *one), *later]


def test_a_read_whose_parameters_are_elsewhere_until_it_is_called_is_read():
    def tokens(mode):
        model = networks.moved(SUBSET)
        read = model.residual.reads["3"]
        kept, names = {name: one.detach().clone() for name, one in read.named_parameters()}, list(read._parameters)

        def bring(module, given):
            for name in names:
                setattr(module, name, torch.nn.Parameter(kept[name]))

        def take_away(module, given, out):
            for name in names:
                setattr(module, name, torch.nn.Parameter(kept[name].to("meta")))

        read.register_forward_pre_hook(bring)
        read.register_forward_hook(take_away)
        take_away(read, None, None)
        return found(mode, [], model)

    expected = found(torch.enable_grad, [])
    for mode in (torch.no_grad, torch.inference_mode):
        assert torch.equal(tokens(mode), expected)


def test_a_cache_that_a_hook_of_its_model_holds_goes_with_them():
    class Session:
        def __init__(self):
            self.model, self.cache = networks.moved(SUBSET), KeyValueCache(networks.LAYERS, 5)
            self.model.residual.reads["2"].register_forward_hook(self.told)

        def told(self, module, given, out):
            assert self.cache is not None

    session = Session()
    with torch.no_grad():
        session.model(networks.tokens()[:, :1], cache=session.cache)
    cache = weakref.ref(session.cache)
    del session
    gc.collect()
    assert cache() is None
