"""Command line of weights_tools."""

import argparse
import sys

from weights_tools import convert, golden, inspect_checkpoint, train

COMMANDS = {
    "train": (train, "train a small model on public-domain books (needs PyTorch)"),
    "golden": (golden, "make small checkpoints with golden results (needs PyTorch)"),
    "convert": (convert, "write config.json and safetensors from other layouts"),
    "inspect": (inspect_checkpoint, "print what a checkpoint is and what serving it costs"),
}


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m weights_tools", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (module, help_text) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=help_text,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.main)
    options = parser.parse_args(argv)
    try:
        return options.run(options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"error: this command needs the Python package {error.name}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
