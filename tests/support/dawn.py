"""Dawn, the WebGPU of Chromium, as a judge of WGSL text: wgpu's compiler is one implementation, and this is another.

Its null backend checks all that a browser checks, and runs nothing.  It needs no driver and no GPU, and its limits are
what WebGPU guarantees.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest

from .adapter import REQUIRED

HAS_DAWN = REQUIRED or find_spec("pydawn") is not None
needs_dawn = pytest.mark.skipif(not HAS_DAWN, reason="Dawn is not installed (dawn-python, of the extra `dev`)")


def refusal(text: str, whole: bool = True) -> str:
    """Why Dawn refuses a compute shader with a function `main`, "" if it accepts it.

    Unless `whole`, the text alone is judged, and not what it asks of a device: more buffers, invocations and workgroup
    memory than WebGPU guarantees are no fault then.
    """
    webgpu, utils, device = _opened()
    try:
        module = utils.create_shader_module(device, text)
    except RuntimeError as error:
        return str(error)
    refused = _of_pipeline(module) if whole else ""
    webgpu.wgpuShaderModuleRelease(module)
    return refused


def _of_pipeline(module: Any) -> str:
    webgpu, utils, device = _opened()
    wanted = webgpu.WGPUComputePipelineDescriptor()
    wanted.compute.module = module
    wanted.compute.entryPoint = utils.to_wgpu_str("main")
    webgpu.wgpuDevicePushErrorScope(device, webgpu.WGPUErrorFilter_Validation)
    pipeline = webgpu.wgpuDeviceCreateComputePipeline(device, wanted)
    refused = utils.pop_error(device) or ""
    webgpu.wgpuComputePipelineRelease(pipeline)
    return str(refused)


@cache
def _opened() -> tuple[Any, Any, Any]:
    """Two modules of pydawn, and a device with the features that kernels may use."""
    from pydawn import utils, webgpu

    options = webgpu.WGPURequestAdapterOptions()
    options.backendType = webgpu.WGPUBackendType_Null
    adapter = _asked(utils, webgpu, "Adapter", webgpu.wgpuInstanceRequestAdapterF, utils.instance, options)
    features = (webgpu.WGPUFeatureName * 2)(webgpu.WGPUFeatureName_ShaderF16, webgpu.WGPUFeatureName_Subgroups)
    wanted = webgpu.WGPUDeviceDescriptor()
    wanted.requiredFeatureCount = len(features)
    wanted.requiredFeatures = ctypes.cast(features, ctypes.POINTER(webgpu.WGPUFeatureName))
    return webgpu, utils, _asked(utils, webgpu, "Device", webgpu.wgpuAdapterRequestDeviceF, adapter, wanted)


def _asked(utils: Any, webgpu: Any, what: str, request: Any, of: Any, wanted: Any) -> Any:
    """The adapter or the device that a call of the C interface gives to a callback."""
    given: list[tuple[int, Any, str]] = []
    answer = getattr(webgpu, f"WGPURequest{what}CallbackInfo")()
    answer.mode = webgpu.WGPUCallbackMode_WaitAnyOnly
    kind = getattr(webgpu, f"WGPURequest{what}Callback")
    answer.callback = kind(lambda status, made, why, _: given.append((status, made, utils.from_wgpu_str(why))))
    utils.wait(request(of, wanted, answer))
    ((status, made, why),) = given
    if status != getattr(webgpu, f"WGPURequest{what}Status_Success"):
        raise RuntimeError(f"Dawn has no {what.lower()}: {why}")
    return made
