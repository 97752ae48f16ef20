# SPDX-License-Identifier: Apache-2.0
"""For programs that read results: schemas of their JSON, a server of the Model Context Protocol, and a skill file."""
