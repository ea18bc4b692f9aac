"""The tables of roles and of own, foreign and unknown names once more, with sessions that are in a store."""

import pathlib
import sys

import pytest
from stores import _seaweedfs, KEYS  # noqa: F401

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "service"))
from access import check_log, keys, rpcs, test_every_route_checks_the_role, test_every_rpc_checks_the_role  # noqa: E402, F401
from keyed_server import Server  # noqa: E402
from own_and_foreign import (Asker, test_a_list_has_only_own_sessions, test_anothers_name_is_free,  # noqa: E402, F401
                             test_anothers_session_is_unknown, test_anothers_session_is_unknown_over_http,
                             test_every_rpc_has_a_row, test_times_do_not_distinguish_anothers_from_unknown)

REMOTE = {"durability": "DURABILITY_REMOTE"}


def store(url, prefix):
    return "--state-store", f"s3://bucket/{prefix}", "--state-endpoint", url


@pytest.fixture(scope="module")
def server(tmp_path_factory, keys, seaweedfs):  # noqa: F811
    one = Server(tmp_path_factory.mktemp("server"), "--keys", keys["file"], *store(seaweedfs, "roles"), **KEYS)
    yield one
    one.stop()
    check_log(one, keys)


@pytest.fixture(scope="module")
def asker(tmp_path_factory, seaweedfs):
    one = Asker(tmp_path_factory.mktemp("asker"), store(seaweedfs, "names"), REMOTE, **KEYS)
    yield one
    one.close()
