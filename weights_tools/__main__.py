"""Command line of weights_tools."""

import argparse
import importlib
import pathlib
import sys

COMMANDS = {
    "train": ("train", "train a small model on public-domain books (needs PyTorch)"),
    "golden": ("golden", "create small checkpoints with golden results (needs PyTorch)"),
    "convert": ("convert", "convert other layouts to config.json and safetensors"),
    "quantize": ("quantize", "pack the weights of linear layers into eight or four bits"),
    "random": ("random_checkpoint", "write a checkpoint with random weights from a config"),
    "inspect": ("inspect_checkpoint", "print the properties of a checkpoint and the cost of serving it"),
    "state": ("state", "print a serialized state, or the difference of two"),
}


def main(argv=None):
    try:
        return run(argv)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
    except ModuleNotFoundError as error:
        print(
            f"error: this needs the Python package {error.name}, which {sys.executable} does not have: "
            f"{sys.executable} -m pip install {error.name}",
            file=sys.stderr,
        )
    return 2


def run(argv):
    started_as = pathlib.Path(sys.argv[0]).name
    program = "recurve-tools" if started_as == "recurve-tools" else "python -m weights_tools"
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (module_name, help_text) in COMMANDS.items():
        module = importlib.import_module(f"weights_tools.{module_name}")
        command = commands.add_parser(
            name,
            help=help_text,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.main)
    options = parser.parse_args(argv)
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
