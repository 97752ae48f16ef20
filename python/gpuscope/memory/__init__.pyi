# SPDX-License-Identifier: Apache-2.0
# The types of the results, and from which module each is imported when it is first used.
from gpuscope.memory.batch_size import MaxBatchSize as MaxBatchSize
from gpuscope.memory.batch_size import Try as Try
from gpuscope.memory.events import Frame as Frame
from gpuscope.memory.events import Lifetimes as Lifetimes
from gpuscope.memory.events import MemoryEvents as MemoryEvents
from gpuscope.memory.fragments import Fragmentation as Fragmentation
from gpuscope.memory.history import MemoryHistory as MemoryHistory
from gpuscope.memory.leaks import Leak as Leak
from gpuscope.memory.leaks import LeakReport as LeakReport
from gpuscope.memory.ledger import LedgerRow as LedgerRow
from gpuscope.memory.ledger import MemoryLedger as MemoryLedger
from gpuscope.memory.out_of_memory import OutOfMemory as OutOfMemory
from gpuscope.memory.out_of_memory_reports import OutOfMemoryReports as OutOfMemoryReports
from gpuscope.memory.peak import PeakCategory as PeakCategory
from gpuscope.memory.peak import PeakPlace as PeakPlace
from gpuscope.memory.peak import PeakReport as PeakReport
from gpuscope.memory.snapshot import DeviceMemory as DeviceMemory
from gpuscope.memory.snapshot import MemoryDifference as MemoryDifference
from gpuscope.memory.snapshot import MemorySnapshot as MemorySnapshot
from gpuscope.memory.snapshot_reader import MemoryFile as MemoryFile
from gpuscope.memory.stages import MemoryStage as MemoryStage
from gpuscope.memory.stages import MemoryStages as MemoryStages
