"""The baselines of each operation, the usual ones first."""

from typing import Final

from autotune.kernels.baselines.cudnn import CUDNN
from autotune.kernels.baselines.eager import Eager
from autotune.kernels.baselines.flash_attention_3 import FlashAttention2, FlashAttention3
from autotune.kernels.baselines.flash_infer import FlashInfer
from autotune.kernels.baselines.flash_infer_latent import FlashInferLatent
from autotune.kernels.baselines.flex import Flex
from autotune.kernels.baselines.gaudi import FlatPaged, FusedSdpa, InitialPaged
from autotune.kernels.baselines.kv_cache import ContiguousCache
from autotune.kernels.baselines.naive import Naive
from autotune.kernels.baselines.packed import FlexDocuments, SdpaLoop, TorchVarlen
from autotune.kernels.baselines.sdpa import SDPA
from autotune.operation import Baseline

_LIBRARIES: Final = (FlashAttention3(), FlashAttention2(), FlashInfer())
OF_ATTENTION: Final[tuple[Baseline, ...]] = (*SDPA, *CUDNN, *_LIBRARIES, Flex(), Eager(), Naive(), FusedSdpa())
OF_VARLEN: Final[tuple[Baseline, ...]] = (TorchVarlen(), SdpaLoop(), FlexDocuments())
_CACHES: Final = (ContiguousCache(), FlatPaged(), InitialPaged())
OF_PAGED_DECODE: Final[tuple[Baseline, ...]] = (*CUDNN, *_LIBRARIES, FlashInferLatent(), *_CACHES)
OF_PAGED_PREFILL: Final[tuple[Baseline, ...]] = (*CUDNN, *_LIBRARIES)
