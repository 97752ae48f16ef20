# SPDX-License-Identifier: Apache-2.0
"""What programs and coding agents use: a server of the Model Context Protocol, its tools, and a skill file."""
