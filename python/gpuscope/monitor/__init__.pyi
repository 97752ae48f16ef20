# SPDX-License-Identifier: Apache-2.0
# The types of the results, and from which module each is imported when it is first used.
from gpuscope.monitor.gpu_monitor import MonitorCost as MonitorCost
from gpuscope.monitor.log import GpuSample as GpuSample
from gpuscope.monitor.snapshot import GpuProcess as GpuProcess
from gpuscope.monitor.snapshot import GpuSnapshot as GpuSnapshot
from gpuscope.monitor.snapshot import GpuState as GpuState
