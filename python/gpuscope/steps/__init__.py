# SPDX-License-Identifier: Apache-2.0
"""The steps of a recording: what repeats, and each GPU's busy and idle time."""
