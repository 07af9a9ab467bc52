"""What is compared: each peer holds the weights of one of our models, and does the same work.

A peer has some of these methods:

- ``logits(src, tgt)`` and ``train(batch)``, a step of training;
- ``greedy(src, n)`` and ``beam(src, n, size)``, which write ``n`` tokens for each source.

What it lacks, it cannot do. Each is used as well as its interface allows: a padding mask only where
something is padded, fused attention where it is offered, the same fused optimiser for all.
"""

from .base import Peer
from .ct2 import CTranslate2, CTranslate2Int8, CTranslate2Int8Workers, CTranslate2Workers
from .labml import Labml
from .marian import Marian
from .ours import Naive, Ours, OursCompiled, OursInt8, OursInWorkers
from .own import TorchTransformer
from .xtransformers import XTransformers

PEERS: list[type[Peer]] = [
    Ours,
    OursCompiled,
    TorchTransformer,
    Marian,
    XTransformers,
    Labml,
    CTranslate2,
    OursInWorkers,
    CTranslate2Workers,
    OursInt8,
    CTranslate2Int8,
    CTranslate2Int8Workers,
    Naive,
]
