"""A CPU as SGLang's out-of-tree platform, in the words of its own plug-in interface. Loaded in SGLang's environment.

SGLang's own CPU platform wants compiled kernels that only another wheel has; with this one its Python and Triton code
runs as on any device that SGLang does not know.
"""

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.interface import PlatformEnum, SRTPlatform


class Cpu(CpuDeviceMixin, SRTPlatform):
    """What SGLang asks before it refuses an option for the device."""

    _enum = PlatformEnum.OOT
    device_name = "ling_cpu"
    device_type = "cpu"

    def support_mamba_cache_extra_buffer(self) -> bool:
        return True

    def get_default_attention_backend(self) -> str:
        return "triton"

    def get_default_speculative_draft_attention_backend(self, _arguments: object) -> str:
        return "triton"

    def supports_speculative_algorithm(self, _algorithm: object) -> bool:
        return True

    def supports_speculative_draft_attention_backend(self, *_arguments: object) -> bool:
        return True
