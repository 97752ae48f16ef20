# SPDX-License-Identifier: Apache-2.0
# The types of the results, and from which module each is imported when it is first used.
from gpuscope.counters.measuring import CounterMeasurement as CounterMeasurement
from gpuscope.counters.names import Counter as Counter
from gpuscope.counters.names import list_counters as list_counters
from gpuscope.counters.sampled import CounterValues as CounterValues
from gpuscope.counters.sampled import SampledCounters as SampledCounters
from gpuscope.counters.short_kernels import ShortKernel as ShortKernel
from gpuscope.counters.short_kernels import ShortKernels as ShortKernels
