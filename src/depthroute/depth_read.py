"""One depth read as a module, to put into any model.

    z_i = < q_rho, g * RMSNorm(k_i) > + prior_i,   a = softmax_i(z),   mixed_rho = sum_i a_i v_i

with one learned query `q_rho` a route. *Attention Residuals*, arXiv 2603.15031; more than one route is *Role-Decoupled
Attention Residuals*, arXiv 2608.01075.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from depthroute.errors import ArgumentError
from depthroute.ops import attend, resolve
from depthroute.ops.checks import check_eps, check_sequence


@final
class DepthRead(nn.Module):
    """What one place of a model reads of earlier outputs; see the module's docstring for the equation.

    Queries start at zero: every route is then the mean of its sources, and in front of a norm that ignores scale it
    does what their sum does. Put `queries` and `gain` into an optimizer group without weight decay.

    Args:
        width: coordinates of a source.
        rank: coordinates of a key; None for the width.
        routes: how many queries read the same sources, such as 2 for (query and key, value) of an attention.
        gain: whether keys have a learned gain, shared by the routes and 1 at the start.
        eps: added to the mean square of a key before the root.
        impl: which implementation reads; `auto` is resolved here, once, and `impl` then says to what.

    Raises:
        ArgumentError: a width, rank or number of routes that cannot be; an implementation that is not available.
    """

    def __init__(
        self,
        width: int,
        *,
        rank: int | None = None,
        routes: int = 1,
        gain: bool = False,
        eps: float = 1e-6,
        impl: str = "auto",
    ) -> None:
        super().__init__()
        if width < 1:
            raise ArgumentError(f"width: {width}; a source has at least 1 coordinate")
        if rank is not None and not 1 <= rank <= width:
            raise ArgumentError(f"rank: {rank} must lie between 1 and the width, {width}")
        if routes < 1:
            raise ArgumentError(f"routes: {routes}; there is nothing to read without a query, give at least 1")
        check_eps(eps)
        self.width, self.rank, self.routes, self.eps = width, rank or width, routes, eps
        self.impl = resolve(impl)
        self.queries = nn.Parameter(torch.zeros(routes, self.rank))
        self.gain = nn.Parameter(torch.ones(self.rank)) if gain else None

    if TYPE_CHECKING:
        # A module's call has no types of its own.
        def __call__(
            self,
            values: Sequence[Float[Tensor, "*token width"]],
            keys: Sequence[Float[Tensor, "*token rank"]] | None = None,
            prior: Sequence[float] | Float[Tensor, " source"] | None = None,
        ) -> Float[Tensor, "*token width"] | tuple[Float[Tensor, "*token width"], ...]: ...

    def forward(
        self,
        values: Sequence[Float[Tensor, "*token width"]],
        keys: Sequence[Float[Tensor, "*token rank"]] | None = None,
        prior: Sequence[float] | Float[Tensor, " source"] | None = None,
    ) -> Float[Tensor, "*token width"] | tuple[Float[Tensor, "*token width"], ...]:
        """The mixture, or with several routes a tuple of one each.

        Args:
            values: one tensor a source.
            keys: one tensor a source; None takes the last `rank` coordinates of each value.
            prior: one number a source, added to its logit (in nats); -inf hides the source. A tensor that hides every
                source gives NaN.

        Raises:
            ArgumentError: values of another width; and whatever `attend` refuses.
        """
        check_sequence("values", values)
        if len(values) > 0 and getattr(values[0], "ndim", 0) > 0 and values[0].shape[-1] != self.width:
            raise ArgumentError(f"values[0]: width {values[0].shape[-1]}, but this read was made for {self.width}")
        read = attend(self.queries, keys, values, prior, eps=self.eps, gain=self.gain, impl=self.impl)
        return read.mixed[0] if self.routes == 1 else read.mixed.unbind(0)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.queries)
        if self.gain is not None:
            nn.init.ones_(self.gain)

    def extra_repr(self) -> str:
        return f"width={self.width}, rank={self.rank}, routes={self.routes}, eps={self.eps}, impl={self.impl!r}"
