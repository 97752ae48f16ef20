# SPDX-License-Identifier: Apache-2.0
"""What memory events and pools tell on being asked: leaks, fragmentation, and what lives at the peak."""
