# SPDX-License-Identifier: Apache-2.0
# The types of the results, and from which module each is imported when it is first used.
from gpuscope.monitor.counters import Grown as Grown
from gpuscope.monitor.counters import Growth as Growth
from gpuscope.monitor.counters import growth as growth
from gpuscope.monitor.gpu_monitor import MonitorCost as MonitorCost
from gpuscope.monitor.host import HostState as HostState
from gpuscope.monitor.log import Recording as Recording
from gpuscope.monitor.log import read_log as read_log
from gpuscope.monitor.sample import GpuSample as GpuSample
from gpuscope.monitor.sample import SamplingCost as SamplingCost
from gpuscope.monitor.snapshot import GpuProcess as GpuProcess
from gpuscope.monitor.snapshot import GpuSnapshot as GpuSnapshot
from gpuscope.monitor.snapshot import GpuState as GpuState
from gpuscope.monitor.snapshot import MigInstance as MigInstance
from gpuscope.monitor.xid import KernelXids as KernelXids
from gpuscope.monitor.xid import XidErrors as XidErrors
from gpuscope.monitor.xid import kernel_xids as kernel_xids
