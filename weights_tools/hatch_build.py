"""Puts the licence itself into a source package: in the repository it is a link, which would lead nowhere."""

import pathlib

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Licence(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version, build_data):
        licence = pathlib.Path(self.root, "LICENSE")
        if self.target_name == "sdist":
            del build_data["force_include"][str(licence)]
            build_data["force_include"][str(licence.resolve())] = licence.name
