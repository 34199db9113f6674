"""Float32 logarithm, sine and cosine, bit-identical to torch's vectorised CPU noise.

NumPy's own differ in the last bit. The polynomials are those of the Cephes library (Moshier, 1989;
single precision logf, sinf, cosf), evaluated with fused multiply-adds as AVX2 machines do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
_SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
_LN2 = (-2.12194440e-4, 0.693359375)
"""Logarithm of 2 in two parts: a small correction and a short, exact number."""
_QUARTER_PI = (0.78515625, 2.4187564849853515625e-4, 3.77489497744594108e-8)
"""π / 4 in three parts, for an exact reduction of the angle."""
_SQRT_HALF = np.float32(0.707106781186547524)
_HALF = np.float32(0.5)


def _fma(a: Floats, b: Floats | np.float32 | float, c: Floats | float) -> Floats:
    """Compute a · b + c, rounded once: float64 holds the product of two float32 exactly."""
    b, c = np.asarray(b, np.float32), np.asarray(c, np.float32)
    return (a.astype(np.float64) * b + c).astype(np.float32)


def _polynomial(x: Floats, coefficients: tuple[float, ...]) -> Floats:
    """Evaluate a polynomial by Horner's scheme in float32, the highest power first."""
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = _fma(total, x, coefficient)
    return total


def log(x: Floats) -> Floats:
    """Compute the natural logarithm of positive normal numbers in float32, as torch does."""
    bits = x.view(np.int32)
    exponent = ((bits >> 23) - 126).astype(np.float32)
    mantissa = ((bits & 0x007F_FFFF) | 0x3F00_0000).view(np.float32)
    small = mantissa < _SQRT_HALF
    exponent = exponent - small.astype(np.float32)
    y = mantissa - np.float32(1) + np.where(small, mantissa, np.float32(0))
    square = y * y
    tail = _fma(_polynomial(y, _LOG) * y, square, exponent * np.float32(_LN2[0]))
    tail = _fma(-square, _HALF, tail)
    return _fma(exponent, _LN2[1], y + tail)


def sincos(angle: Floats) -> tuple[Floats, Floats]:
    """Compute sine and cosine of angles from 0 to 2 π in float32, as torch does."""
    octant = ((angle * np.float32(4 / np.pi)).astype(np.int32) + 1) & ~1
    x = angle
    for part in _QUARTER_PI:
        x = _fma(-octant.astype(np.float32), part, x)
    square = x * x
    cosine = _polynomial(square, _COS) * square
    cosine = _fma(cosine, square, -(square * _HALF)) + np.float32(1)
    sine = _fma(_polynomial(square, _SIN) * square, x, x)
    swapped = (octant & 2) != 0
    sine, cosine = np.where(swapped, cosine, sine), np.where(swapped, sine, cosine)
    return np.where(octant & 4, -sine, sine), np.where((octant - 2) & 4, cosine, -cosine)
