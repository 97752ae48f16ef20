# SPDX-License-Identifier: Apache-2.0
"""``gpuscope completion``: scripts by which shells complete commands, options, fixed values and files."""

from __future__ import annotations

import argparse
from types import ModuleType

from gpuscope.cli import COMMANDS
from gpuscope.errors import NotAvailable
from gpuscope.readers.files import SUFFIXES

_SHELLS = ("bash", "zsh", "fish")
_READ = {"program": (".py", ".pyz"), "recording": SUFFIXES, "before": SUFFIXES, "after": SUFFIXES}

# The arguments after a script are the script's: bash completes them as for any program.
_BASH = """
{choices}
_gpuscope() {{
  local word
  for word in "${{COMP_WORDS[@]:2:COMP_CWORD-2}}"; do
    case $word in
      *.py | *.pyz | -m | -c) COMPREPLY=(); compopt -o default 2> /dev/null; return ;;
    esac
  done
  _shtab_gpuscope "$@"
}}
complete -o bashdefault -F _gpuscope gpuscope"""


class Completion:
    """Prints the script for a shell."""

    description = (
        "Prints a script by which a shell completes commands, options, fixed values and files. It is made by shtab:\n"
        "pip install shtab. Write it again after an update of gpuscope."
    )
    examples = """\
  gpuscope completion bash > gpuscope.bash        then: source gpuscope.bash
  gpuscope completion zsh > ~/.zfunc/_gpuscope    with ~/.zfunc in $fpath
  gpuscope completion fish > ~/.config/fish/completions/gpuscope.fish"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument("shell", choices=_SHELLS, help="whose script")

    def run(self, options: argparse.Namespace) -> int:
        """Prints it."""
        try:
            import shtab
        except ImportError:
            raise NotAvailable("completion is not available: shtab is not installed; pip install shtab") from None
        parsers = _parsers(shtab)
        script = shtab.complete(parsers[""], options.shell)
        if options.shell == "bash":
            pairs = [name.split() for name in parsers if " " in name]
            choices = "\n".join(f"_shtab_gpuscope_{first}_pos_0_choices=({second})" for first, second in pairs)
            script += _BASH.format(choices=choices)
        print(script)
        return 0


def _parsers(shtab: ModuleType) -> dict[str, argparse.ArgumentParser]:
    """The parsers of all commands by name, and the main parser as "". Second words are commands of the first."""
    whole = argparse.ArgumentParser(prog="gpuscope")
    whole.add_argument("--version", action="version", help="print the version")
    found = {"": whole}
    under = {"": whole.add_subparsers()}
    for entry in COMMANDS:
        first, _, name = entry.name.rpartition(" ")
        if first not in under:
            under[first] = found[first].add_subparsers(prog=first)
        found[entry.name] = parser = under[first].add_parser(name, help=entry.summary)
        entry.load().prepare_parser(parser)
        for action in parser._actions:  # argparse has no public list of them
            read = _READ.get(action.dest, ())
            if action.dest == "program":
                action.help = "the program and its arguments"
                read += SUFFIXES if entry.name == "diagnose" else ()
            if read:
                action.complete = shtab.glob(*(f"*{suffix}" for suffix in read))  # type: ignore[attr-defined]
            elif str(action.metavar).startswith("FILE"):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            elif action.metavar in ("DIR", "FOLDER"):
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
            elif entry.name == "bench" and not action.option_strings:  # Python, before which zsh expects no command
                action.help = argparse.SUPPRESS
    return found
