# SPDX-License-Identifier: Apache-2.0
"""What a program's work costs: energy, operations and bytes against peaks, idle time by hardware counters."""
