"""A hundred streams at once: how fast tokens come in all, and the first of each.

python hundred_streams.py [HOST:PORT [STREAMS [TOKENS]]]
"""

import asyncio
import statistics
import sys
import time

import recurve


async def main(address: str = "127.0.0.1:50051", streams: str = "100", tokens: str = "50") -> None:
    async with recurve.AsyncClient(address) as client:

        async def read(number: int) -> tuple[int, float]:
            began, first, count = time.monotonic(), 0.0, 0
            stream = client.stream(
                f"{number} ", max_tokens=int(tokens), ignore_eos=True, seed=number
            )
            async for chunk in stream:
                first = first or time.monotonic() - began
                count += len(chunk.ids)
            return count, first

        began = time.monotonic()
        found = await asyncio.gather(*(read(number) for number in range(int(streams))))
        seconds, count = time.monotonic() - began, sum(count for count, _ in found)
        median = statistics.median(first for _, first in found)
        print(f"{count} tokens in {seconds:.2f} s: {count / seconds:.0f} tokens/s")
        print(f"first token after {median:.2f} s in the median")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
