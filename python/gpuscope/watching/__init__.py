# SPDX-License-Identifier: Apache-2.0
"""Programs that are watched for days: windows at a measured cost, triggers and dumps."""
