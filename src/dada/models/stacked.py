"""Several wide residual networks of one kind, trained as one.

G networks are a stack: their activations lie behind each other as (G, B, H, W, C), their weights
are the rows of one (G, N) matrix. Every layer of all of them is one launch, with a group axis in
its grid. A convolution adds the residual and leaves the sums that the next BatchNorm needs; on the
way back it applies ReLU's mask and leaves the sums that BatchNorm's gradient needs. So of
BatchNorm one pass is left each way, and a layer moves

    forward   x, a | a, y                    with a residual one more
    backward  grad_y, x, g | x, g, grad_x    with a skip path one more; a, grad_y for the weights

Each network gets what it would get alone, but for rounding. G = 1 is a network by itself.

Letters: G networks, B images, H height, W width, C channels, N weights of a network, P tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dada.models.stacked_convolutions import (
    Convolution,
    backward_tiles,
    convolve,
    convolve_weights,
    forward_tiles,
    weight_tiles,
)
from dada.models.stacked_plan import Norm, Plan

PARTIALS_AT_ONCE = 1024
WEIGHTS_APART = True  # gradients of weights on a stream of their own


Sums = tuple[Tensor, int]  # of tiles, and rows of a tile


class _Pass:
    """One way through the stack and back: what is kept between the layers."""

    def __init__(
        self, plan: Plan, weights_GN: Tensor, running_GR: Tensor, dtype: torch.dtype
    ) -> None:
        self.plan, self.weights_GN, self.running_GR = plan, weights_GN, running_GR
        self.narrow_GN = weights_GN.to(dtype)
        self.grad_GN: Tensor | None = None

    def conv(
        self, of: Convolution, x: Tensor, *, more: Tensor | None = None, moments: bool = True
    ) -> tuple[Tensor, Sums]:
        tiles = forward_tiles(of)
        y, partials = convolve(of, x, self.narrow_GN, tiles=tiles, more=more, moments=moments)
        return y, (partials, tiles.rows)

    def norm(self, of: Norm, x: Tensor, sums: Sums) -> tuple[Tensor, Tensor]:
        """(relu(BatchNorm(x)), saved)."""
        from dada.models.stacked_kernels import activate

        saved_G4C = self.moments(of, x, sums)
        y, rows, block = torch.empty_like(x), x[0].numel() // of.channels, 2048 // of.channels
        activate[(-(-rows // block), len(x))](
            x, y, saved_G4C, rows, C=of.channels, BLOCK_M=block, num_warps=4
        )
        return y, saved_G4C

    def moments(self, of: Norm, x: Tensor, sums: Sums) -> Tensor:
        from dada.models.stacked_kernels import merge_moments

        partials, tile_rows = sums
        g = len(x)
        saved_G4C = x.new_empty(g, 4, of.channels, dtype=torch.float32)
        merge_moments[(of.channels, g)](
            partials,
            saved_G4C,
            self.weights_GN[:, of.at :],
            self.weights_GN[:, of.at + of.channels :],
            self.running_GR[:, of.running_at :],
            self.running_GR[:, of.running_at + of.channels :],
            partials.shape[-1],
            x[0].numel() // of.channels,
            tile_rows,
            self.weights_GN.stride(0),
            self.running_GR.stride(0),
            of.momentum,
            of.epsilon,
            C=of.channels,
            BLOCK=PARTIALS_AT_ONCE,
            num_warps=4,
        )
        return saved_G4C

    def back(
        self, of: Convolution, grad_y: Tensor, *, mask: tuple[Tensor, Tensor] | None = None,
        more: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        tiles = backward_tiles(of)
        return convolve(of, grad_y, self.narrow_GN, tiles=tiles, back=True, mask=mask, more=more)

    def weights(self, of: Convolution, x: Tensor, grad_y: Tensor) -> None:
        """On a stream of their own, beside the way back: only the optimiser waits for them."""
        grad_GN = self.grad_GN
        assert grad_GN is not None
        if self.branch is None:
            return convolve_weights(of, x, grad_y, grad_GN, tiles=weight_tiles(of))
        self.held += [x, grad_y]  # until the streams meet, no one else may have their memory
        self.branch.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(self.branch):
            convolve_weights(of, x, grad_y, grad_GN, tiles=weight_tiles(of))
        return None

    def begin_back(self) -> None:
        self.grad_GN = torch.zeros_like(self.weights_GN)
        self.held: list[Tensor] = []
        on_card = self.weights_GN.device.type == "cuda"
        self.branch = torch.cuda.Stream() if on_card and WEIGHTS_APART else None

    def end_back(self) -> Tensor:
        assert self.grad_GN is not None
        if self.branch is not None:
            torch.cuda.current_stream(self.grad_GN.device).wait_stream(self.branch)
            self.held.clear()
        return self.grad_GN

    def through_norm(
        self, of: Norm, x: Tensor, g: Tensor, saved_G4C: Tensor, partials: Tensor,
        more: Tensor | None,
    ) -> Tensor:  # fmt: skip
        from dada.models.stacked_kernels import merge_gradients, through_norm

        assert self.grad_GN is not None
        groups, rows = len(x), x[0].numel() // of.channels
        sums_G2C = saved_G4C.new_empty(groups, 2, of.channels)
        merge_gradients[(of.channels, groups)](
            partials,
            saved_G4C,
            sums_G2C,
            self.grad_GN[:, of.at :],
            self.grad_GN[:, of.at + of.channels :],
            partials.shape[-1],
            rows,
            self.grad_GN.stride(0),
            C=of.channels,
            BLOCK=PARTIALS_AT_ONCE,
            num_warps=4,
        )
        grad_x = torch.empty_like(x)
        block = 2048 // of.channels
        through_norm[(-(-rows // block), groups)](
            x,
            g,
            g if more is None else more,
            grad_x,
            saved_G4C,
            sums_G2C,
            rows,
            C=of.channels,
            MORE=more is not None,
            BLOCK_M=block,
            num_warps=4,
        )
        return grad_x


class StackedWideResNet(nn.Module):
    """G wide residual networks; images (G, B, C, H, W) to logits (G, B, classes).

    Their own class (models/wideresnet.py) reads this module, so they are modules here.
    """

    def __init__(self, networks: Sequence[nn.Module], side: int) -> None:
        super().__init__()
        self.plan = plan = Plan(networks[0], side)
        device = next(networks[0].parameters()).device
        self.weights_GN = nn.Parameter(torch.zeros(len(networks), plan.length, device=device))
        running_GR = torch.zeros(len(networks), plan.running_length, device=device)
        self.register_buffer("running_GR", running_GR)
        self.running_GR: Tensor
        for g, network in enumerate(networks):
            self.write_(g, dict(network.named_parameters()), self.weights_GN.data)
            for name, view in plan.running_rows_of(g, running_GR).items():
                view.copy_(network.get_buffer(name))

    @torch.no_grad()
    def write_(self, g: int, tensors: Mapping[str, Tensor], matrix_GN: Tensor) -> None:
        """Tensors like network g's weights, under its names, into its row of a matrix."""
        for name, view in self.plan.rows_of(g, matrix_GN).items():
            view.copy_(tensors[name])

    @torch.no_grad()
    def unstack_to(self, network: nn.Module, g: int) -> None:
        """Weights and running statistics of network g, into a network."""
        for name, view in self.plan.rows_of(g, self.weights_GN.data).items():
            network.get_parameter(name).copy_(view)
        for name, view in self.plan.running_rows_of(g, self.running_GR).items():
            network.get_buffer(name).copy_(view)

    def forward(self, images_GBCHW: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        x_GBHWC = _channels_last(images_GBCHW, self.plan.stem.c_in, dtype)
        logits: Tensor = _Network.apply(self.weights_GN, x_GBHWC, self.plan, self.running_GR)
        return logits


def _channels_last(images_GBCHW: Tensor, channels: int, dtype: torch.dtype) -> Tensor:
    g, b, c, h, w = images_GBCHW.shape
    x_GBHWC = images_GBCHW.new_zeros(g, b, h, w, channels, dtype=dtype)
    x_GBHWC[..., :c] = images_GBCHW.permute(0, 1, 3, 4, 2)
    return x_GBHWC


def logits_of_one(
    network: nn.Module, images_BCHW: Tensor, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """What a network in training computes, by the kernels of a stack of one."""
    plan = Plan(network, images_BCHW.shape[-1])
    x_GBHWC = _channels_last(images_BCHW[None], plan.stem.c_in, dtype)
    buffers = [network.get_buffer(name) for name, *_ in plan.running_places]
    running_GR = torch.cat(buffers)[None]
    weights = [network.get_parameter(name) for name, *_ in plan.places]
    logits: Tensor = _One.apply(x_GBHWC, plan, running_GR, *weights)
    with torch.no_grad():
        torch._foreach_copy_(buffers, list(plan.running_rows_of(0, running_GR).values()))
        counts = [b for name, b in network.named_buffers() if name.endswith("batches_tracked")]
        torch._foreach_add_(counts, 1)
    return logits[0]


class _Network(torch.autograd.Function):
    """(G, N) weights and images to logits, all layers."""

    @staticmethod
    def forward(
        ctx: Any, weights_GN: Tensor, x_GBHWC: Tensor, plan: Plan, running_GR: Tensor
    ) -> Tensor:
        from dada.models.stacked_kernels import pool

        way = _Pass(plan, weights_GN, running_GR, x_GBHWC.dtype)
        x, sums = way.conv(plan.stem, x_GBHWC)
        kept: list[tuple[Tensor, ...]] = []
        for block in plan.blocks:
            active1, saved1 = way.norm(block.norm1, x, sums)
            inner, sums = way.conv(block.conv1, active1)
            skip = x
            if block.shortcut is not None:
                skip = way.conv(block.shortcut, active1, moments=False)[0]
            active2, saved2 = way.norm(block.norm2, inner, sums)
            kept.append((x, active1, saved1, inner, active2, saved2))
            x, sums = way.conv(block.conv2, active2, more=skip)
        saved = way.moments(plan.norm, x, sums)
        g, b, h, w, c = x.shape
        features_GBC = x.new_empty(g, b, c, dtype=torch.float32)
        pool[(b, g)](x, features_GBC, saved, b, PIXELS=h * w, C=c, num_warps=4)
        ctx.way, ctx.kept = way, kept
        features_GBC = features_GBC.to(x.dtype)
        ctx.save_for_backward(x_GBHWC, x, saved, features_GBC)
        weight_GLC, bias_GL = plan.head_of(way.narrow_GN)
        return torch.baddbmm(bias_GL[:, None], features_GBC, weight_GLC.transpose(1, 2))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_GBL: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        from dada.models.stacked_kernels import unpool

        way: _Pass = ctx.way
        plan = way.plan
        way.begin_back()
        images, x, saved, features_GBC = ctx.saved_tensors
        assert way.grad_GN is not None
        grad_weight_GLC, grad_bias_GL = plan.head_of(way.grad_GN)
        grad_weight_GLC.copy_(grad_GBL.transpose(1, 2) @ features_GBC)
        grad_bias_GL.copy_(grad_GBL.sum(1))
        grad_GBC = grad_GBL @ plan.head_of(way.narrow_GN)[0]
        g, b, h, w, c = x.shape
        rows = 64
        count = -(-b * h * w // rows)
        behind = torch.empty_like(x)
        partials = saved.new_empty(g, 2, c, count)
        unpool[(count, g)](
            grad_GBC, x, behind, saved, partials, b,
            PIXELS=h * w, C=c, BLOCK_M=rows, num_warps=4,
        )  # fmt: skip
        grad = way.through_norm(plan.norm, x, behind, saved, partials, None)
        for block, (x, active1, saved1, inner, active2, saved2) in zip(
            reversed(plan.blocks), reversed(ctx.kept), strict=True
        ):
            way.weights(block.conv2, active2, grad)
            behind, partials = way.back(block.conv2, grad, mask=(inner, saved2))
            grad_inner = way.through_norm(block.norm2, inner, behind, saved2, partials, None)
            way.weights(block.conv1, active1, grad_inner)
            more = None
            if block.shortcut is not None:
                way.weights(block.shortcut, active1, grad)
                more, _ = way.back(block.shortcut, grad)
            behind, partials = way.back(block.conv1, grad_inner, mask=(x, saved1), more=more)
            skip = grad if block.shortcut is None else None
            grad = way.through_norm(block.norm1, x, behind, saved1, partials, skip)
        way.weights(plan.stem, images, grad)
        ctx.kept = None
        return way.end_back(), None, None, None


class _One(torch.autograd.Function):
    """The same of one network, whose weights are tensors of their own."""

    @staticmethod
    def forward(
        ctx: Any, x_GBHWC: Tensor, plan: Plan, running_GR: Tensor, *weights: Tensor
    ) -> Tensor:
        return _Network.forward(ctx, plan.joined(weights)[None], x_GBHWC, plan, running_GR)

    @staticmethod
    def backward(ctx: Any, grad_GBL: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        grad_GN = _Network.backward(ctx, grad_GBL)[0]
        return None, None, None, *ctx.way.plan.rows_of(0, grad_GN).values()
