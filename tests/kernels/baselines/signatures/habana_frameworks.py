# mypy: allow-untyped-defs
# fmt: off
"""``FusedSDPA.forward`` of HabanaAI/gaudi-pytorch-bridge, ``hpex/kernels/FusedSDPA.py``: release 1.19, and a later one.

docs.habana.ai describes the arguments; the package is for Gaudi alone.
"""


def forward_of_13(
    ctx, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, softmax_mode="None", recompute_mode=None,
    valid_seq_len=None, seq_padding_type="left", return_dropout_mask=False, return_attn_probs=False,
): ...


def forward_of_15(
    ctx, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, softmax_mode="None", recompute_mode=None,
    valid_seq_len=None, seq_padding_type="left", return_dropout_mask=False, return_attn_probs=False,
    window_size=(-1, -1), sink=None,
): ...
