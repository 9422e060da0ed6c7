"""The closed-form LDL^T factor of the covariance of a multinomial (Tanabe & Sagae 1992), for all classes at once.

diag(p) - p p^T = sum_{j<C-1} u_j u_j^T,    q_j = sum_{i>j} p_i,
u_j = sqrt(p_j q_j / q_{j-1}) (e_j - sum_{i>j} (p_i / q_j) e_i)
"""

from __future__ import annotations

import torch
from torch import Tensor


def multinomial_factor(p: Tensor, tails: Tensor, index: range) -> Tensor:
    """u_j for j in index, (J, N, C), at one position, all at once. tails: sums of p from every class to the last, (N, C)."""
    tiny, rest = torch.finfo(p.dtype).tiny, tails[:, index.start + 1 : index.stop + 1]
    scale = (p[:, index.start : index.stop] * rest / tails[:, index.start : index.stop].clamp_min(tiny)).sqrt()
    shares = p[:, None, :] / rest.clamp_min(tiny)[:, :, None]
    u = shares.mul_(-scale[:, :, None]).triu_(index.start + 1)
    u.diagonal(index.start, 1, 2).copy_(scale)
    return u.transpose(0, 1)
