"""The cost of the asynchronous client: of 64 streams at once, and of a token of one stream.

    RECURVE_BIN=build/release/bin PYTHON tests/clients/python/figures.py     PYTHON: that of run.sh

The first is measured with the server and a model of 676 parameters, and then with one that sends each
token in a separate message; client and server share the machine's cores, so tokens per second of the
client's processor time are reported too. The second: a server records when it sends a token, every
2 ms, and the client when it receives it; this includes grpcio at both ends.
"""

import asyncio
import itertools
import multiprocessing
import statistics
import time

import recurve
from conftest import ROOT
from fake_server import FakeServer, answer

from server import Server

STREAMS = 64


async def read(client, tokens):
    count = 0
    async for chunk in client.stream([0, 1], max_tokens=tokens, ignore_eos=True):
        count += len(chunk.ids)
    return count


async def throughput(address, tokens):
    """Tokens a second, and a second of the client's processor time."""
    async with recurve.AsyncClient(address) as client:
        await asyncio.gather(*(read(client, 20) for _ in range(STREAMS)))
        began, used = time.monotonic(), time.process_time()
        counts = await asyncio.gather(*(read(client, tokens) for _ in range(STREAMS)))
        assert sum(counts) == STREAMS * tokens
        return (
            sum(counts) / (time.monotonic() - began),
            sum(counts) / (time.process_time() - used),
        )


async def delays(address):
    """Seconds from the sending of each token to the client's having it."""
    async with recurve.AsyncClient(address) as client:
        return [time.monotonic() - float(chunk.text) async for chunk in client.stream("x")]


def stamped(tokens, seconds):
    begin, *_, end = answer()
    yield begin
    for part in itertools.islice(answer(*"x" * tokens), 1, 1 + tokens):
        time.sleep(seconds)
        part.chunk.text = str(time.monotonic())
        yield part
    yield end


def fake(scripts, address, done):
    with FakeServer(threads=STREAMS, Generate=[stamped(*script) for script in scripts]) as server:
        address.put(server.address)
        done.wait()


def with_fake(scripts, measure):
    context = multiprocessing.get_context("spawn")
    address, done = context.Queue(), context.Event()
    process = context.Process(target=fake, args=(scripts, address, done))
    process.start()
    result = asyncio.run(measure(address.get()))
    done.set()
    process.join()
    return result


def main():
    with Server(ROOT / "weights_tools/demo/parity-elman", "--slots", str(STREAMS)) as server:
        by_time, by_cpu = asyncio.run(throughput(server.address, 5000))
    print(f"{STREAMS} streams of the server: {by_time:.0f} tokens/s, {by_cpu:.0f} by its own time")
    scripts = [(20, 0)] * STREAMS + [(500, 0)] * STREAMS
    by_time, by_cpu = with_fake(scripts, lambda address: throughput(address, 500))
    print(f"a message a token: {by_time:.0f} tokens/s, {by_cpu:.0f} by its own time")
    found = with_fake([(1000, 0.002)], delays)
    print(
        f"one stream: {1e6 * statistics.median(found):.0f} us in the median, "
        f"{1e6 * statistics.quantiles(found, n=100)[-1]:.0f} us p99 from sent to had"
    )


if __name__ == "__main__":
    main()
