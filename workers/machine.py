"""The machine that the driver runs on: processor, memory, disk and, where there are any and their library is installed, NVIDIA GPUs."""

from __future__ import annotations

import contextlib
import importlib
import shutil
from pathlib import Path
from typing import Any

import psutil

MOST_GPUS = 16


class Machine:
    """Constructed by the driver. `read` is called about once a second in a thread, for a disk may hang; `close` at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = psutil.Process()
        psutil.cpu_percent(None)  # the first call has nothing to compare with
        self._nvml, self._gpus = _gpus()

    def read(self) -> dict[str, float]:
        """Metrics by name. What cannot be read now is left out: no data is not zero."""
        memory = psutil.virtual_memory()
        values = {
            "system/cpu_share": psutil.cpu_percent(None) / 100,
            "system/memory_used": float(memory.total - memory.available),
            "system/memory_total": float(memory.total),
            "system/driver_rss": float(self._process.memory_info().rss),
        }
        with contextlib.suppress(OSError):
            values["system/disk_free"] = float(shutil.disk_usage(self._folder).free)
        for index, handle in enumerate(self._gpus):
            with contextlib.suppress(self._nvml.NVMLError):
                memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
                values[f"system/gpu/{index}/memory_used"] = float(memory.used)
                values[f"system/gpu/{index}/memory_total"] = float(memory.total)
                values[f"system/gpu/{index}/utilization"] = self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
                values[f"system/gpu/{index}/power_w"] = self._nvml.nvmlDeviceGetPowerUsage(handle) / 1000
        return values

    def close(self) -> None:
        if self._gpus:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()


def _gpus() -> tuple[Any, list[Any]]:
    """NVIDIA's library and a handle for each GPU; (None, []) without the library, a driver or a GPU."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None, []
    try:
        nvml.nvmlInit()
        return nvml, [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(min(MOST_GPUS, nvml.nvmlDeviceGetCount()))]
    except nvml.NVMLError:
        return None, []
