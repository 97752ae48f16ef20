# SPDX-License-Identifier: Apache-2.0
# The types of the results, and from which module each is imported when it is first used.
from gpuscope.memory.history.events import Frame as Frame
from gpuscope.memory.history.events import Lifetimes as Lifetimes
from gpuscope.memory.history.events import MemoryEvents as MemoryEvents
from gpuscope.memory.history.fragments import Fragmentation as Fragmentation
from gpuscope.memory.history.history import MemoryHistory as MemoryHistory
from gpuscope.memory.history.leaks import Leak as Leak
from gpuscope.memory.history.leaks import LeakReport as LeakReport
from gpuscope.memory.history.peak import PeakCategory as PeakCategory
from gpuscope.memory.history.peak import PeakPlace as PeakPlace
from gpuscope.memory.history.peak import PeakReport as PeakReport
from gpuscope.memory.history.snapshot_reader import MemoryFile as MemoryFile
from gpuscope.memory.limits.batch_size import MaxBatchSize as MaxBatchSize
from gpuscope.memory.limits.batch_size import Try as Try
from gpuscope.memory.limits.out_of_memory import OutOfMemory as OutOfMemory
from gpuscope.memory.limits.out_of_memory_reports import OutOfMemoryReports as OutOfMemoryReports
from gpuscope.memory.usage.ledger import LedgerRow as LedgerRow
from gpuscope.memory.usage.ledger import MemoryLedger as MemoryLedger
from gpuscope.memory.usage.snapshot import DeviceMemory as DeviceMemory
from gpuscope.memory.usage.snapshot import MemoryDifference as MemoryDifference
from gpuscope.memory.usage.snapshot import MemorySnapshot as MemorySnapshot
from gpuscope.memory.usage.stages import MemoryStage as MemoryStage
from gpuscope.memory.usage.stages import MemoryStages as MemoryStages
