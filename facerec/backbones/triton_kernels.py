"""The kernels of ``triton_batch_norm``, which says what they do together.

Activations are matrices, (rows, C) with rows = N·H·W, as channels-last memory has them. A program
takes COLUMNS channels and ``share`` rows, ROWS at a time, and keeps its sums in registers; those of
all programs, (programs, kinds, C), are added up by `merge_moments` and `merge_sums`.
"""

import triton
import triton.language as tl

from facerec.triton_launch import Launcher


@triton.jit
def _place(share, C: tl.constexpr, COLUMNS: tl.constexpr):
    """Return a program's channels, which of them there are, and its first row."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    return column, column < C, tl.program_id(0) * share


@triton.jit
def _block(start, rows, column, there, C: tl.constexpr, ROWS: tl.constexpr):
    """Return the places of ROWS rows, and which of them there are."""
    row = start + tl.arange(0, ROWS)
    return row[:, None].to(tl.int64) * C + column[None, :], (row < rows)[:, None] & there[None, :]


@triton.jit
def _take(source, place, mask):
    return tl.load(source + place, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _activated(x, mean, scale, shift, slope, ACTIVATION: tl.constexpr):
    """Return PReLU(scale·(x − mean) + shift), or that without PReLU."""
    y = (x - mean[None, :]) * scale[None, :] + shift[None, :]
    if ACTIVATION:
        y = tl.where(y > 0, y, y * slope[None, :])
    return y


@triton.jit
def _store_moments(partial, first, total, squares, share, rows, column, there, C: tl.constexpr):
    """Store mean and sum of squared deviations of a program's rows, which are summed less first."""
    count = tl.minimum(rows - tl.program_id(0) * share, share).to(tl.float32)
    total = tl.sum(total, 0)
    partial += tl.program_id(0) * 2 * C + column
    tl.store(partial, tl.sum(first, 0) + total / count, mask=there)
    tl.store(partial + C, tl.sum(squares, 0) - total * total / count, mask=there)


@Launcher
@triton.jit(do_not_specialize=["rows", "share"])
def moments(x, partial, rows, share, C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Write mean and sum of squared deviations of each program's rows, (programs, 2, C)."""
    column, there, begin = _place(share, C, COLUMNS)
    # Squares lose nothing if what is squared is small: numbers less the first of the program's.
    one, real = _block(begin, begin + 1, column, there, C, 1)
    first = _take(x, one, real)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    squares = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(begin, begin + share, ROWS):
        place, mask = _block(start, rows, column, there, C, ROWS)
        value = tl.where(mask, _take(x, place, mask) - first, 0.0)
        total += value
        squares += value * value
    _store_moments(partial, first, total, squares, share, rows, column, there, C)


@triton.jit
def _partials(
    partial, start, kind, kinds, programs, column, C: tl.constexpr, PROGRAMS: tl.constexpr
):
    """Return what PROGRAMS programs have written of a kind."""
    program = start + tl.arange(0, PROGRAMS)
    mask = (program < programs)[:, None] & (column < C)[None, :]
    return _take(partial, ((program * kinds + kind) * C)[:, None] + column[None, :], mask)


@Launcher
@triton.jit(do_not_specialize=["programs", "rows", "share", "momentum", "epsilon"])
def merge_moments(
    partial,
    statistics,
    running_mean,
    running_variance,
    programs,
    rows,
    share,
    momentum,
    epsilon,
    C: tl.constexpr,
    PROGRAMS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write mean and 1/σ, (2, C), and move the running mean and unbiased variance there.

    Deviations go together by the formula of Chan, Golub and LeVeque (1983).
    """
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((PROGRAMS, COLUMNS), tl.float32)
    for start in range(0, programs, PROGRAMS):
        count = tl.minimum(rows - (start + tl.arange(0, PROGRAMS)) * share, share)[:, None]
        total += _partials(partial, start, 0, 2, programs, column, C, PROGRAMS) * count
    mean = tl.sum(total, 0) / rows
    spread = tl.zeros((PROGRAMS, COLUMNS), tl.float32)
    for start in range(0, programs, PROGRAMS):
        # Beyond the last program there are no rows.
        count = tl.maximum(tl.minimum(rows - (start + tl.arange(0, PROGRAMS)) * share, share), 0)
        off = _partials(partial, start, 0, 2, programs, column, C, PROGRAMS) - mean[None, :]
        spread += _partials(partial, start, 1, 2, programs, column, C, PROGRAMS)
        spread += off * off * count[:, None]
    variance = tl.sum(spread, 0) / rows
    there = column < C
    tl.store(statistics + column, mean, mask=there)
    tl.store(statistics + C + column, 1.0 / tl.sqrt(variance + epsilon), mask=there)
    old = tl.load(running_mean + column, mask=there)
    tl.store(running_mean + column, old + momentum * (mean - old), mask=there)
    unbiased = variance * (rows / tl.maximum(rows - 1, 1))
    old = tl.load(running_variance + column, mask=there)
    tl.store(running_variance + column, old + momentum * (unbiased - old), mask=there)


@Launcher
@triton.jit(do_not_specialize=["rows", "share"])
def activate(
    x,
    residual,
    result,
    statistics,
    weight,
    bias,
    slope,
    partial,
    rows,
    share,
    ACTIVATION: tl.constexpr,
    RESIDUAL: tl.constexpr,
    MEASURE: tl.constexpr,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write PReLU(γ·(x − mean)/σ + β) + residual; MEASURE takes moments of it, see `moments`."""
    column, there, begin = _place(share, C, COLUMNS)
    mean = _take(statistics, column, there)
    scale = _take(statistics + C, column, there) * _take(weight, column, there)
    shift, bend = _take(bias, column, there), _take(slope, column, there)
    if MEASURE:
        one, real = _block(begin, begin + 1, column, there, C, 1)
        first = _activated(_take(x, one, real), mean, scale, shift, bend, ACTIVATION)
        if RESIDUAL:
            first += _take(residual, one, real)
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        squares = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(begin, begin + share, ROWS):
        place, mask = _block(start, rows, column, there, C, ROWS)
        value = _activated(_take(x, place, mask), mean, scale, shift, bend, ACTIVATION)
        if RESIDUAL:
            value += _take(residual, place, mask)
        rounded = value.to(result.dtype.element_ty)
        tl.store(result + place, rounded, mask=mask)
        if MEASURE:
            value = tl.where(mask, rounded.to(tl.float32) - first, 0.0)
            total += value
            squares += value * value
    if MEASURE:
        _store_moments(partial, first, total, squares, share, rows, column, there, C)


@triton.jit
def _parameters(statistics, weight, bias, slope, column, there, C: tl.constexpr):
    """Return mean, 1/σ, γ, β and PReLU's slope of a program's channels, as rows."""
    return (
        _take(statistics, column, there)[None, :],
        _take(statistics + C, column, there)[None, :],
        _take(weight, column, there)[None, :],
        _take(bias, column, there)[None, :],
        _take(slope, column, there)[None, :],
    )


@Launcher
@triton.jit(do_not_specialize=["rows", "share"])
def parameter_sums(
    gradient,
    x,
    statistics,
    weight,
    bias,
    slope,
    partial,
    rows,
    share,
    ACTIVATION: tl.constexpr,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write each program's sums for the gradients of β, γ and PReLU's slope, (programs, 3, C)."""
    column, there, begin = _place(share, C, COLUMNS)
    mean, inverse, scale, shift, bend = _parameters(
        statistics, weight, bias, slope, column, there, C
    )
    to_shift = tl.zeros((ROWS, COLUMNS), tl.float32)
    to_scale = tl.zeros((ROWS, COLUMNS), tl.float32)
    to_bend = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(begin, begin + share, ROWS):
        place, mask = _block(start, rows, column, there, C, ROWS)
        value = (_take(x, place, mask) - mean) * inverse
        grown = _take(gradient, place, mask)  # 0 where there are no rows
        if ACTIVATION:
            before = value * scale + shift
            to_bend += tl.where(before > 0, 0.0, grown * before)
            grown = tl.where(before > 0, grown, grown * bend)
        to_shift += grown
        to_scale += grown * value
    partial += tl.program_id(0) * 3 * C + column
    tl.store(partial, tl.sum(to_shift, 0), mask=there)
    tl.store(partial + C, tl.sum(to_scale, 0), mask=there)
    if ACTIVATION:
        tl.store(partial + 2 * C, tl.sum(to_bend, 0), mask=there)


@Launcher
@triton.jit(do_not_specialize=["programs"])
def merge_sums(
    partial, sums, programs, C: tl.constexpr, PROGRAMS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Add up the sums of all programs, (kinds, C), in their order."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((PROGRAMS, COLUMNS), tl.float32)
    for start in range(0, programs, PROGRAMS):
        total += _partials(partial, start, tl.program_id(1), 3, programs, column, C, PROGRAMS)
    tl.store(sums + tl.program_id(1) * C + column, tl.sum(total, 0), mask=column < C)


@Launcher
@triton.jit(do_not_specialize=["rows", "share"])
def propagate(
    gradient,
    x,
    beside,
    result,
    statistics,
    sums,
    weight,
    bias,
    slope,
    rows,
    share,
    ACTIVATION: tl.constexpr,
    BESIDE: tl.constexpr,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write γ/σ·(g − mean g − x̂·mean(g·x̂)) with g = PReLU'·gradient, plus ``beside``."""
    column, there, begin = _place(share, C, COLUMNS)
    mean, inverse, scale, shift, bend = _parameters(
        statistics, weight, bias, slope, column, there, C
    )
    even = _take(sums, column, there)[None, :] / rows
    along = _take(sums + C, column, there)[None, :] / rows
    for start in range(begin, begin + share, ROWS):
        place, mask = _block(start, rows, column, there, C, ROWS)
        value = (_take(x, place, mask) - mean) * inverse
        grown = _take(gradient, place, mask)
        if ACTIVATION:
            grown = tl.where(value * scale + shift > 0, grown, grown * bend)
        value = scale * inverse * (grown - even - value * along)
        if BESIDE:
            value += _take(beside, place, mask)
        tl.store(result + place, value.to(result.dtype.element_ty), mask=mask)
