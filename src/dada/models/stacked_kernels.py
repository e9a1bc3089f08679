"""Triton kernels for stacks of networks: BatchNorm, ReLU and convolution of G networks at once.

Tensors are (G, B, H, W, C), contiguous: G channels-last batches behind each other. Inside a group
they are seen as (rows, C), rows = B H W. Weights are (G, C_out, kernel, kernel, C_in), which is how
torch keeps a channels-last convolution; G groups may be any stride apart.

No sum is taken by atomics. A kernel that sums leaves one partial result for each tile of rows, and
a small kernel merges them in a fixed order: the same bits every time.

`saved` is (G, 4, C): scale and shift, so that BatchNorm is x scale + shift; mean; 1 / deviation.
`partials` is (G, 2, C, tiles).
"""

# Triton's language is not Python's: its kernels have no types to check.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def active(x, saved, c, C: tl.constexpr):
    """relu(x scale + shift); not a number stays so. The one formula, so that masks agree."""
    z = tl.fma(x.to(tl.float32), tl.load(saved + c)[None, :], tl.load(saved + C + c)[None, :])
    return tl.maximum(z, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit(do_not_specialize=["rows"])
def activate(x, y, saved, rows, C: tl.constexpr, BLOCK_M: tl.constexpr):
    """y = relu(BatchNorm(x))."""
    group = tl.program_id(1).to(tl.int64)
    r, c = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, C)
    inside = tl.broadcast_to((r < rows)[:, None], (BLOCK_M, C))
    before, here = group * rows * C, r[:, None] * C + c[None, :]
    value = active(tl.load(x + before + here, inside, other=0.0), saved + group * (4 * C), c, C)
    tl.store(y + before + here, value.to(y.dtype.element_ty), inside)


@triton.jit
def pixel_of(t, STRIDE: tl.constexpr):
    """Of pixels STRIDE apart: (which, and how far behind it) for t pixels from the first."""
    if STRIDE == 1:
        return t, 0
    return t >> 1, t & 1


@triton.jit(do_not_specialize=["batch"])
def convolve(
    x, weight, more, y, masked_by, saved_out, partials, batch,
    C_IN: tl.constexpr, C_OUT: tl.constexpr, SIDE: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr,
    BACK: tl.constexpr, MORE: tl.constexpr, SUMS: tl.constexpr, PRECISION: tl.constexpr,
    IMAGES: tl.constexpr, LINES: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """y = convolution of x, plus `more`; a tile is IMAGES x LINES lines of SIDE pixels.

    x is a tensor descriptor of (G B, H / s, s, W / s, s C), s the stride (1 on the way back): the
    copy engine moves a tile by a tap of the kernel, and puts zeros where it leaves the image, so
    that nothing is left to compute but products. weight is one of (G, C_out, taps C_in).

    BACK: by the transposed kernel, as the gradient goes. C_IN and C_OUT are those of this kernel's
    x and y whichever way it goes. With stride 2, a tile has the pixels of y of one parity: each
    meets other taps of the kernel.

    SUMS: 0 none. 1: mean and sum of squares about it, of each channel of y, for the next BatchNorm.
    2: y is a gradient g behind a ReLU; it is masked by BatchNorm(masked_by) > 0, and the sums are
    those of g and of g (masked_by - mean).
    """
    BLOCK_M: tl.constexpr = IMAGES * LINES * SIDE
    PAD: tl.constexpr = KERNEL // 2
    PARTS: tl.constexpr = C_IN // BLOCK_K
    BESIDE: tl.constexpr = SIDE // LINES  # tiles of an image
    SPREAD: tl.constexpr = STRIDE if BACK else 1  # pixels of y from one of the tile to the next
    number, group = tl.program_id(0), tl.program_id(1)
    tile, parity = number, 0
    if SPREAD == 2:
        tile, parity = number // 4, number % 4
    odd_line, odd_column = parity // 2, parity % 2
    image, line = tile // BESIDE * IMAGES, tile % BESIDE * LINES
    taps_down, taps_across = KERNEL, KERNEL
    if SPREAD == 2:
        taps_down = 1 + odd_line if KERNEL == 3 else 1 - odd_line
        taps_across = 1 + odd_column if KERNEL == 3 else 1 - odd_column
    acc = tl.zeros((BLOCK_M, C_OUT), tl.float32)
    for step in tl.range(0, taps_down * taps_across * PARTS, num_stages=STAGES):
        c = step % PARTS * BLOCK_K
        down, across = step // PARTS // taps_across, step // PARTS % taps_across
        if SPREAD == 2:
            down, across = PAD - odd_line * PAD + 2 * down, PAD - odd_column * PAD + 2 * across
        tap = down * KERNEL + across
        if BACK:
            up, left = (odd_line + PAD - down) // SPREAD, (odd_column + PAD - across) // SPREAD
            a = x.load([group * batch + image, line + up, 0, left, c])
            w = tl.reshape(weight.load([group, c, tap * C_OUT]), (BLOCK_K, C_OUT))
        else:
            up, further_up = pixel_of(down - PAD, STRIDE)
            left, further_left = pixel_of(across - PAD, STRIDE)
            at = [group * batch + image, line + up, further_up, left, further_left * C_IN + c]
            a = x.load(at)
            w = tl.reshape(weight.load([group, 0, tap * C_IN + c]), (C_OUT, BLOCK_K)).T
        acc = tl.dot(tl.reshape(a, (BLOCK_M, BLOCK_K)), w, acc, input_precision=PRECISION)
    p, n = tl.arange(0, BLOCK_M), tl.arange(0, C_OUT)
    image += p // (LINES * SIDE)
    line = (line + p // SIDE % LINES) * SPREAD + odd_line
    r = (image * (SIDE * SPREAD) + line) * (SIDE * SPREAD) + p % SIDE * SPREAD + odd_column
    rows = batch * (SIDE * SIDE * SPREAD * SPREAD)
    finish(acc, r, image < batch, n, group.to(tl.int64), rows, number, more, y, masked_by,
           saved_out, partials, C_OUT, MORE, SUMS, BLOCK_M)  # fmt: skip


@triton.jit
def finish(
    value, r, within, n, group, rows, tile, more, y, masked_by, saved, partials,
    C: tl.constexpr, MORE: tl.constexpr, SUMS: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Adds, masks, stores and sums a tile of y."""
    inside = tl.broadcast_to(within[:, None], value.shape)
    before, here = group * rows * C, r[:, None] * C + n[None, :]
    saved += group * (4 * C)
    if MORE:
        value += tl.load(more + before + here, inside, other=0.0).to(tl.float32)
    if SUMS == 2:
        x = tl.load(masked_by + before + here, inside, other=0.0).to(tl.float32)
        z = tl.fma(x, tl.load(saved + n)[None, :], tl.load(saved + C + n)[None, :])
        value = tl.where(z <= 0, 0.0, value)
    kept = value.to(y.dtype.element_ty)
    tl.store(y + before + here, kept, inside)
    if SUMS > 0:
        tiles = tl.num_programs(0)
        partials += group * (2 * C * tiles) + tile
        # The sums are those of what is stored.
        value = tl.where(inside, kept.to(tl.float32), 0.0)
        total = tl.sum(value, 0)
        if SUMS == 1:
            count = tl.minimum(rows - tile * BLOCK_M, BLOCK_M).to(tl.float32)
            total = total / count
            away = tl.where(inside, value - total[None, :], 0.0)
            other = tl.sum(away * away, 0)
        else:
            other = tl.sum(value * (x - tl.load(saved + 2 * C + n)[None, :]), 0)
        tl.store(partials + n * tiles, total)
        tl.store(partials + (C + n) * tiles, other)


@triton.jit(
    do_not_specialize=["tiles", "rows", "tile_rows", "group_of_weights", "group_of_running"]
)
def merge_moments(
    partials, saved, weight, bias, running_mean, running_var, tiles, rows, tile_rows,
    group_of_weights, group_of_running, momentum, epsilon,
    C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Mean and variance of one channel of one group (Chan, Golub and LeVeque 1979)."""
    c, group = tl.program_id(0), tl.program_id(1).to(tl.int64)
    means = partials + (group * 2 * C + c) * tiles
    squares = means + C * tiles
    start = tl.load(means)
    sums = tl.zeros((BLOCK,), tl.float32)
    m2s = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, tiles, BLOCK):
        tile = first + tl.arange(0, BLOCK)
        inside = tile < tiles
        count = tl.where(inside, tl.minimum(rows - tile * tile_rows, tile_rows), 0).to(tl.float32)
        away = tl.load(means + tile, inside, other=0.0) - start
        m2s += tl.load(squares + tile, inside, other=0.0) + count * away * away
        sums += count * away
    total = tl.sum(sums, 0)
    mean = start + total / rows
    m2 = tl.maximum(tl.sum(m2s, 0) - total * (total / rows), 0.0)
    inverse = tl.rsqrt(m2 / rows + epsilon)
    scale = tl.load(weight + group * group_of_weights + c) * inverse
    shift = tl.load(bias + group * group_of_weights + c) - mean * scale
    saved += group * (4 * C) + c
    tl.store(saved, scale)
    tl.store(saved + C, shift)
    tl.store(saved + 2 * C, mean)
    tl.store(saved + 3 * C, inverse)
    running_mean += group * group_of_running + c
    running_var += group * group_of_running + c
    variance = m2 / (rows - 1)
    tl.store(running_mean, tl.load(running_mean) * (1 - momentum) + mean * momentum)
    tl.store(running_var, tl.load(running_var) * (1 - momentum) + variance * momentum)


@triton.jit(do_not_specialize=["tiles", "rows", "group_of_weights"])
def merge_gradients(
    partials, saved, sums, grad_weight, grad_bias, tiles, rows, group_of_weights,
    C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of BatchNorm's weight and bias, and (G, 2, C) numbers for `through_norm`."""
    c, group = tl.program_id(0), tl.program_id(1).to(tl.int64)
    plain = partials + (group * 2 * C + c) * tiles
    crossed = plain + C * tiles
    plains = tl.zeros((BLOCK,), tl.float32)
    crosses = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, tiles, BLOCK):
        tile = first + tl.arange(0, BLOCK)
        plains += tl.load(plain + tile, tile < tiles, other=0.0)
        crosses += tl.load(crossed + tile, tile < tiles, other=0.0)
    inverse = tl.load(saved + (group * 4 + 3) * C + c)
    by_bias = tl.sum(plains, 0)
    by_weight = tl.sum(crosses, 0) * inverse
    tl.store(grad_bias + group * group_of_weights + c, by_bias)
    tl.store(grad_weight + group * group_of_weights + c, by_weight)
    tl.store(sums + group * (2 * C) + c, by_bias / rows)
    tl.store(sums + group * (2 * C) + C + c, by_weight * inverse / rows)


@triton.jit(do_not_specialize=["rows"])
def through_norm(
    x, g, more, grad_x, saved, sums, rows,
    C: tl.constexpr, MORE: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """grad_x = scale (g - S / N - (x - mean) T / (N deviation^2)), plus `more`."""
    group = tl.program_id(1).to(tl.int64)
    r = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.arange(0, C)
    inside = tl.broadcast_to((r < rows)[:, None], (BLOCK_M, C))
    before, here = group * rows * C, r[:, None] * C + c[None, :]
    saved += group * (4 * C) + c
    sums += group * (2 * C) + c
    scale, mean = tl.load(saved)[None, :], tl.load(saved + 2 * C)[None, :]
    level, slope = tl.load(sums)[None, :], tl.load(sums + C)[None, :]
    away = tl.load(x + before + here, inside, other=0.0).to(tl.float32) - mean
    behind = tl.load(g + before + here, inside, other=0.0).to(tl.float32)
    grad = scale * (behind - level - away * slope)
    if MORE:
        grad += tl.load(more + before + here, inside, other=0.0).to(tl.float32)
    tl.store(grad_x + before + here, grad.to(grad_x.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["batch", "splits", "steps"])
def convolve_weights(
    x, grad_y, partials, batch, splits, steps,
    C_IN: tl.constexpr, C_OUT: tl.constexpr, SIDE: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PRECISION: tl.constexpr,
    IMAGES: tl.constexpr, LINES: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The gradient of a convolution's weights: one of `splits` parts of the sum over pixels.

    partials is (splits, G, C_out, kernel, kernel, C_in). A program has a line of the kernel,
    BLOCK_C channels of x and BLOCK_N of y. x and grad_y are tensor descriptors, x's as in
    `convolve`, grad_y's of (G, rows, C_out).
    """
    BLOCK_P: tl.constexpr = IMAGES * LINES * SIDE
    BESIDE: tl.constexpr = SIDE // LINES
    ACROSS: tl.constexpr = C_IN // BLOCK_C
    split, group = tl.program_id(0) % splits, tl.program_id(0) // splits
    groups = tl.num_programs(0) // splits
    kernel_line = tl.program_id(1)
    c = tl.program_id(2) % ACROSS * BLOCK_C
    n = tl.program_id(2) // ACROSS * BLOCK_N
    up, further_up = pixel_of(kernel_line - KERNEL // 2, STRIDE)
    first = split * steps
    last = tl.minimum(first + steps, tl.cdiv(batch * (SIDE * SIDE), BLOCK_P))
    middle = tl.zeros((BLOCK_C, BLOCK_N), tl.float32)
    if KERNEL == 3:
        left = tl.zeros((BLOCK_C, BLOCK_N), tl.float32)
        right = tl.zeros((BLOCK_C, BLOCK_N), tl.float32)
    for tile in tl.range(first, last, num_stages=STAGES):
        image, line = group * batch + tile // BESIDE * IMAGES, tile % BESIDE * LINES + up
        g = tl.reshape(grad_y.load([group, tile * BLOCK_P, n]), (BLOCK_P, BLOCK_N))
        a = x.load([image, line, further_up, 0, c])
        middle = tl.dot(tl.reshape(a, (BLOCK_P, BLOCK_C)).T, g, middle, input_precision=PRECISION)
        if KERNEL == 3:
            FURTHER: tl.constexpr = 0 if STRIDE == 1 else C_IN
            a = x.load([image, line, further_up, -1, FURTHER + c])
            left = tl.dot(tl.reshape(a, (BLOCK_P, BLOCK_C)).T, g, left, input_precision=PRECISION)
            a = x.load([image, line, further_up, 1 if STRIDE == 1 else 0, FURTHER + c])
            right = tl.dot(tl.reshape(a, (BLOCK_P, BLOCK_C)).T, g, right, input_precision=PRECISION)
    partials += (split * groups + group).to(tl.int64) * (C_OUT * KERNEL * KERNEL * C_IN)
    to = partials + (n + tl.arange(0, BLOCK_N))[None, :] * (KERNEL * KERNEL * C_IN)
    to += kernel_line * (KERNEL * C_IN) + c + tl.arange(0, BLOCK_C)[:, None]
    if KERNEL == 3:
        tl.store(to, left)
        tl.store(to + C_IN, middle)
        tl.store(to + 2 * C_IN, right)
    else:
        tl.store(to, middle)


@triton.jit(do_not_specialize=["splits", "each", "group_of_weights"])
def merge_weights(
    partials, grad, splits, each, group_of_weights, BLOCK_S: tl.constexpr, BLOCK: tl.constexpr
):
    """The sum of the parts, into the weights' place in the group's gradients."""
    group, groups = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < each
    total = tl.zeros((BLOCK_S, BLOCK), tl.float32)
    for first in range(0, splits, BLOCK_S):
        split = first + tl.arange(0, BLOCK_S)
        at = partials + (split * groups + group)[:, None] * each + i[None, :]
        total += tl.load(at, (split < splits)[:, None] & inside[None, :], other=0.0)
    tl.store(grad + group * group_of_weights + i, tl.sum(total, 0), inside)


@triton.jit(do_not_specialize=["batch"])
def pool(x, y, saved, batch, PIXELS: tl.constexpr, C: tl.constexpr):
    """The mean over pixels of relu(BatchNorm(x))."""
    image, group = tl.program_id(0), tl.program_id(1).to(tl.int64)
    p, c = tl.arange(0, PIXELS), tl.arange(0, C)
    at = (group * batch + image) * (PIXELS * C)
    a = active(tl.load(x + at + p[:, None] * C + c[None, :]), saved + group * (4 * C), c, C)
    tl.store(y + (group * batch + image) * C + c, tl.sum(a, 0) / PIXELS)


@triton.jit(do_not_specialize=["batch"])
def unpool(
    grad_y, x, g, saved, partials, batch, PIXELS: tl.constexpr, C: tl.constexpr,
    BLOCK_M: tl.constexpr,
):  # fmt: skip
    """The gradient behind the ReLU of a network's end, and its sums, as of `convolve`."""
    tile, group = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows = batch * PIXELS
    r, c = tile * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, C)
    within = r < rows
    image = group * batch + r // PIXELS
    value = tl.load(grad_y + image[:, None] * C + c[None, :], within[:, None], other=0.0)
    finish(
        value.to(tl.float32) / PIXELS, r, within, c, group, rows, tile, g, g, x, saved, partials,
        C, False, 2, BLOCK_M,
    )  # fmt: skip
