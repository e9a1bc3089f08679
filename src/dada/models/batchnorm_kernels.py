"""The four Triton kernels behind `batchnorm`: two on the way forward, two on the way back.

Channels-last tensors are seen as (rows, channels), rows = B H W. A tile is BLOCK_R rows of BLOCK_C
channels. Programs are numbered with the block of channels fastest, so that neighbours in time are
neighbours in memory.

A pass that sums leaves one partial result of each program behind; the program of a block of
channels that arrives last (told by an atomic counter, which it sets back to zero) merges them, in
a fixed order: no second launch, and the same bits every time. These passes go through the tiles in
their order, the passes after them in reverse: what was read last is still in the cache.
"""

# Triton's language is not Python's: its kernels have no types to check.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def place(channels, BLOCK_C: tl.constexpr):
    """(number among the programs of this block of channels, how many they are, block)."""
    blocks = tl.cdiv(channels, BLOCK_C)
    pid = tl.program_id(0)
    return pid // blocks, tl.num_programs(0) // blocks, pid % blocks


@triton.jit
def tile_at(first, rows, channels, c, BLOCK_R: tl.constexpr):
    """Offsets and mask of the tile that starts at row `first`."""
    r = tl.arange(0, BLOCK_R)
    inside = (r < rows - first)[:, None] & (c < channels)[None, :]
    return tl.cast(first, tl.int64) * channels + (r[:, None] * channels + c[None, :]), inside


@triton.jit
def load_tile(pointer, offsets, inside):
    return tl.load(pointer + offsets, inside, other=0.0).to(tl.float32)


@triton.jit
def arrived_last(arrivals, block, programs):
    """Whether every other program of this block of channels has left its partial results."""
    # All threads have stored before one of them counts; counting also publishes their stores.
    tl.debug_barrier()
    before = tl.atomic_add(arrivals + block, 1, sem="acq_rel", scope="gpu")
    return before == programs - 1


@triton.jit
def load_partial(partials, number, programs, channels, c):
    """Of the programs `number`; past the first cache, which may not know of the others' stores."""
    inside = (number < programs)[:, None] & (c < channels)[None, :]
    offsets = number[:, None] * channels + c[None, :]
    return tl.load(partials + offsets, inside, other=0.0, cache_modifier=".cg")


@triton.jit
def rows_of(number, programs, rows, STEP: tl.constexpr):
    """Rows that program `number` reads when steps of STEP rows are dealt out in turn."""
    steps = tl.cdiv(rows, STEP)
    dealt = steps // programs + tl.where(number < steps % programs, 1, 0)
    missing = tl.where(number == (steps - 1) % programs, steps * STEP - rows, 0)
    return (dealt * STEP - missing).to(tl.float32)


@triton.jit(do_not_specialize=["rows"])
def forward_sums(
    x,
    residual,
    total,
    partials,
    arrivals,
    weight,
    bias,
    running_mean,
    running_var,
    batches,
    saved,
    rows,
    channels,
    momentum,
    epsilon,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """total = x + residual, and mean and variance of every channel.

    Each program sums x - k and (x - k)^2 with k its first row, and gives mean and
    M2 = sum (x - mean)^2. They are merged by M2 = sum_p M2_p + n_p (mean_p - mean)^2 (Chan, Golub
    and LeVeque 1979), where differences are again taken from the first. Of n numbers one of them
    is at most sqrt(n variance) from the mean, so cancelling costs n roundings at worst, and one or
    two where numbers are of one kind; sum x^2 - (sum x)^2 / n has no such bound.
    saved holds mean, 1 / deviation, weight / deviation, bias.
    """
    program, programs, block = place(channels, BLOCK_C)
    STEP: tl.constexpr = 2 * BLOCK_R
    c = block * BLOCK_C + tl.arange(0, BLOCK_C)
    known = c < channels
    first_row = (program * STEP).to(tl.int64) * channels + c
    k_C = tl.load(x + first_row, known, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        k_C += tl.load(residual + first_row, known, other=0.0).to(tl.float32)
    k = k_C[None, :]
    sums = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    squares = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for step in range(program, tl.cdiv(rows, STEP), programs):
        # Two tiles at a time, all loads before the first use: twice the bytes under way.
        here, inside_here = tile_at(step * STEP, rows, channels, c, BLOCK_R)
        next_, inside_next = tile_at(step * STEP + BLOCK_R, rows, channels, c, BLOCK_R)
        x_here, x_next = load_tile(x, here, inside_here), load_tile(x, next_, inside_next)
        if HAS_RESIDUAL:
            more_here = load_tile(residual, here, inside_here)
            more_next = load_tile(residual, next_, inside_next)
            # The statistics are those of the sum as it is stored.
            sum_here = (x_here + more_here).to(total.dtype.element_ty)
            sum_next = (x_next + more_next).to(total.dtype.element_ty)
            tl.store(total + here, sum_here, inside_here)
            tl.store(total + next_, sum_next, inside_next)
            x_here, x_next = sum_here.to(tl.float32), sum_next.to(tl.float32)
        x_here = tl.where(inside_here, x_here - k, 0.0)
        x_next = tl.where(inside_next, x_next - k, 0.0)
        sums += x_here + x_next
        squares += x_here * x_here + x_next * x_next
    count = rows_of(program, programs, rows, STEP)
    sum_C, square_C = tl.sum(sums, 0), tl.sum(squares, 0)
    shift_C = sum_C / count
    m2_C = square_C - sum_C * shift_C
    m2_C = tl.where(m2_C < 0, 0.0, m2_C)
    m2_partials = partials + programs * channels
    tl.store(partials + program * channels + c, k_C + shift_C, known)
    tl.store(m2_partials + program * channels + c, m2_C, known)

    if arrived_last(arrivals, block, programs):
        start_C = tl.load(partials + c, known, other=0.0, cache_modifier=".cg")
        sums = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
        squares = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
        for start in range(0, programs, BLOCK_R):
            number = start + tl.arange(0, BLOCK_R)
            n = tl.where(number < programs, rows_of(number, programs, rows, STEP), 0.0)[:, None]
            away = load_partial(partials, number, programs, channels, c) - start_C[None, :]
            squares += load_partial(m2_partials, number, programs, channels, c)
            sums += n * away
            squares += n * away * away
        sum_C = tl.sum(sums, 0)
        mean = start_C + sum_C / rows
        m2 = tl.sum(squares, 0) - sum_C * (sum_C / rows)
        m2 = tl.where(m2 < 0, 0.0, m2)
        inverse = tl.rsqrt(m2 / rows + epsilon)
        old_mean = tl.load(running_mean + c, known, other=0.0)
        old_var = tl.load(running_var + c, known, other=0.0)
        new_var = m2 / (rows - 1)
        tl.store(running_mean + c, old_mean * (1 - momentum) + mean * momentum, known)
        tl.store(running_var + c, old_var * (1 - momentum) + new_var * momentum, known)
        tl.store(saved + c, mean, known)
        tl.store(saved + channels + c, inverse, known)
        scale = tl.load(weight + c, known, other=0.0) * inverse
        tl.store(saved + 2 * channels + c, scale, known)
        tl.store(saved + 3 * channels + c, tl.load(bias + c, known, other=0.0), known)
        tl.store(arrivals + block, 0)
        if block == 0:
            tl.store(batches, tl.load(batches) + 1)


@triton.jit
def load_saved(saved, channels, c):
    """mean, weight / deviation and bias, as rows."""
    known = c < channels
    mean = tl.load(saved + c, known, other=0.0)
    scale = tl.load(saved + 2 * channels + c, known, other=0.0)
    bias = tl.load(saved + 3 * channels + c, known, other=0.0)
    return mean[None, :], scale[None, :], bias[None, :]


@triton.jit(do_not_specialize=["rows", "tiles_each"])
def activate(
    x,
    y,
    saved,
    rows,
    channels,
    tiles_each,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """y = relu((x - mean) weight / deviation + bias); not a number stays so."""
    program, programs, block = place(channels, BLOCK_C)
    c = block * BLOCK_C + tl.arange(0, BLOCK_C)
    mean, scale, bias = load_saved(saved, channels, c)
    first = (programs - 1 - program) * tiles_each
    for tile in range(first, first + tiles_each):
        offsets, inside = tile_at(tile * BLOCK_R, rows, channels, c, BLOCK_R)
        z = (load_tile(x, offsets, inside) - mean) * scale + bias
        tl.store(y + offsets, tl.where(z < 0, 0.0, z).to(y.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["rows"])
def backward_sums(
    x,
    grad_y,
    partials,
    arrivals,
    saved,
    sums,
    rows,
    channels,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """With g = grad_y where y > 0 and N rows: S = sum g, T = sum g (x - mean).

    sums holds the gradient of weight, T / deviation; of bias, S; and, for `backward_input`, the
    two numbers S / N and T / (N deviation^2).
    """
    program, programs, block = place(channels, BLOCK_C)
    c = block * BLOCK_C + tl.arange(0, BLOCK_C)
    known = c < channels
    mean, scale, bias = load_saved(saved, channels, c)
    plain = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    crossed = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for tile in range(program, tl.cdiv(rows, BLOCK_R), programs):
        offsets, inside = tile_at(tile * BLOCK_R, rows, channels, c, BLOCK_R)
        away = load_tile(x, offsets, inside) - mean
        g = load_tile(grad_y, offsets, inside)  # zero outside, so `away` does not matter there
        g = tl.where(away * scale + bias <= 0, 0.0, g)
        plain += g
        crossed += g * away
    crossed_partials = partials + programs * channels
    tl.store(partials + program * channels + c, tl.sum(plain, 0), known)
    tl.store(crossed_partials + program * channels + c, tl.sum(crossed, 0), known)

    if arrived_last(arrivals, block, programs):
        plain = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
        crossed = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
        for start in range(0, programs, BLOCK_R):
            number = start + tl.arange(0, BLOCK_R)
            plain += load_partial(partials, number, programs, channels, c)
            crossed += load_partial(crossed_partials, number, programs, channels, c)
        inverse = tl.load(saved + channels + c, known, other=0.0)
        grad_bias = tl.sum(plain, 0)
        grad_weight = tl.sum(crossed, 0) * inverse
        tl.store(sums + c, grad_weight, known)
        tl.store(sums + channels + c, grad_bias, known)
        tl.store(sums + 2 * channels + c, grad_bias / rows, known)
        tl.store(sums + 3 * channels + c, grad_weight * inverse / rows, known)
        tl.store(arrivals + block, 0)


@triton.jit(do_not_specialize=["rows", "tiles_each"])
def backward_input(
    x,
    grad_y,
    grad_total,
    grad_x,
    saved,
    sums,
    rows,
    channels,
    tiles_each,
    HAS_GRAD_TOTAL: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """weight / deviation (g - S / N - (x - mean) T / (N deviation^2)), plus grad_total."""
    program, programs, block = place(channels, BLOCK_C)
    c = block * BLOCK_C + tl.arange(0, BLOCK_C)
    known = c < channels
    mean, scale, bias = load_saved(saved, channels, c)
    level = tl.load(sums + 2 * channels + c, known, other=0.0)[None, :]
    slope = tl.load(sums + 3 * channels + c, known, other=0.0)[None, :]
    first = (programs - 1 - program) * tiles_each
    for tile in range(first, first + tiles_each):
        offsets, inside = tile_at(tile * BLOCK_R, rows, channels, c, BLOCK_R)
        away = load_tile(x, offsets, inside) - mean
        g = load_tile(grad_y, offsets, inside)
        if HAS_GRAD_TOTAL:
            more = load_tile(grad_total, offsets, inside)
        g = tl.where(away * scale + bias <= 0, 0.0, g)
        grad = scale * (g - level - away * slope)
        if HAS_GRAD_TOTAL:
            grad += more
        tl.store(grad_x + offsets, grad.to(grad_x.dtype.element_ty), inside)
