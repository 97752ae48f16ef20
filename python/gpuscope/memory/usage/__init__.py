# SPDX-License-Identifier: Apache-2.0
"""Memory that is in use now: by library, by stage and as a ledger."""
