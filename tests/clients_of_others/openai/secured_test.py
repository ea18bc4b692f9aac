"""OpenAI's own client over TLS, with a key that the server knows, and with none."""

import os
import pathlib
import subprocess
import sys

import httpx
import openai
import pytest

ROOT = pathlib.Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests/clients_of_others/tls"))
from certificates import Authority  # noqa: E402
from http_server import HttpServer  # noqa: E402


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """A server, a key of it, and the file of the authority that has signed its certificate."""
    folder = tmp_path_factory.mktemp("secured")
    authority, keys = Authority(folder), folder / "keys.json"
    new = [pathlib.Path(os.environ["RECURVE_BIN"]) / "recurve", "keys", "new", "--tenant", "alice", "--file", keys]
    key = subprocess.run(new, check=True, capture_output=True, text=True).stdout.strip()
    with HttpServer("--chat-template", "plain", "--keys", str(keys), *authority.sign().flags) as running:
        yield running.url.replace("http://", "https://"), key, str(authority.ca)


def client_of(url, key, **options):
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=httpx.Client(**options))


def test_the_key_and_the_authority_are_enough(secured):
    url, key, ca = secured
    with client_of(url, key, verify=ca) as client:
        assert client.models.list().data
        answer = client.completions.create(model="books", prompt="It was", max_tokens=8, temperature=0)
        streamed = client.completions.create(model="books", prompt="It was", max_tokens=8, temperature=0, stream=True)
        assert "".join(part.choices[0].text for part in streamed if part.choices) == answer.choices[0].text


@pytest.mark.parametrize("key", ["none", "rck_" + "0" * 12 + "_" + "A" * 43])
def test_a_key_that_is_not_known_is_an_authentication_error(secured, key):
    url, _, ca = secured
    with client_of(url, key, verify=ca) as client, pytest.raises(openai.AuthenticationError):
        client.models.list()


def test_another_authority_is_not_trusted(secured, tmp_path):
    url, key, _ = secured
    with client_of(url, key, verify=str(Authority(tmp_path).ca)) as client:
        with pytest.raises(openai.APIConnectionError) as error:
            client.models.list()
    assert "CERTIFICATE_VERIFY_FAILED" in str(error.value.__cause__)
