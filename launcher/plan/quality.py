"""How much a cache tier costs in quality, as a class that a person can use to choose.

The measure is the KL divergence of the next token's distribution against an f16 cache. It follows the distortion of the
stored rows: KL ≈ 5.5·D_K + 0.8·D_V on SmolLM2-135M (head length 64: the hardest case), where D is the mean squared
error of a unit Gaussian row after rotation. Measured points: q8_0:q8_0 0.0039, q8_0:q4_0 0.0101, iq4_nl 0.0427,
q4_0 0.0522, turbo3 0.244 (floor 0.0034 included). Other models differ by a factor, hardly in their order.
"""

from __future__ import annotations

from launcher.profile.tier import Tier

_FLOOR = 0.0034  # f16 through another kernel: no tier can be told from f16 below it
_K, _V = 5.5, 0.8
_DISTORTION = {
    "f32": 0.0,
    "f16": 0.0,
    "bf16": 3e-6,
    "q8_0": 3e-5,
    "q5_1": 0.0014,
    "q5_0": 0.0018,
    "iq4_nl": 0.0058,
    "q4_1": 0.0066,
    "q4_0": 0.0074,
    "turbo4": 0.0083,
    "turbo3": 0.0311,
    "turbo2": 0.1117,
}
_EXACT_GAIN = 3.7  # q4_0 0.0458 → 0.0124 with the first 4 and the newest 32 tokens kept exact
_CLASSES = ((0.0001, "exact"), (0.003, "near-exact"), (0.02, "good"), (0.06, "fair"), (0.3, "poor"))


def divergence(tier: Tier, *, exact_tokens: bool = False) -> float:
    """The expected KL divergence, without the floor."""
    loss = _K * _DISTORTION[tier.k] + _V * _DISTORTION[tier.v]
    # beyond small losses the straight line is too low: turbo3 is 0.196 by it, 0.244 measured; turbo2 0.70 and 1.21
    loss *= 1 + loss
    return loss / _EXACT_GAIN if exact_tokens else loss


def quality_class(tier: Tier, *, exact_tokens: bool = False) -> str:
    """`exact`, `near-exact` (q8_0), `good` (q8_0:q4_0), `fair` (q4_0), `poor`, `broken`."""
    loss = divergence(tier, exact_tokens=exact_tokens)
    return next((name for limit, name in _CLASSES if loss <= limit), "broken")
