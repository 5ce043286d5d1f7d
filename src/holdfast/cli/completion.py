"""`holdfast completion`: the script that teaches a shell to complete holdfast's words.

zsh and fish are served by click as they are. Hazard in bash: it cuts words at colons, and names of
locks have them (`invoice:42`). So our bash script passes the whole line, and takes away from each
answer what bash considers typed already.
"""

from __future__ import annotations

import os

import click
from click.shell_completion import (
    BashComplete,
    ShellComplete,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

__all__ = ["VARIABLE", "completion"]

VARIABLE = "_HOLDFAST_COMPLETE"

SCRIPT = """\
# Completion of %(prog_name)s for bash.
%(complete_func)s() {
    local IFS=$'\\n' answer kind value word typed=""
    COMPREPLY=()
    word=${COMP_LINE:0:COMP_POINT}
    word=${word##*[[:space:]]}
    # Bash cuts words at colons and replaces only what stands behind the last one.
    if [[ $COMP_WORDBREAKS == *:* && $word == *:* ]]; then
        typed=${word%%"${word##*:}"}
    fi
    answer=$(HOLDFAST_LINE=${COMP_LINE:0:COMP_POINT} %(complete_var)s=bash_complete "$1")
    while IFS=, read -r kind value; do
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("${value#"$typed"}") ;;
        esac
    done <<<"$answer"
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class Bash(BashComplete):
    source_template = SCRIPT

    def source(self) -> str:
        return ShellComplete.source(self)  # without starting a bash to ask for its version

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ.get("HOLDFAST_LINE", "")
        words = split_arg_string(line)[1:]
        if line[-1:].isspace() or not words:
            return words, ""
        return words[:-1], words[-1]


add_completion_class(Bash)

HELP = """\
Print the script that makes a shell complete holdfast's commands, options and
the names of locks.

\b
  source <(holdfast completion bash)                 # in ~/.bashrc
  source <(holdfast completion zsh)                  # in ~/.zshrc
  holdfast completion fish | source                  # in config.fish
"""


@click.command(help=HELP, short_help="print the completion script of a shell")
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, /, shell: str) -> int:
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "holdfast", VARIABLE).source().rstrip())
    return 0
